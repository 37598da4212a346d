"""Visits as tasks of Apache Spark; states hop through the run's store."""

from __future__ import annotations

import os
import queue
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cerebro.backend.base import (
    Event,
    Job,
    Opening,
    Posted,
    SaveRequest,
    Setup,
    Source,
    StateRef,
)
from cerebro.backend.limits import Limits, positive
from cerebro.backend.opening import pack, store_of, travelling_environment
from cerebro.backend.spark.context import (
    check_alive,
    cores_per_task,
    default_workers,
    find_context,
)
from cerebro.backend.spark.crew import Crew
from cerebro.backend.spark.hops import sweep
from cerebro.backend.spark.orders import Charter
from cerebro.backend.spark.prepare import Prepared, prepare
from cerebro.backend.spark.wire import encode
from cerebro.backend.spark.wish import Wish
from cerebro.backend.spark.worker import Session, Told
from cerebro.data import open_dataset
from cerebro.errors import UsageError
from cerebro.storage import PrefixStore, open_store
from cerebro.storage.checkpoint import CheckpointRef, adopt
from cerebro.train.visit import VisitCall
from cerebro.version import __version__

#: Arguments of earlier versions, and what to do instead.
_DROPPED: Mapping[str, str] = {
    "data_readers_pool_type": "shards are mapped into memory: there are no readers",
    "num_data_readers": "shards are mapped into memory: there are no readers",
    "nics": "all goes through Spark's own channels: set spark.driver.host and "
    "spark.driver.bindAddress",
    "verbose": "the searches and run_fit show progress",
}
_DROPPED_OF_DATA: Mapping[str, str] = {
    "parquet_row_group_size_mb": "prepared data are not Parquet",
}


