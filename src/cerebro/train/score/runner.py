"""Scores shards on a worker: several models see each batch, which is read and decoded once."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from cerebro.data import open_dataset
from cerebro.data.predictions import encode_part, row_ids
from cerebro.data.roles import ID
from cerebro.data.shard import sha256
from cerebro.errors import CheckpointCorruptError, DataError, UsageError
from cerebro.storage import Store, open_store
from cerebro.storage.checkpoint import load as load_checkpoint
from cerebro.storage.disk import Disk
from cerebro.storage.stacked import taken_out
from cerebro.task import ParamDict, Task
from cerebro.train.identity import describe_task
from cerebro.train.runner import import_task, make_framework
from cerebro.train.score.calls import (
    BATCH_SIZE,
    Member,
    MemberScore,
    ScoreCall,
    ScoreMode,
    TrialWeights,
)
from cerebro.train.score.parts import Part, write_part
from cerebro.train.visit import Framework, State
from cerebro.types import Split


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSetup:
    """What every worker gets once: the models, the data, and where its parts go."""

    task: Task | str
    data: str
    data_digest: str
    split: Split
    mode: ScoreMode
    members: tuple[Member, ...]
    batch_size: int | None
    #: The digest of all this, which the parts carry.
    request: str
    out: Store
    device: str = "auto"
    threads: int = 1
    #: Workers that share the memory of a device.
    sharers: int = 1

    def open(self, worker: int) -> ScoreRunner:
        return ScoreRunner(self, worker)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreShard:
    """A job: one shard for all models."""

    shard: int
    rows: int

    def run(self, runner: ScoreRunner) -> Part:
        return runner.score(self.shard)


class ScoreRunner:
    """One worker's dataset, framework and loaded models.

    Models stay loaded from shard to shard, as many as half of the worker's share of memory holds.
    Where that is not all of them, they take turns in groups, and a shard is read once for each
    group.
    """

    def __init__(self, setup: ScoreSetup, worker: int = 0) -> None:
        self._setup = setup
        self.task = import_task(setup.task) if isinstance(setup.task, str) else setup.task
        self.dataset = open_dataset(setup.data)
        if self.dataset.digest != setup.data_digest:
            raise DataError(
                f"a dataset must stay as it is while it is in use, but {setup.data} was replaced."
            )
        self.framework: Framework = make_framework(
            self.task, device=setup.device, threads=setup.threads, worker=worker
        )
        limit = self.framework.memory_bytes() // 2 // setup.sharers
        self._groups = list(grouped(setup.members, limit))
        self._models = LoadedModels(self.framework, limit)
        rows = [info.rows for info in self.dataset.shards(setup.split)]
        self._first = [0, *accumulate(rows)]

    @property
    def device(self) -> str:
        return self.framework.device

    def versions(self) -> Mapping[str, str]:
        return self.framework.versions()

    def describe(self) -> tuple[str, str]:
        return describe_task(self.task)

    def free(self) -> None:
        self._models.clear()
        self.framework.free()

    def close(self) -> None:
        self.framework.close()

    def score(self, number: int) -> Part:
        """Score one shard; what comes of it is durable on return."""
        setup = self._setup
        shard = self.dataset.open_shard(setup.split, number)
        size = setup.batch_size or self.task.eval_batch_size or BATCH_SIZE
        scores: list[MemberScore] = []
        for group in self._groups:
            call = ScoreCall(
                mode=setup.mode,
                params=tuple(ParamDict(member.params) for member in group),
                batch_size=size,
            )
            models = self._models.take(group)
            scores += self.framework.score(call, shard, models).members
        bare = tuple(replace(score, columns={}) for score in scores)
        part = Part(request=setup.request, shard=number, rows=shard.rows, members=bare)
        if setup.mode is ScoreMode.TEST:
            write_part(setup.out, part)
            return part
        columns = {ID: row_ids(shard, self._first[number])}
        for member, score in zip(setup.members, scores, strict=True):
            prefix = f"{member.name}." if len(setup.members) > 1 else ""
            columns.update((prefix + name, v) for name, v in score.columns.items())
        data = encode_part(columns)
        part = replace(part, sha256=sha256(data), bytes=sum(chunk.nbytes for chunk in data))
        write_part(setup.out, part, data)
        return part


class LoadedModels:
    """Models ready for use, within a number of bytes; the one unused for longest makes room."""

    def __init__(self, framework: Framework, limit: int) -> None:
        self._framework = framework
        self._limit = limit
        self._kept: OrderedDict[str, tuple[object, int]] = OrderedDict()

    def take(self, members: Sequence[Member]) -> list[object]:
        """The models of all these, which are held at once, whatever they take."""
        keys = [_key(member) for member in members]
        for key in keys:
            if key in self._kept:
                self._kept.move_to_end(key)
        needed = sum(m.bytes for m, key in zip(members, keys, strict=True) if key not in self._kept)
        while sum(size for _, size in self._kept.values()) + needed > self._limit:
            oldest = next((key for key in self._kept if key not in keys), None)
            if oldest is None:
                break
            del self._kept[oldest]
        for key, member in zip(keys, members, strict=True):
            if key not in self._kept:
                self._kept[key] = load_member(self._framework, member), member.bytes
        return [self._kept[key][0] for key in keys]

    def clear(self) -> None:
        """Let all of them go."""
        self._kept.clear()


def grouped(members: Sequence[Member], limit: int) -> Iterator[tuple[Member, ...]]:
    """Neighbours that together take at most so many bytes; one that takes more is alone.

    >>> from cerebro.train.score.calls import FileWeights
    >>> weights = FileWeights(path="a.safetensors", sha256="")
    >>> members = [Member(name=n, params={}, weights=weights, bytes=4) for n in "abc"]
    >>> [[member.name for member in group] for group in grouped(members, 10)]
    [['a', 'b'], ['c']]
    """
    group: list[Member] = []
    for member in members:
        if group and sum(m.bytes for m in group) + member.bytes > limit:
            yield tuple(group)
            group = []
        group.append(member)
    yield tuple(group)


def load_member(framework: Framework, member: Member) -> object:
    """The model of a member, its bytes compared with their digest."""
    params, weights = ParamDict(member.params), member.weights
    if isinstance(weights, TrialWeights):
        found = load_checkpoint(open_store(weights.store), weights.ref, into=bytearray)
        saved = taken_out(found, weights.trial)
        return framework.load(params, State(memoryview(saved.data), saved.meta))
    try:
        content = Disk().read(weights.path)
    except OSError as error:
        raise UsageError(f"{weights.path} cannot be read: {error.strerror}.") from error
    if hashlib.sha256(content).hexdigest() != weights.sha256:
        raise CheckpointCorruptError(f"{weights.path} must stay as it is while it is in use.")
    if weights.meta is not None:
        return framework.load(params, State(memoryview(bytearray(content)), weights.meta))
    return framework.load_file(params, weights.path, content)


def _key(member: Member) -> str:
    return f"{member.name}\x1f{member.weights.digest}"
