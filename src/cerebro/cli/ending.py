"""How a command ends: errors become one paragraph and an exit code.

====  ======================================================
code  meaning
====  ======================================================
0     done; some trials may have failed (1 with `--strict`)
1     failed, or every trial failed
2     the request cannot be carried out as written
75    state saved, safe to restart (disk full, SIGTERM)
130   interrupted by Ctrl-C, state saved
====  ======================================================
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import typer

from cerebro.errors import CerebroError, RunInterrupted


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Say what went wrong in one paragraph, and exit with its code."""
    try:
        yield
    except CerebroError as error:
        prefix = "" if isinstance(error, RunInterrupted) else "error: "
        _tell(prefix + _printable(str(error)))
        raise typer.Exit(error.exit_code) from None
    except BrokenPipeError:
        raise  # whoever read our output has enough: typer ends quietly
    except OSError as error:
        where = f" {error.filename!r}" if error.filename else ""
        _tell(f"error: {error.strerror or error}{where}.")
        raise typer.Exit(CerebroError.exit_code) from None
    except KeyboardInterrupt:
        _tell("stopped.")
        raise typer.Exit(RunInterrupted.exit_code) from None


def have_streams() -> None:
    """Let output that was closed (`2>&-`) go nowhere: the next file to be opened would be it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # It gets the lowest number; processes that are started have it, too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def forsake_stderr() -> None:
    """Lest the interpreter ends with a code of its own for what nobody reads any more."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _tell(text: str) -> None:
    # What reads it may have ended before us, by the same Ctrl-C, and the disk of a log may be full:
    # the exit code stays.
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr)


def _printable(text: str) -> str:
    """Names come from users; on a terminal an escape code in them would act."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
