"""Where an experiment's workers live, and how many there are: by name, or as an object."""

from __future__ import annotations

import os
from typing import Any, cast

from cerebro.backend.base import Backend
from cerebro.backend.gang.machines import count_machines
from cerebro.backend.gang.rendezvous import Kind, Rendezvous, find_lone_launcher
from cerebro.backend.inline import InlineBackend
from cerebro.config import arguments
from cerebro.config.machine import default_workers
from cerebro.config.resolve import BACKENDS, backend_reference, load_reference, split_backend
from cerebro.errors import UsageError
from cerebro.run.devices import count_gpus
from cerebro.search.allowance import Allowance, allowance_of

_METHODS = ("start", "submit", "events", "post", "progress", "save", "release", "stop")


class BackendChoice:
    """What an experiment was told about its workers.

    Args:
        backend: A name, or a backend, which is used for one run after another.
        workers: How many; default what the backend says, else what fits the machine.
        threads: Of each worker; default what the backend says, else 1.
        requirements: A file of packages that workers on other machines need.

    >>> choice = BackendChoice("inline", workers=2)
    >>> choice.is_inline, choice.threads, choice.count("cpu")
    (True, 1, 2)
    """

    def __init__(
        self,
        backend: object,
        workers: int | None = None,
        threads: int | None = None,
        requirements: str | os.PathLike[str] | None = None,
    ) -> None:
        self._class: Any = None
        self._given: Any = None
        self.workers = arguments.optional_count("workers", workers)
        if isinstance(backend, str):
            reference = backend_reference(backend)
            self.name, address = split_backend(backend)
            self._class = load_reference(reference, BACKENDS[self.name].hint)
            if hasattr(self._class, "num_workers"):
                # It belongs to something that is there already, as a cluster is.
                where = {} if address is None else {"address": address}
                self._given = self._class(num_workers=self.workers, **where)
        else:
            _check(backend)
            self.name, self._given = type(backend).__name__, backend
        if requirements is not None and hasattr(self._given, "requirements"):
            self._given.requirements = os.path.abspath(requirements)
        own = getattr(self._given, "threads_per_worker", 1)
        self.threads: int = own if threads is None else threads
        self.threads = arguments.count("threads_per_worker", self.threads)
        if hasattr(self._given, "threads"):
            # How many workers there is room for depends on it.
            self._given.threads = self.threads

    @property
    def is_inline(self) -> bool:
        """Whether visits run in the driver's own thread."""
        return self._class is InlineBackend or isinstance(self._given, InlineBackend)

    @property
    def has_gangs(self) -> bool:
        """Whether a worker can be a gang of several."""
        return bool(getattr(self._class or self._given, "has_gangs", False))

    @property
    def is_here(self) -> bool:
        """Whether all workers are on this machine, for certain."""
        # Of the class: to ask a cluster for its machines is for those who need to know.
        return not hasattr(self._class or type(self._given), "workers_per_host")

    def make(self, log_dir: str) -> Backend:
        """The backend of the next run."""
        if self._given is None:
            return cast(Backend, self._class(log_dir=log_dir))
        if hasattr(self._given, "log_dir"):
            self._given.log_dir = log_dir
        return cast(Backend, self._given)

    def count(self, device: str) -> int:
        """Workers of a run on this device."""
        own: int | None = getattr(self._given, "num_workers", None)
        return self.workers or own or default_workers(device, self.threads)

    def count_on_host(self, device: str) -> int:
        """Workers of a run on each of its machines."""
        every = self.count(device)
        own: int | None = getattr(self._given, "workers_per_host", None)
        return every if own is None else min(own, every)

    def find_lone_launcher(self, spot: Rendezvous | None) -> Kind | None:
        """Who has started this process as the only rank, where nobody says how many workers."""
        is_open = spot is None and self.workers is None and self.is_here and self.has_gangs
        return find_lone_launcher(os.environ) if is_open else None

    def check_goal(
        self, goal: object, device: str, spot: Rendezvous | None, framework: str = ""
    ) -> None:
        """Raise UsageError where a run would use what its goal does not allow.

        Args:
            device: That of the workers, as it was asked for.
            spot: The place of this process among others.
            framework: What the task is trained with.
        """
        allowed = allowance_of(goal)
        if allowed.devices is not None:
            self._check_device(allowed, device, framework)
        if allowed.max_nodes is not None:
            allowed.check_nodes(count_machines(os.environ, spot))
            allowed.check_nodes(self._count_machines(device), "the number of workers")

    def _check_device(self, allowed: Allowance, device: str, framework: str) -> None:
        is_cluster = hasattr(self._class or type(self._given), "num_workers")
        if device != "auto":
            allowed.check_device(device)
        elif is_cluster or framework == "keras":
            who = "each machine of a cluster" if is_cluster else "the backend of Keras"
            raise UsageError(
                f"the goal allows {allowed.devices} only, but got device='auto', which {who} "
                f"decides for itself. Set device to {allowed.devices!r}."
            )
        else:
            note = ", which device='auto' is on this machine"
            allowed.check_device("cuda" if count_gpus() else "cpu", note=note)

    def _count_machines(self, device: str) -> int:
        """The most that workers are on when a run starts, where the backend knows of several."""
        hosts: int | None = getattr(self._given, "num_hosts", None)
        return 1 if hosts is None else min(hosts, self.count(device))


def _check(backend: object) -> None:
    lacking = [name for name in _METHODS if not callable(getattr(backend, name, None))]
    if isinstance(backend, type) or lacking:
        hint = f" Make one: {backend.__name__}()." if isinstance(backend, type) else ""
        raise UsageError(
            f"backend must be one of {', '.join(sorted(BACKENDS))}, or an object such as "
            f"RayBackend(), but got {backend!r:.200}.{hint}"
        )
