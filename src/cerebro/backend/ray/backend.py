"""Visits as calls of Ray's actors; states hop as references to objects of its store."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import secrets
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cerebro.backend.base import Event, Job, Opening, Posted, SaveRequest, Setup, Source, StateRef
from cerebro.backend.limits import START, Limits, positive
from cerebro.backend.opening import pack, save_state, store_of, travelling_environment
from cerebro.backend.ray.arrival import this_machine
from cerebro.backend.ray.cluster import Cluster, check_resources
from cerebro.backend.ray.connection import Wish, find_address, load_ray
from cerebro.backend.ray.crew import Crew
from cerebro.backend.ray.objects import Held, as_bytes
from cerebro.backend.ray.orders import Charter, Commit
from cerebro.backend.ray.places import can_be_relayed, places_of
from cerebro.backend.ray.trouble import has_lost_actor, has_lost_state
from cerebro.backend.ray.worker import RayWorker
from cerebro.data import open_dataset
from cerebro.errors import CerebroError, DiskFullError, StateLostError, StoreError, UsageError
from cerebro.storage.checkpoint import CheckpointRef, sweep
from cerebro.train.visit import VisitCall

logger = logging.getLogger("cerebro.backend")

#: What a store says to a node that will never write there; all else may pass.
_NOT_HERE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT)
#: Files by which nodes tell whether they see the store.
_PROBE = ".probe-"


class RayBackend:
    """One actor for each worker, placed by Ray over its nodes.

    A state stays in the object store of the node where it was made until the next visit asks for
    it; the driver only has references. Where the store is seen by the nodes, checkpoints are
    written by them. Workers may come and go during a run: as many as were asked for are used as
    soon as Ray finds room for them, and without a number any room that there ever is.

    Args:
        address: Of a cluster ("host:port", "ray://host:port", or "auto" for that of this machine);
            default that of `ray.init`, if it was called, of RAY_ADDRESS, or one that is started on
            this machine and ends with the run.
        num_workers: How many visits run at once; default as many as Ray has room for.
        resources_per_worker: What each gets, as {"CPU": 2, "GPU": 1, "big": 1}; default a core for
            each of its threads, and a GPU where there are any.
        max_workers: Without `num_workers`, no more than that, however much room there is.
        runtime_env: How Ray sets up the workers' processes. Where the address is that of a cluster,
            this version of Cerebro and the modules of the working directory are added to it.
        placement_group: One of Ray's, that the workers are placed in.
        disk_cache_size_gb: What copies of shards may take on each machine.
        limits: When a visit is taken for hung; default to those of the environment.

    A gang (`parallel="ddp"` or "hybrid") has the resources of a worker for each of its ranks, on
    as few machines as Ray finds room on.

    >>> RayBackend(num_workers=0)
    Traceback (most recent call last):
    cerebro.errors.UsageError: `num_workers >= 1` must hold, but got num_workers=0.
    """

    #: A worker may be a gang of several.
    has_gangs = True
    ends_visits = True

    def __init__(
        self,
        address: str | None = None,
        num_workers: int | None = None,
        resources_per_worker: Mapping[str, float] | None = None,
        *,
        max_workers: int | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        placement_group: Any = None,
        disk_cache_size_gb: float = 10,
        limits: Limits | None = None,
    ) -> None:
        self._num_workers = _count("num_workers", num_workers)
        self._max_workers = _count("max_workers", max_workers)
        self._wish = Wish(
            address=address,
            resources=check_resources(resources_per_worker),
            runtime_env=runtime_env,
            placement_group=placement_group,
        )
        load_ray()
        self._limits = limits or Limits.from_environment()
        self._cache_bytes = int(positive("disk_cache_size_gb", disk_cache_size_gb) * 1e9)
        #: A file of packages for other machines to install.
        self.requirements: str | None = None
        #: Where the output of workers on this machine goes; default to Ray's own logs.
        self.log_dir: str | None = None
        #: Of each worker, where `resources_per_worker` says nothing about cores.
        self.threads = 1
        #: What `num_workers` said, where it was Ray's to say.
        self._offered: int | None = None
        self._cluster: Cluster | None = None
        self._crew: Crew | None = None
        #: What was posted and not yet handed over.
        self._early: deque[object] = deque()

    @property
    def num_workers(self) -> int | None:
        """Visits that run at once; None where Ray is yet to be started, for as many as asked."""
        if self._num_workers is not None:
            return self._num_workers
        if not self._is_there:
            return None
        found = max(1, self._connect().places)
        self._offered = found if self._max_workers is None else min(found, self._max_workers)
        return self._offered

    @property
    def workers_per_host(self) -> int | None:
        """Workers on each machine; None where Ray is yet to be started on this one."""
        return self._connect().places_per_node if self._is_there else None

    @property
    def num_hosts(self) -> int | None:
        """Nodes that have room for a worker by now; None where Ray is yet to be started."""
        return self._connect().hosts if self._is_there else None

    @property
    def threads_per_worker(self) -> int:
        """Cores of a worker, at least one."""
        return max(1, int(self._wish.resources.get("CPU", 1)))

    def start(self, setup: Opening, workers: int) -> None:
        if self._crew is not None:
            raise UsageError("a RayBackend carries one run at a time. Make another for this one.")
        if self._wish.resources and setup.threads > self.threads_per_worker:
            raise UsageError(
                f"a worker must have a core for each of its threads, but threads_per_worker="
                f"{setup.threads} and resources_per_worker has CPU={self.threads_per_worker}. "
                "Make them equal."
            )
        opening = pack(setup)
        if isinstance(setup, Setup):
            open_dataset(setup.data)
        token = secrets.token_hex(8)
        probe, store = f"{_PROBE}{token}", store_of(setup)
        gang = setup.gang if isinstance(setup, Setup) else None
        charter = Charter(
            opening=opening,
            threads=setup.threads,
            limits=self._limits,
            places=places_of(setup, probe, token.encode()),
            environment=self._environment(),
            cache_bytes=self._cache_bytes,
            machine=this_machine(),
            paths=tuple(os.path.abspath(path) for path in sys.path),
            log_dir=self.log_dir,
            is_relayable=can_be_relayed(setup),
            gang=gang,
        )
        ranks = 1 if gang is None else gang.size
        cluster = self._connect(workers * ranks, setup.threads)
        if not self._wish.resources:
            cluster.needs = cluster.usual_needs(setup.threads, getattr(setup, "device", "cpu"))
        self._probe = (store, probe)
        if store is not None:
            for name in store.list():
                # Left by a driver that was killed.
                if name.startswith(_PROBE):
                    store.remove(name)
            store.write(probe, token.encode())
        self._crew = Crew(cluster, charter, workers, self._most(workers, ranks))
        self._hand_over()

    def submit(
        self,
        worker: int,
        call: VisitCall | Job,
        source: Source,
        *,
        consume: bool = False,
    ) -> None:
        self._started.submit(worker, call, source, consume=consume)

    def events(self) -> list[Event]:
        return self._started.wait()

    def post(self, payload: object) -> None:
        # Kept until there is somebody to hear it: to start Ray takes seconds.
        self._early.append(payload)
        self._hand_over()

    def progress(self) -> int:
        return 0 if self._crew is None else self._crew.batches

    def save(self, state: StateRef, request: SaveRequest) -> CheckpointRef:
        crew = self._started
        held = crew.held(state)
        # Only whoever has the run may write.
        guard = getattr(request.store, "guard", None)
        if guard is not None:
            guard()
        commit = Commit(
            store=request.store.url,
            unit=request.unit,
            visits=request.visits,
            attempt=request.attempt,
            parent=request.parent,
            state=held.in_store,
        )
        for member, saving in crew.savings(held, commit):
            try:
                found: CheckpointRef | CerebroError = crew.fetch(saving)
            except Exception as error:
                if has_lost_actor(error):
                    # It may have begun to write.
                    with contextlib.suppress(StoreError):
                        sweep(request.store, request.unit)
                    continue
                raise _explained(error, request) from error
            if isinstance(found, DiskFullError):
                raise found
            if isinstance(found, CerebroError):
                if member is not None and getattr(found, "errno", None) in _NOT_HERE:
                    member.sees_store = False
                    logger.warning("worker %d saves no more states: %s", member.index, found)
                continue
            return found
        return self._save_here(crew, held, state, request)

    def release(self, state: StateRef) -> None:
        self._started.release(state)

    def stop(self) -> None:
        crew, self._crew = self._crew, None
        cluster, self._cluster = self._cluster, None
        self._early.clear()
        try:
            if crew is not None:
                crew.stop()
                store, probe = self._probe
                if store is not None:
                    # The next start would remove it.
                    with contextlib.suppress(StoreError):
                        store.remove(probe)
        finally:
            if cluster is not None:
                cluster.close()

    def _hand_over(self) -> None:
        crew = self._crew
        with contextlib.suppress(IndexError):
            while crew is not None:
                crew.post(Posted(self._early.popleft()))

    @property
    def _started(self) -> Crew:
        assert self._crew is not None, "start() comes first"  # noqa: S101
        return self._crew

    @property
    def _is_there(self) -> bool:
        return bool(find_address(self._wish.address)) or load_ray().is_initialized()

    def _connect(self, workers: int = 1, threads: int = 1) -> Cluster:
        if self._cluster is None:
            wish = replace(self._wish, requirements=self.requirements)
            self._cluster = Cluster(wish, RayWorker, workers, threads)
        if self._crew is None and not self._wish.resources:
            self._cluster.needs = self._cluster.usual_needs(self.threads)
        return self._cluster

    def _environment(self) -> dict[str, str]:
        """Variables that decide what workers compute, and how long they wait for each other."""
        return {**travelling_environment(), START: f"{self._limits.start_s:g}"}

    def _most(self, workers: int, ranks: int) -> float:
        """How many workers there may be in the end, of so many ranks each."""
        is_group = ranks > 1 and (workers == 1 or self._wish.placement_group is not None)
        if self._offered is None or workers != self._offered // ranks or is_group:
            # Somebody has said how many, or has given all that there is to one.
            return workers
        most = math.inf if self._max_workers is None else self._max_workers // ranks
        return max(workers, most)

    def _save_here(
        self, crew: Crew, held: Held, state: StateRef, request: SaveRequest
    ) -> CheckpointRef:
        """Where no node sees the store: the state comes to the driver."""
        try:
            content = crew.fetch(held.ref)
        except Exception as error:
            raise _explained(error, request) from error
        return save_state(as_bytes(content, held.bytes), state, request)


def _explained(error: Exception, request: SaveRequest) -> Exception:
    if not has_lost_state(error):
        return error
    return StateLostError(
        f"the state of unit {request.unit} after {request.visits} visits must be there to be "
        "saved, but is gone with the node that had it."
    )


def _count(name: str, value: object) -> int | None:
    if value is None or (type(value) is int and value >= 1):
        return value
    raise UsageError(f"`{name} >= 1` must hold, but got {name}={value!r}.")
