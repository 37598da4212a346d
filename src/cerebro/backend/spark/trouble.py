"""What Spark says of a job that failed, in a line; executors that lack what the driver has."""

from __future__ import annotations

import contextlib
import re
import socket
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

from cerebro.backend.spark.context import default_workers
from cerebro.errors import CerebroError, UsageError, WorkerError
from cerebro.version import __version__

_LENGTH = 400
#: The end of what Python says when a task ends in a way that ours do not.
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?: .*\n)*(\S.*)")
#: What it says where a package is missing, or is of a version that lacks something.
_LACKS = re.compile(
    r"No module named|cannot import name|Can't get attribute|PACKAGE_NOT_INSTALLED"
    r"|PYTHON_VERSION_MISMATCH|UNSUPPORTED_PACKAGE_VERSION"
)
_OUT_OF_MEMORY = re.compile(
    r"out ?of ?memory|OOMKilled|exceeding .*memory limits|exit code 137", re.I
)
_REMEDY = "Executors need what the driver has: set PYSPARK_PYTHON to such a Python"
#: Contexts whose executors are known to have Cerebro.
_PROVEN: weakref.WeakSet[Any] = weakref.WeakSet()


def reason_of(error: Exception) -> str:
    """Why a job failed, from what Spark says about it; with what to do where packages lack."""
    text = _text_of(error)
    raised = _RAISED.search(text)
    first = text.strip().partition("\n")[0] if raised is None else raised[1]
    reason = first.rpartition("most recent failure: ")[2][:_LENGTH]
    return f"{reason}. {_REMEDY}" if _LACKS.search(reason) else reason


def is_memory(error: Exception) -> bool:
    """Whether memory was what a job lacked."""
    return _OUT_OF_MEMORY.search(_text_of(error)) is not None


@contextlib.contextmanager
def told_plainly() -> Iterator[None]:
    """Say in a line, not by Spark's tracebacks, what executors lack. All else stays as it is."""
    try:
        yield
    except CerebroError:
        raise
    except Exception as error:
        reason = reason_of(error)
        if not reason.endswith(_REMEDY):
            raise
        raise WorkerError(f"executors cannot begin: {reason}.") from None


def require_cerebro(context: Any) -> None:
    """Raise unless executors have what the driver has; asks them once."""
    if context in _PROVEN:
        return
    count = default_workers(context)
    with told_plainly():
        told = context.parallelize(range(count), count).map(partial(_look, __version__)).collect()
    for problem in filter(None, told):
        raise UsageError(problem)
    _PROVEN.add(context)


def check_version(version: str) -> None:
    """On an executor: raise unless its Cerebro is of the driver's version."""
    if version != __version__:
        raise UsageError(
            f"executors must have the version of Cerebro that the driver has, which is {version}, "
            f"but {socket.gethostname()} has {__version__}. Install the same there, or set "
            "PYSPARK_PYTHON to a Python that has it."
        )


def _look(version: str, _: int) -> str | None:
    try:
        check_version(version)
    except UsageError as error:
        return str(error)
    return None


def _text_of(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return str(error if java is None else java.getMessage())
