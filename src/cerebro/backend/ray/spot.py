"""Where the ranks of a gang meet: a port of a node that is kept for its leader."""

from __future__ import annotations

import socket

from cerebro.backend.gang.rendezvous import join_address


class Spot:
    """A port of this machine that the system gives to nobody else while this object is open.

    A leader listens at it, and after it another one: both say SO_REUSEADDR, as we do, and nobody
    listens here.

    Args:
        host: The address of the interface at which other machines reach this one.

    >>> spot = Spot("127.0.0.1")
    >>> spot.address.startswith("127.0.0.1:")
    True
    >>> spot.close()
    """

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, 0))
        #: "host:port".
        self.address = join_address(host, self._socket.getsockname()[1])

    def close(self) -> None:
        self._socket.close()
