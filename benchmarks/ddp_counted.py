"""Runs a command, and prints how many bytes the loopback device has carried meanwhile."""

from __future__ import annotations

import fcntl
import socket
import struct
import subprocess
import sys
from pathlib import Path

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


def main(command: list[str]) -> int:
    _bring_up()
    before = _carried()
    code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
    print(_carried() - before)
    return code


def _carried() -> int:
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[8])
    return 0


def _bring_up() -> None:
    """In a new network namespace it is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(probe, _SIOCGIFFLAGS, request))[1]
        if not flags & _IFF_UP:
            up = struct.pack("16sh14x", b"lo", flags | _IFF_UP)
            fcntl.ioctl(probe, _SIOCSIFFLAGS, up)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
