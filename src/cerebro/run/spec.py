"""What a run is asked to do, and run.json, which remembers it."""

from __future__ import annotations

import enum
import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import cast

import numpy as np

from cerebro.errors import ResumeMismatchError, RunCorruptError
from cerebro.run.stacks import Setting
from cerebro.storage import Store, layout
from cerebro.types import Json, Mode, Params
from cerebro.version import __version__

FORMAT = 1


class Checkpointing(enum.StrEnum):
    """When a trial's state becomes durable."""

    VISIT = "visit"
    EPOCH = "epoch"
    #: Never: a run that is stopped starts its unfinished trials over.
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """Everything that decides a run's results, apart from the task's code and the environment."""

    name: str
    data: str
    data_digest: str
    train_shards: int
    val_shards: int
    space: Mapping[str, Json]
    search: str
    num_trials: int | None
    epochs: int
    batch_size: int | None
    metric: str
    mode: Mode
    seed: int
    threads_per_worker: int
    checkpoint: Checkpointing = Checkpointing.VISIT
    #: How trials are put into stacks; see `cerebro.run.stacks`.
    stack: Setting = False
    #: All trials see the rows of a shard in the same order.
    same_order: bool = False
    #: Arguments of the search, of the stopper and of the goal; empty: none.
    search_options: Mapping[str, Json] = field(default_factory=dict)
    stopper: Mapping[str, Json] = field(default_factory=dict)
    goal: Mapping[str, Json] = field(default_factory=dict)
    #: What all trials together may take: trials, epochs, visits, seconds.
    budget: Mapping[str, float] = field(default_factory=dict)
    #: Trials under way at once; None: all.
    concurrent: int | None = None
    #: Trials of each configuration, which differ in their seeds; and in the shards held out.
    seeds: int = 1
    folds: int = 0
    #: Further metrics to look at, each with its mode, and the largest values that metrics may have.
    objectives: Sequence[Sequence[str]] = field(default_factory=list)
    constraints: Mapping[str, float] = field(default_factory=dict)
    #: Workers that train a trial together; `batch_size` is that of each of them, this of all.
    gang: int = 1
    global_batch_size: int | None = None
    #: How that came about: see `cerebro.run.parallel`.
    parallel: Mapping[str, Json] = field(default_factory=dict)

    @property
    def is_gated(self) -> bool:
        """Whether trials are trained only as far as they are promoted."""
        return bool(self.stopper) or self.max_epochs is not None

    @property
    def is_adaptive(self) -> bool:
        """Whether what is done next depends on what is known by then."""
        return self.is_gated or bool(self.goal) or self.concurrent is not None

    @property
    def max_epochs(self) -> int | None:
        """Epochs that all trials together may be trained; None: any number."""
        found = [self.budget["epochs"]] if "epochs" in self.budget else []
        if "visits" in self.budget:
            found.append(self.budget["visits"] // self.train_shards)
        return int(min(found)) if found else None

    def batch_size_of(self, params: Params) -> int:
        """A trial's, over all workers that train it together."""
        whole = params.get("global_batch_size", self.global_batch_size)
        if whole is not None:
            return int(str(whole))
        return self.gang * int(str(params.get("batch_size", self.batch_size)))

    def held_out(self, repeat: int) -> tuple[int, int]:
        """Train shards that the n-th repeat of a configuration is only evaluated on: from, to."""
        first = repeat * self.val_shards
        return (first, first + self.val_shards) if self.folds else (0, 0)

    def to_json(self) -> dict[str, Json]:
        return cast("dict[str, Json]", asdict(self))


#: Fields that may differ when a run is resumed: they do not change its results.
_FREE = frozenset({"data", "checkpoint", "name", "concurrent", "parallel"})
#: Characters of a value that a refusal shows.
_SHOWN = 200
#: What a run.json of a version without these fields means.
_SINCE: Mapping[str, Json] = {
    "stack": False,
    "same_order": False,
    "search_options": {},
    "stopper": {},
    "goal": {},
    "budget": {},
    "concurrent": None,
    "seeds": 1,
    "folds": 0,
    "objectives": [],
    "constraints": {},
    "gang": 1,
    "global_batch_size": None,
    "parallel": {},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDocument:
    """The content of run.json."""

    spec: Mapping[str, Json]
    task: str
    task_digest: str
    #: Whether the task was given values that its name does not tell.
    task_has_state: bool
    environment: Mapping[str, Json]
    created: str
    #: What became of the setting for stacks; empty until the first trials are placed.
    stacks: Mapping[str, Json] = field(default_factory=dict)

    def write(self, store: Store) -> None:
        """Commit it to the run's store."""
        body: dict[str, Json] = {"format": FORMAT, **cast("dict[str, Json]", asdict(self))}
        body["digest"] = _digest(body)
        store.write(layout.RUN, json.dumps(body, indent=1).encode() + b"\n")


def describe(
    spec: RunSpec,
    task: str,
    task_digest: str,
    environment: Mapping[str, Json],
    *,
    task_has_state: bool = False,
) -> RunDocument:
    """The document of a new run."""
    return RunDocument(
        spec=spec.to_json(),
        task=task,
        task_digest=task_digest,
        task_has_state=task_has_state,
        environment=environment,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def read_document(store: Store) -> RunDocument | None:
    """The run.json of a store; None if there is none, RunCorruptError if it is damaged."""
    if not store.exists(layout.RUN):
        return None
    where = store.where(layout.RUN)
    try:
        body = json.loads(store.read(layout.RUN))
        stored = body.pop("digest")
        found = _digest(body)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise RunCorruptError(
            f"{where} must describe a run, but does not ({type(error).__name__}: {error})."
            " Restore it from a copy, or start the run afresh."
        ) from error
    if stored != found:
        raise RunCorruptError(
            f"{where} is damaged: its digest must be {stored}, but is {found}. Restore it from a "
            "copy, or start the run afresh."
        )
    version = body.pop("format", None)
    if version != FORMAT:
        raise RunCorruptError(
            f"{where} must have format {FORMAT}, but has {version!r}: another version of Cerebro "
            "wrote it. Use that one, or start the run afresh."
        )
    expected = {field.name for field in fields(RunDocument)}
    # Of a version that had no stacks.
    body.setdefault("stacks", {})
    if body.keys() != expected:
        raise RunCorruptError(
            f"{where} must have the fields {sorted(expected)}, but has {sorted(body)}: it is "
            "another file. Restore it from a copy, or start the run afresh."
        )
    return RunDocument(**{**body, "spec": {**_SINCE, **body["spec"]}})


def environment(versions: Mapping[str, str], device: str) -> dict[str, Json]:
    """What of the machine decides the last bits of a result."""
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cerebro": __version__,
        "device": device,
        **versions,
    }


def spec_changes(old: Mapping[str, Json], new: RunSpec) -> dict[str, tuple[Json, Json]]:
    """Fields that decide the results and differ: name -> (old, new)."""
    current = json.loads(json.dumps(new.to_json()))
    return {
        key: (old.get(key), value)
        for key, value in current.items()
        if key not in _FREE and _deciding(key, old.get(key)) != _deciding(key, value)
    }


def _deciding(key: str, value: Json) -> Json:
    """What of a field decides the results: of a budget, all but the time."""
    if key == "budget" and isinstance(value, dict):
        return {kind: amount for kind, amount in value.items() if kind != "seconds"}
    return value


def environment_changes(
    old: Mapping[str, Json], new: Mapping[str, Json]
) -> dict[str, tuple[Json, Json]]:
    """Versions and device kind that differ; Python's and our own do not decide results."""
    return {
        key: (old.get(key), value)
        for key, value in new.items()
        if key not in ("python", "cerebro") and old.get(key) != value
    }


def refuse_changes(changes: Mapping[str, tuple[Json, Json]], where: str) -> None:
    """Raise ResumeMismatchError if there are any."""
    if not changes:
        return
    listed = "; ".join(_told(key, old, new) for key, (old, new) in changes.items())
    raise ResumeMismatchError(
        f"a run is resumed only with what it began with, but of {where} {listed}. Go back to that, "
        "give the run another name, start it afresh with --fresh (fresh=True), or accept other "
        "results with --force (force=True)."
    )


def _told(key: str, old: Json, new: Json) -> str:
    """A change in words: of long mappings, only the keys that differ."""
    is_long = max(len(json.dumps(value)) for value in (old, new)) > _SHOWN
    if is_long and isinstance(old, dict) and isinstance(new, dict):
        same = {name for name in old if name in new and old[name] == new[name]}
        old, new = ({n: v for n, v in each.items() if n not in same} for each in (old, new))
    return f"{key} was {_short(old)} and is {_short(new)}"


def _short(value: Json) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _digest(body: Mapping[str, object]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
