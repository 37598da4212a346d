"""Ctrl-C and its relatives: once to stop cleanly, twice to stop now."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from cerebro.errors import RunInterrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
#: State is saved, safe to restart: what batch systems key on.
_EXIT_SAVED = 75


def interrupted(number: int, message: str) -> RunInterrupted:
    """The error for a run that this signal stopped."""
    error = RunInterrupted(message)
    error.exit_code = 130 if number == signal.SIGINT else _EXIT_SAVED
    return error


@contextlib.contextmanager
def stop_on_signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Call `stop` with the first signal's number; raise RunInterrupted at the second.

    Later ones are ignored: they must not cut short the end of the workers.
    Only the main thread may handle signals: elsewhere nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        if len(seen) == 1:
            stop(number)
        elif len(seen) == 2:
            raise interrupted(number, "stopped at once; the same command resumes the run.")

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
