"""What a run tells in words, on standard error."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator


class StderrHandler(logging.Handler):
    """Looks for stderr at each record: a live table puts itself in between."""

    def emit(self, record: logging.LogRecord) -> None:
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        # Ctrl-C ends what a pipe leads to, too (`2>&1 | tee log`), and a disk may be full: a run
        # stops as it should.
        with contextlib.suppress(OSError):
            print(f"{level}{record.getMessage()}", file=sys.stderr)


class _Beside(StderrHandler):
    """Shows what nobody else would; warnings go where they would have gone without it."""

    def __init__(self, told: int) -> None:
        super().__init__(logging.INFO)
        #: The level from which on others are told.
        self._told = told

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING:
            super().emit(record)
        elif record.levelno >= self._told:
            logging.getLogger().callHandlers(record)


@contextlib.contextmanager
def told_on_stderr() -> Iterator[None]:
    """For a while, show what a run tells, unless the user's own logging does, or is not to."""
    logger = logging.getLogger("cerebro")
    is_arranged = logger.handlers or logger.level > logging.INFO or not logger.propagate
    if is_arranged or _is_heard(logging.getLogger("cerebro.run")):
        yield
        return
    before, handler = logger.level, _Beside(logger.getEffectiveLevel())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        logger.propagate = True


def _is_heard(logger: logging.Logger) -> bool:
    """Whether some handler gets what it tells."""
    if not logger.isEnabledFor(logging.INFO):
        return False
    place: logging.Logger | None = logger
    while place is not None:
        if any(handler.level <= logging.INFO for handler in place.handlers):
            return True
        place = place.parent if place.propagate else None
    return False
