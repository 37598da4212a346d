"""Test and predict: every shard of a split once, for all models, then one result.

What is asked for has a digest. Workers leave a part for each shard, which carries it; killed and
asked again, parts that are whole are kept. The result is written when all parts are there.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from cerebro.backend.base import Backend
from cerebro.data import Dataset, open_dataset
from cerebro.data.predictions import csv_chunks, parquet_chunks
from cerebro.data.roles import is_label
from cerebro.errors import CerebroError, DataError, TrialError, UsageError, WorkerError
from cerebro.run.aggregation import AggregationFailed, Aggregator
from cerebro.run.devices import count_devices
from cerebro.run.jobs import carry_out
from cerebro.storage import Store
from cerebro.storage.lock import RunLock
from cerebro.storage.store import is_temp
from cerebro.task import Task
from cerebro.train.identity import describe_task, exact_digest
from cerebro.train.runner import import_task
from cerebro.train.score.calls import Member, MemberScore, ScoreMode
from cerebro.train.score.parts import (
    Part,
    clear_parts,
    number_from_json,
    number_to_json,
    read_part,
    read_predictions,
)
from cerebro.train.score.runner import ScoreSetup, ScoreShard
from cerebro.train.visit import Batches
from cerebro.types import Json, Metrics, Split

logger = logging.getLogger("cerebro.run")

FORMAT = 1
RESULT = "result.json"
CSV = "predictions.csv"
PARQUET = "predictions.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """What is to be tested or predicted, by which models, and where."""

    mode: ScoreMode
    task: Task | str
    members: tuple[Member, ...]
    data: str
    split: Split
    batch_size: int | None
    workers: int
    device: str = "auto"
    threads: int = 1
    #: Do it again, though it was done before.
    fresh: bool = False

    def digest(self, dataset: Dataset) -> str:
        """SHA-256 of all that decides the result; "" if what the task does cannot be known."""
        task = import_task(self.task) if isinstance(self.task, str) else self.task
        name, code = describe_task(task)[0], exact_digest(task)
        if not code:
            return ""
        body: dict[str, object] = {
            "format": FORMAT,
            "mode": str(self.mode),
            "task": [name.rpartition(":")[2], code],
            "data": dataset.digest,
            "split": str(self.split),
            "batch_size": self.batch_size,
            "members": [[m.name, dict(m.params), m.weights.digest] for m in self.members],
        }
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What came of a request."""

    rows: int
    #: Of a test: metrics by model.
    metrics: Mapping[str, Metrics]
    seconds: float
    #: Nothing was computed: it was all there.
    is_repeated: bool = False


