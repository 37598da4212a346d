"""Where an experiment's workers live, and how many there are: by name, or as an object."""

from __future__ import annotations

from typing import Any, cast

from cerebro.backend.base import Backend
from cerebro.backend.inline import InlineBackend
from cerebro.backend.local import LocalBackend
from cerebro.config import arguments
from cerebro.config.machine import default_workers
from cerebro.config.resolve import BACKENDS, backend_reference, load_reference
from cerebro.errors import UsageError

_METHODS = ("start", "submit", "events", "post", "progress", "save", "release", "stop")


class BackendChoice:
    """What an experiment was told about its workers.

    Args:
        backend: A name, or a backend, which is used for one run after another.
        workers: How many; default what the backend says, else what fits the machine.
        threads: Of each worker; default what the backend says, else 1.

    >>> choice = BackendChoice("inline", workers=2)
    >>> choice.is_inline, choice.threads, choice.count("cpu")
    (True, 1, 2)
    """

    def __init__(
        self, backend: object, workers: int | None = None, threads: int | None = None
    ) -> None:
        self._class: Any = None
        self._given: Any = None
        if isinstance(backend, str):
            self.name = backend
            self._class = load_reference(backend_reference(backend), BACKENDS[backend].hint)
            if hasattr(self._class, "num_workers"):
                # It belongs to something that is there already, as a cluster is.
                self._given = self._class()
        else:
            _check(backend)
            self.name, self._given = type(backend).__name__, backend
        self.workers = arguments.optional_count("workers", workers)
        own = getattr(self._given, "threads_per_worker", 1)
        self.threads: int = own if threads is None else threads
        self.threads = arguments.count("threads_per_worker", self.threads)

    @property
    def is_inline(self) -> bool:
        """Whether visits run in the driver's own thread."""
        return self._class is InlineBackend or isinstance(self._given, InlineBackend)

    @property
    def has_gangs(self) -> bool:
        """Whether a worker can be a gang of several."""
        known = self._class or type(self._given)
        return issubclass(known, InlineBackend | LocalBackend)

    def make(self, log_dir: str) -> Backend:
        """The backend of the next run."""
        made = self._class(log_dir=log_dir) if self._given is None else self._given
        return cast(Backend, made)

    def count(self, device: str) -> int:
        """Workers of a run on this device."""
        own: int | None = getattr(self._given, "num_workers", None)
        return self.workers or own or default_workers(device, self.threads)


def _check(backend: object) -> None:
    lacking = [name for name in _METHODS if not callable(getattr(backend, name, None))]
    if isinstance(backend, type) or lacking:
        hint = f" Make one: {backend.__name__}()." if isinstance(backend, type) else ""
        raise UsageError(
            f"backend must be one of {', '.join(sorted(BACKENDS))}, or an object such as "
            f"SparkBackend(), but got {backend!r:.200}.{hint}"
        )
