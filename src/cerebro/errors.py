"""Every exception Cerebro raises on purpose.

::

    CerebroError
    ├── UsageError (ValueError)          the request cannot be carried out as written: exit code 2
    │   ├── ConfigError                  an experiment file is wrong (file and line in the message)
    │   ├── MissingDependencyError       an optional package is needed (ImportError)
    │   ├── UnknownParamError            a task asks for a param that the trial lacks (KeyError)
    │   ├── RunLockedError               another driver is writing this run
    │   └── ResumeMismatchError          what changed since the run began would change its results
    ├── DataError                        a dataset or its source is wrong
    │   └── ShardCorruptError            a shard's bytes do not match its manifest
    ├── StoreError (OSError)             reading or writing the store failed
    │   ├── DiskFullError                no space left; nothing committed was harmed: exit code 75
    │   ├── CheckpointCorruptError       a checkpoint's bytes do not match its manifest
    │   ├── JournalCorruptError          a journal record before the tail is damaged
    │   ├── RunCorruptError              run.json is damaged
    │   └── LeaseLostError               another driver wrote this run's journal
    ├── TrialError                       one trial failed; the run goes on
    ├── WorkerError                      workers cannot start or keep dying
    ├── StateLostError                   a state is gone with the machine that had it
    ├── ReplicaError                     ranks of a gang do not train the same model
    └── RunInterrupted                   stopped by the user, state saved: exit code 130

Messages say what must hold, what was got, where, and what to do.
"""

from __future__ import annotations


class CerebroError(Exception):
    """Root of all errors raised by Cerebro.

    >>> issubclass(UsageError, CerebroError)
    True
    """

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the message says what happened, and where; our frames do not."""
        return [f"{type(self).__name__}: {self}"]


class UsageError(CerebroError, ValueError):
    """The request cannot be carried out as written."""

    exit_code = 2


class ConfigError(UsageError):
    """An experiment file or an override is wrong."""


class MissingDependencyError(UsageError, ImportError):
    """An optional package is needed and not installed."""


class UnknownParamError(UsageError, KeyError):
    """A task asks for a param that its trial does not have."""

    # KeyError shows the repr of its argument, which garbles a sentence.
    __str__ = Exception.__str__


class RunLockedError(UsageError):
    """Another driver is writing this run."""


class ResumeMismatchError(UsageError):
    """Something that decides the results changed since the run began."""


class DataError(CerebroError):
    """A dataset, or the source it is made from, is wrong."""

    exit_code = 2


class ShardCorruptError(DataError):
    """The bytes of a shard do not match its manifest."""

    exit_code = 1


class StoreError(CerebroError, OSError):
    """The store could not be read or written."""

    def __reduce__(self) -> tuple[object, ...]:
        # An OSError would lose its number on the way to another process.
        return _numbered, (type(self), self.args, self.errno), self.__dict__ or None


class DiskFullError(StoreError):
    """No space is left on the store. What was committed is intact."""

    exit_code = 75


class CheckpointCorruptError(StoreError):
    """The bytes of a checkpoint do not match its manifest."""


class JournalCorruptError(StoreError):
    """A journal record before the tail is damaged."""


class RunCorruptError(StoreError):
    """run.json does not match its own digest."""


class LeaseLostError(StoreError):
    """Another driver has written to this run's journal."""

    exit_code = 2


class TrialError(CerebroError):
    """One trial failed."""


class WorkerError(CerebroError):
    """Workers could not be started, or keep dying."""


class StateLostError(CerebroError):
    """A state in memory is gone, with the machine that had it; what is durable is not."""


class ReplicaError(CerebroError):
    """The ranks of a gang, which must train one model, do not."""


class RunInterrupted(CerebroError):
    """The run was stopped on request; its state is saved and the same command resumes it."""

    exit_code = 130


def _numbered(kind: type[StoreError], args: tuple[object, ...], errno: int | None) -> StoreError:
    error = kind(*args)
    error.errno = errno
    return error