def score(
    request: ScoreRequest,
    *,
    store: Store,
    backend: Backend,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Scored:
    """Carry out a request; what comes of it lies in `store`.

    Args:
        progress: Called with the rows that are done, and with all.
    """
    began = time.perf_counter()
    dataset = open_dataset(request.data)
    _check_split(dataset, request)
    digest = request.digest(dataset)
    with RunLock(store):
        known = None if request.fresh or not digest else _read_result(store, digest)
        if known is not None:
            clear_parts(store)
            return known
        if request.fresh or not digest:
            clear_parts(store)
        _sweep(store)
        work = _Work(request, dataset, digest or f"once {time.time_ns()}", store, progress)
        try:
            parts = work.carry_out(backend)
        except WorkerError as error:
            _explain_labels(dataset, request, error)
            raise
        metrics = _combine(request, parts, store)
        rows = sum(part.rows for part in parts)
        _write_result(store, request, digest, rows, metrics)
        clear_parts(store)
    return Scored(rows=rows, metrics=metrics, seconds=time.perf_counter() - began)


class _Work:
    """The shards of a request, those that are done and those to do."""

    def __init__(
        self,
        request: ScoreRequest,
        dataset: Dataset,
        digest: str,
        store: Store,
        progress: Callable[[int, int], None],
    ) -> None:
        self._request = request
        self._digest = digest
        self._dataset = dataset
        self._store = store
        self._progress = progress
        self._rows = [info.rows for info in dataset.shards(request.split)]
        self._parts: dict[int, Part] = {}

    def carry_out(self, backend: Backend) -> list[Part]:
        for shard in range(len(self._rows)):
            part = read_part(self._store, shard, request=self._digest)
            if part is not None:
                self._parts[shard] = part
        jobs = [
            ScoreShard(shard=shard, rows=rows)
            for shard, rows in enumerate(self._rows)
            if shard not in self._parts
        ]
        if self._parts:
            logger.info("%d of %d shards were done before", len(self._parts), len(self._rows))
        self._tell()
        workers = max(1, min(self._request.workers, len(jobs)))
        carry_out(jobs, backend, self._setup(workers), workers=workers, done=self._done)
        return [self._parts[shard] for shard in range(len(self._rows))]

    def _setup(self, workers: int) -> ScoreSetup:
        request = self._request
        kind = "cpu" if request.device == "cpu" else "cuda"
        devices = count_devices(kind, request.device)
        return ScoreSetup(
            task=request.task,
            data=request.data,
            data_digest=self._dataset.digest,
            split=request.split,
            mode=request.mode,
            members=request.members,
            batch_size=request.batch_size,
            request=self._digest,
            out=self._store,
            device=request.device,
            threads=request.threads,
            sharers=-(-workers // devices),
        )

    def _done(self, job: ScoreShard, answer: object) -> None:
        self._parts[job.shard] = cast(Part, answer)
        self._tell()

    def _tell(self) -> None:
        self._progress(sum(part.rows for part in self._parts.values()), sum(self._rows))


def _check_split(dataset: Dataset, request: ScoreRequest) -> None:
    if dataset.shards(request.split):
        return
    there = ", ".join(dataset.splits)
    verb = "test" if request.mode is ScoreMode.TEST else "predict"
    raise DataError(
        f"to {verb}, the dataset must have a {request.split} split, but {dataset.path} has only: "
        f"{there}. Prepare it with {request.split}=..., or name another with split=."
    )


def _explain_labels(dataset: Dataset, request: ScoreRequest, error: WorkerError) -> None:
    """Say so where a test failed on rows without the labels that others have."""
    if request.mode is not ScoreMode.TEST:
        return
    names = {each: set(dataset.schema_of(each)) for each in dataset.splits}
    for other, columns in names.items():
        missing = sorted(filter(is_label, columns - names[request.split]))
        if missing:
            raise DataError(
                f"to test, rows must have labels, but the {request.split} split has no "
                f"{', '.join(map(repr, missing))}, as the {other} split has: name another split "
                f"with split=, or use run_predict. It failed with {error}"
            ) from error


def _combine(request: ScoreRequest, parts: Sequence[Part], store: Store) -> dict[str, Metrics]:
    if request.mode is ScoreMode.PREDICT:
        store.write_stream(CSV, csv_chunks(_contents(store, parts)))
        store.write_stream(PARQUET, parquet_chunks(_contents(store, parts)))
        return {}
    return {
        member.name: _metrics(request, member, [part.members[number] for part in parts])
        for number, member in enumerate(request.members)
    }


def _contents(store: Store, parts: Sequence[Part]) -> Iterator[bytes]:
    for part in parts:
        yield read_predictions(store, part)


def _metrics(request: ScoreRequest, member: Member, found: Sequence[MemberScore]) -> Metrics:
    """Exact means over all rows, or what the spec makes of the metrics of all batches."""
    batches = [each.batches for each in found if each.batches is not None]
    if batches:
        return _aggregated(request, member, batches)
    names = list(dict.fromkeys(name for each in found for name in each.sums))
    metrics: dict[str, float] = {}
    for name in names:
        pairs = [each.sums[name] for each in found if name in each.sums]
        totals = [total for total, _ in pairs]
        total = math.fsum(totals) if all(map(math.isfinite, totals)) else sum(totals)
        metrics[name] = total / sum(rows for _, rows in pairs)
    return metrics


def _aggregated(request: ScoreRequest, member: Member, batches: Sequence[Batches]) -> Metrics:
    try:
        return Aggregator(request.task).plain("test", member.params, batches)
    except AggregationFailed as error:
        if isinstance(error.__cause__, CerebroError):
            raise error.__cause__ from None
        failure = error.failure
        raise TrialError(
            f"metrics_agg must make metrics of those of all batches, but for {member.name}: "
            f"{failure.message}\n{failure.traceback}"
        ) from error.__cause__


def _write_result(
    store: Store, request: ScoreRequest, digest: str, rows: int, metrics: dict[str, Metrics]
) -> None:
    body: dict[str, Json] = {
        "format": FORMAT,
        "request": digest,
        "mode": str(request.mode),
        "split": str(request.split),
        "rows": rows,
        "models": {
            m.name: {"params": dict(m.params), **_told(metrics, m)} for m in request.members
        },
    }
    if request.mode is ScoreMode.PREDICT:
        body["files"] = {name: store.size(name) for name in (CSV, PARQUET)}
    store.write(RESULT, json.dumps(body, indent=1).encode() + b"\n")


def _told(metrics: Mapping[str, Metrics], member: Member) -> dict[str, Json]:
    found = metrics.get(member.name)
    if found is None:
        return {}
    return {"metrics": {name: number_to_json(value) for name, value in found.items()}}


def _read_result(store: Store, digest: str) -> Scored | None:
    """What was found before; None if it is not there, or is the answer to something else."""
    if not store.exists(RESULT):
        return None
    began = time.perf_counter()
    try:
        body = json.loads(store.read(RESULT))
        if body["format"] != FORMAT or body["request"] != digest:
            return None
        for name, size in body.get("files", {}).items():
            if not store.exists(name) or store.size(name) != size:
                return None
        metrics = {
            name: {key: number_from_json(value) for key, value in model["metrics"].items()}
            for name, model in body["models"].items()
            if "metrics" in model
        }
        rows = int(body["rows"])
    except (ValueError, TypeError, AttributeError, KeyError, UsageError):
        return None
    seconds = time.perf_counter() - began
    return Scored(rows=rows, metrics=metrics, seconds=seconds, is_repeated=True)


def _sweep(store: Store) -> None:
    """Remove what killed writers left half written; among parts, `clear_parts` does so."""
    for name in store.list():
        if is_temp(name):
            store.remove(name)
