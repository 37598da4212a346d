"""What a process ends with, and how the others of its run hear of it."""

from __future__ import annotations

from cerebro.backend.gang.post import WORD
from cerebro.errors import CerebroError, RunInterrupted


def exit_code_of(error: BaseException) -> int:
    """The exit code of a process that ends with this error.

    >>> from cerebro.errors import UsageError
    >>> exit_code_of(UsageError("no")), exit_code_of(KeyboardInterrupt()), exit_code_of(OSError())
    (2, 130, 1)
    """
    if isinstance(error, CerebroError):
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return RunInterrupted.exit_code if isinstance(error, KeyboardInterrupt) else 1


def is_stop(error: BaseException) -> bool:
    """Whether a process ends with this because it was asked to, as all others are.

    >>> is_stop(RunInterrupted("stopped.")), is_stop(SystemExit(75)), is_stop(SystemExit(1))
    (True, True, False)
    """
    if isinstance(error, SystemExit):
        return error.code in (75, 130)
    return isinstance(error, RunInterrupted | KeyboardInterrupt)


def word_of(error: BaseException) -> str:
    """An error as the others hear it: one line.

    >>> word_of(OSError("no room:\\n  /data")), word_of(KeyError("x"))
    ('no room: /data', "KeyError: 'x'")
    """
    text = " ".join(str(error).split())
    if not text or not isinstance(error, CerebroError | OSError):
        # What is raised for programmers says little without its name.
        text = f"{type(error).__name__}: {text}".removesuffix(": ")
    return text[:WORD]