class SparkBackend:
    """Each visit is a Spark job with one task, run from a thread of the driver for each worker.

    Spark places the tasks, near the place where their worker was before, runs them again if an
    executor is lost, and deals out GPUs (`spark.task.resource.gpu.amount`). The context is yours
    and is never stopped. Executors must see the store and the dataset as the driver does, and have
    Cerebro installed.

    Args:
        spark_context: A SparkContext or SparkSession; default the active one.
        num_workers: How many visits run at once; default as many as Spark runs tasks at once.
        start_timeout: Seconds in which the first worker must be ready; default 300.
        disk_cache_size_gb: What copies of shards that are kept at a URL may take on each machine.
        limits: When a visit is taken for hung; default to those of the environment.

    >>> SparkBackend(nics=["eth0"])
    Traceback (most recent call last):
    cerebro.errors.UsageError: SparkBackend has no nics any more: all goes through Spark's own \
channels: set spark.driver.host and spark.driver.bindAddress. Leave it out.
    """

    #: A task that is cancelled may go on for a while, and write its state.
    ends_visits = False

    def __init__(
        self,
        spark_context: object = None,
        num_workers: int | None = None,
        start_timeout: float | None = None,
        disk_cache_size_gb: float = 10,
        *,
        limits: Limits | None = None,
        **dropped: object,
    ) -> None:
        _refuse("SparkBackend", dropped, _DROPPED)
        if num_workers is not None and (type(num_workers) is not int or num_workers < 1):
            raise UsageError(f"`num_workers >= 1` must hold, but got num_workers={num_workers!r}.")
        self.context = find_context(spark_context)
        self._num_workers = num_workers
        self._limits = limits or Limits.from_environment()
        if start_timeout is not None:
            start_s = positive("start_timeout", start_timeout)
            self._limits = replace(self._limits, start_s=start_s)
        self._cache_bytes = int(positive("disk_cache_size_gb", disk_cache_size_gb) * 1e9)
        self._queue: queue.SimpleQueue[Told | Posted] = queue.SimpleQueue()
        self._crew: Crew | None = None

    @property
    def num_workers(self) -> int:
        """Visits that run at once."""
        return self._num_workers or default_workers(self.context)

    @property
    def threads_per_worker(self) -> int:
        """Cores of a task: `spark.task.cpus`."""
        return cores_per_task(self.context)

    def prepare_data(
        self,
        store: PrefixStore | str | os.PathLike[str],
        df: Any,
        validation: float | str | None = None,
        num_partitions: int | None = None,
        feature_columns: Sequence[str] | None = None,
        label_columns: Sequence[str] | None = None,
        compress_sparse: bool = False,
        seed: int = 0,
        *,
        feature_column: str | None = None,
        label_column: str | None = None,
        dataset_idx: int | None = None,
        **dropped: object,
    ) -> Prepared:
        """Write a DataFrame as shards, in parallel on the executors, every row once.

        Rows are dealt out to shards at random, the same for the same seed and partitions of the
        DataFrame. Whoever reads finds what was there before or what is new, nothing in between;
        later applications use it without another call. Of several calls for one place at a time one
        writes, the others are refused. Numbers, booleans, strings, binaries, arrays
        of numbers and ML vectors can be stored; decimals become float64.

        Args:
            store: Where to: the train path of an estimator's store, or a directory or URL. It holds
                all splits.
            df: The rows. A value must be there in every column of every row.
            validation: Rows to hold out: a fraction in [0, 1), or the name of a column that is true
                or above 0 for them, and is not stored. None or 0: none.
            num_partitions: Train shards; default 2 to 8, by nothing but the number of rows.
            feature_columns: Columns to store, with those of labels; default all.
            compress_sparse: Store columns of sparse vectors as sparse rows; else they become dense.
                A column in which any vector is dense becomes dense in any case.
            seed: Decides which rows are held out and which shard each row is in.
            feature_column: One name in place of `feature_columns`.
            label_column: One name in place of `label_columns`.
            dataset_idx: Another dataset beside the first one of the store.

        Returns:
            Train rows, validation rows, what each column is (`Prepared`), mean bytes of a row.
        """
        _refuse("prepare_data", dropped, _DROPPED_OF_DATA)
        check_alive(self.context)
        path = (
            store if not isinstance(store, PrefixStore) else store.get_train_data_path(dataset_idx)
        )
        wish = Wish.check(
            df,
            validation=validation,
            shards=num_partitions,
            features=_either("feature_column", feature_column, feature_columns),
            labels=_either("label_column", label_column, label_columns),
            sparse=compress_sparse,
            seed=seed,
        )
        return prepare(self.context, open_store(path), wish)

    def start(self, setup: Opening, workers: int) -> None:
        check_alive(self.context)
        if self._crew is not None:
            raise UsageError("a SparkBackend carries one run at a time. Make another for this one.")
        if setup.threads > self.threads_per_worker:
            raise UsageError(
                f"a task must have a core for each of its threads, but threads_per_worker="
                f"{setup.threads} and spark.task.cpus={self.threads_per_worker}. Make them equal."
            )
        opening = pack(setup)
        if isinstance(setup, Setup):
            open_dataset(setup.data)
        charter = Charter(
            token=secrets.token_hex(8),
            version=__version__,
            opening=opening,
            store=store_of(setup),
            limits=self._limits,
            environment=travelling_environment(),
            cache_bytes=self._cache_bytes,
        )
        if charter.store is not None:
            sweep(charter.store)
            charter.store.write(charter.probe, charter.token.encode())
        broadcast = self.context.broadcast(encode(charter))
        session = Session(
            context=self.context, charter=charter, broadcast=broadcast, tell=self._queue.put
        )
        self._crew = Crew(session, workers)

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
        return self._started.wait(self._queue)

    def post(self, payload: object) -> None:
        self._queue.put(Posted(payload))

    def progress(self) -> int:
        return 0 if self._crew is None else self._crew.batches

    def save(self, state: StateRef, request: SaveRequest) -> CheckpointRef:
        hop = self._started.hop(state)
        return adopt(
            request.store,
            request.unit,
            visits=request.visits,
            attempt=request.attempt,
            source=hop.path,
            sha256=hop.sha256,
            size=hop.bytes,
            meta=hop.meta,
            parent=request.parent,
        )

    def release(self, state: StateRef) -> None:
        self._started.release(state)

    def stop(self) -> None:
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.stop()
            self._queue = queue.SimpleQueue()

    @property
    def _started(self) -> Crew:
        assert self._crew is not None, "start() comes first"  # noqa: S101
        return self._crew


def _refuse(what: str, given: Mapping[str, object], dropped: Mapping[str, str]) -> None:
    for name in given:
        hint = dropped.get(name)
        if hint is None:
            raise TypeError(f"{what} has no argument {name!r}.")
        raise UsageError(f"{what} has no {name} any more: {hint}. Leave it out.")


def _either(
    name: str, one: str | None, several: Sequence[str] | str | None
) -> tuple[str, ...] | None:
    """Columns that are named one way or the other."""
    if one is not None and several is not None:
        raise UsageError(f"give either {name} or {name}s, not both.")
    names = several if one is None else one
    if names is None:
        return None
    return (names,) if isinstance(names, str) else tuple(names)
