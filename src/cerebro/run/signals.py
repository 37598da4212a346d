"""Ctrl-C and its relatives: once to stop cleanly, twice to stop now."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Self

from cerebro.errors import CerebroError, RunInterrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
#: State is saved, safe to restart: what batch systems key on.
_EXIT_SAVED = 75


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Posted to the driver: end once the visits in flight are through."""

    number: int


@dataclass(frozen=True, slots=True)
class Woken:
    """Posted to the driver: a signal has come, which is handled as soon as it does not wait."""


@dataclass(frozen=True, slots=True)
class GraceOver:
    """Posted to the driver: do not wait for them any longer."""


@dataclass(frozen=True, slots=True)
class LingerOver:
    """Posted to the driver: save what visits in flight have not replaced by now."""


@dataclass(frozen=True, slots=True)
class TimeUp:
    """Posted to the driver: the time that the run may take is over."""


@dataclass(frozen=True, slots=True)
class Broken:
    """Posted to the driver: end with this error, which workers of other machines have met."""

    error: CerebroError


def interrupted(number: int, message: str) -> RunInterrupted:
    """The error for a run that this signal stopped."""
    error = RunInterrupted(message)
    error.exit_code = 130 if number == signal.SIGINT else _EXIT_SAVED
    return error


class StopSignals:
    """Calls `stop` with the first signal's number; raises RunInterrupted at the second.

    Later ones are ignored, and all once `ignore` was called: they must not cut short the end of
    the workers. Only the main thread may handle signals: elsewhere nothing is changed.

    Args:
        stop: What to call.
        wake: Ends what the main thread waits for, called in another one. A signal that another
            thread takes, or that comes in the moment before it waits, would else be heard only
            once something else wakes it. None where it never waits.
    """

    def __init__(self, stop: Callable[[int], None], wake: Callable[[], None] | None = None) -> None:
        self._stop = stop
        self._wake = wake
        self._seen = 0
        #: A second one has come: nothing may be waited for.
        self.is_urgent = False
        self._before: dict[signal.Signals, Any] = {}
        self._waker: _Waker | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            if self._wake is not None:
                self._waker = _Waker(self._wake)
            self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *exc: object) -> None:
        self.ignore()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def ignore(self) -> None:
        """From now on."""
        self._seen = max(self._seen, 2)
        waker, self._waker = self._waker, None
        if waker is not None:
            waker.close()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._seen += 1
        if self._seen == 1:
            self._stop(number)
        elif self._seen == 2:
            self.is_urgent = True
            raise interrupted(number, "stopped at once; the same command resumes the run.")


class _Waker:
    """Calls `wake` in a thread of its own after each signal, whichever thread has taken it."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._inlet, self._outlet = socket.socketpair()
        self._inlet.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)
        self._thread.start()
        self._before = signal.set_wakeup_fd(self._inlet.fileno(), warn_on_full_buffer=False)

    def close(self) -> None:
        signal.set_wakeup_fd(self._before)
        # Closing it would not do where a child that was forked has it, too.
        self._inlet.shutdown(socket.SHUT_RDWR)
        self._inlet.close()
        self._thread.join()
        self._outlet.close()

    def _run(self) -> None:
        while self._outlet.recv(64):
            self._wake()
