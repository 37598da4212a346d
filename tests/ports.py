"""Ports of this machine for servers that bind them a little later."""

from __future__ import annotations

import contextlib
import secrets
import socket

#: Above those of Ray's workers, and below those that the kernel gives to outgoing connections.
_PORTS = range(20_000, 32_768)
#: Nobody may have bound them yet. For each, the port of UDP with its number is held, which no
#: server here uses: other processes that run tests see that it is given, too.
_given: list[socket.socket] = []


def free_port(*further: int) -> int:
    """A port that is free, as are those so much further up; none is given twice."""
    while True:
        # Not `random`, which visits in this process seed.
        port = secrets.choice(_PORTS[: len(_PORTS) - max(further, default=0)])
        with contextlib.ExitStack() as claims:
            try:
                found = [_claim(port + each, claims) for each in (0, *further)]
            except OSError:
                continue
            claims.pop_all()
            _given.extend(found)
            return port


def _claim(port: int, claims: contextlib.ExitStack) -> socket.socket:
    """Hold a port that nobody has; an OSError if somebody does."""
    claim = claims.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    claim.bind(("127.0.0.1", port))
    with socket.socket() as found:
        found.bind(("127.0.0.1", port))
    return claim
