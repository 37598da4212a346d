"""What the muster of rank 0 and the agents of other machines say to each other: lines of JSON."""

from __future__ import annotations

import contextlib
import json
import select
import socket
from collections.abc import Mapping
from typing import Any

from cerebro.train.gang.watch import keep_alive

#: The longest line that is read.
LINE_BYTES = 8192
#: The most characters of what is said to people; a line has room for them, whatever they are.
WORD = 1000


class Post:
    """One side of a connection; closed, the other side hears that, too.

    >>> ours, theirs = (Post(end) for end in socket.socketpair())
    >>> ours.say({"done": 0})
    >>> theirs.hear(1.0)
    {'done': 0}
    >>> ours.close(), theirs.close()
    (None, None)
    """

    def __init__(self, connection: socket.socket) -> None:
        keep_alive(connection)
        self._connection = connection
        # Not select(), which knows no more than 1024 files.
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._heard = bytearray()
        #: Where the gang meets, as the other side has said.
        self.gang = ""
        #: Of each rank, as the other side has said.
        self.threads = 1

    def __enter__(self) -> Post:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self._connection.fileno()

    def say(self, message: Mapping[str, object]) -> None:
        # Escaped, a character may take 12 bytes. Names of files may hold half of one.
        line = json.dumps(message, ensure_ascii=False).encode(errors="surrogatepass")
        # One that is gone is found by hearing nothing more.
        with contextlib.suppress(OSError):
            self._connection.sendall(line + b"\n")

    def hear(self, timeout_s: float) -> dict[str, Any] | None:
        """The next message; None if there is none in time, or it is none.

        EOFError if the other side is gone, or says more than anybody has to say.
        """
        if b"\n" not in self._heard:
            self._receive(timeout_s)
        line, newline, rest = bytes(self._heard).partition(b"\n")
        if not newline:
            return None
        self._heard = bytearray(rest)
        # Of strangers too, which may send brackets without end.
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(line)
            return found if isinstance(found, dict) else {}
        return {}

    def _receive(self, timeout_s: float) -> None:
        if not self._poll.poll(timeout_s * 1000):
            return
        try:
            heard = self._connection.recv(4096)
        except OSError:
            heard = b""
        self._heard += heard
        if not heard or (b"\n" not in heard and len(self._heard) > LINE_BYTES):
            raise EOFError

    def close(self) -> None:
        self._connection.close()


def clean_line(text: str, most: int = 200) -> str:
    """What came over the network, fit for a terminal.

    >>> clean_line("a\\x1b[2J")
    'a?[2J'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text[:most])
