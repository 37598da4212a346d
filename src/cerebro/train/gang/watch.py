"""Noticing that another rank is gone, where what this one waits in would not tell."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import cast

from cerebro.types import Json

_CONNECT_S = 120.0
#: How long one that has connected may take to say who it is.
_INTRODUCTION_S = 20.0
_PROBES = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class Watch:
    """Calls `on_loss`, at most once and on a thread of its own, when a connection ends.

    Nothing is ever said on these connections: it is enough that they are there. The leader has one
    to each of the others. When it has lost one it ends all others at once, so that every rank stops
    waiting before it is known how long that takes: NCCL may wait for other ranks to do the same.

    >>> ours, theirs = socket.socketpair()
    >>> lost = threading.Event()
    >>> watch = Watch([ours], lost.set)
    >>> theirs.close()
    >>> lost.wait(10)
    True
    >>> watch.close()
    """

    def __init__(self, connections: list[socket.socket], on_loss: Callable[[], None]) -> None:
        self._on_loss = on_loss
        self._ours, self._theirs = socket.socketpair()
        self._connections = [self._ours, self._theirs, *connections]
        _open.add(self)
        self._thread = threading.Thread(target=self._look, name="cerebro-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the connections; a loss is not told any more once this has returned."""
        # The first of them says that it is this one who leaves.
        self._hang_up()
        self._thread.join()
        for connection in self._connections:
            connection.close()

    def forget(self) -> None:
        """In a process that was forked: leave the connections to the one that made them."""
        for connection in self._connections:
            connection.close()

    def _look(self) -> None:
        # Not select(), which knows no more than 1024 files.
        poll = select.poll()
        for connection in self._connections:
            if connection is not self._ours:
                poll.register(connection, select.POLLIN)
        if self._theirs.fileno() not in {fd for fd, _ in poll.poll()}:
            self._hang_up()
            self._on_loss()

    def _hang_up(self) -> None:
        for connection in self._connections:
            # Closing it would not do where a process that was forked has it, too.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


_open: weakref.WeakSet[Watch] = weakref.WeakSet()


def _forget_all() -> None:
    for watch in list(_open):
        watch.forget()


# What a task forks may live longer than its rank, which would not be missed.
os.register_at_fork(after_in_child=_forget_all)


def connect(
    rank: int, size: int, own_host: str, exchange: Callable[[Json], list[Json]]
) -> list[socket.socket]:
    """A leader's connections to all others, or another rank's to its leader.

    Args:
        own_host: Address of this machine at which the other ranks reach it.
        exchange: Gives the values of all ranks for that of this one, by rank.
    """
    if rank != 0:
        host, port, token = cast("tuple[str, int, str]", exchange(None)[0])
        connection = socket.create_connection((host, port), _CONNECT_S)
        try:
            connection.sendall(token.encode())
            return [_lasting(connection)]
        except OSError:
            connection.close()
            raise
    family = socket.AF_INET6 if ":" in own_host else socket.AF_INET
    with socket.create_server((own_host, 0), family=family, backlog=size) as listener:
        token = secrets.token_hex(16)
        exchange([own_host, listener.getsockname()[1], token])
        return _accept(listener, token.encode(), size - 1)


def keep_alive(connection: socket.socket) -> None:
    """Have the system find out within a minute or so that the other machine is gone."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _accept(listener: socket.socket, token: bytes, count: int) -> list[socket.socket]:
    found: list[socket.socket] = []
    deadline = time.monotonic() + _CONNECT_S
    try:
        while len(found) < count:
            listener.settimeout(max(0.001, deadline - time.monotonic()))
            connection, _ = listener.accept()
            connection.settimeout(_INTRODUCTION_S)
            if _is_introduced(connection, token):
                found.append(_lasting(connection))
            else:
                connection.close()
    except OSError as error:
        for connection in found:
            connection.close()
        raise OSError(
            f"all {count} other ranks must connect to the leader within {_CONNECT_S:.0f} s, but "
            f"{len(found)} did: {error}"
        ) from error
    return found


def _is_introduced(connection: socket.socket, token: bytes) -> bool:
    said = b""
    try:
        while len(said) < len(token):
            heard = connection.recv(len(token) - len(said))
            if not heard:
                return False
            said += heard
    except OSError:
        return False
    return secrets.compare_digest(said, token)


def _lasting(connection: socket.socket) -> socket.socket:
    connection.settimeout(None)
    keep_alive(connection)
    return connection
