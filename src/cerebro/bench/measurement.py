"""What a setting's run took and gave, read from what it wrote."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from cerebro.bench.sweep import Setting
from cerebro.run.recovery import load_history
from cerebro.run.request import BATCH_SIZES
from cerebro.storage import layout, open_store
from cerebro.storage.journal import read as read_journal
from cerebro.types import Json, Mode, Params

#: Where the time of a step goes, in the order in which it is shown.
PARTS = ("data", "compute", "communication", "hop", "validation", "other")
#: Of these, what is inside a training step.
STEP_PARTS = ("data", "compute", "communication")
#: Quantities of a node that are kept.
_KEPT = ("cpu/tree", "cpu/system", "memory/", "network/", "gpu/", "disk/tree_")
#: Samples of which a mean says something.
_FEW = 3


@dataclass(frozen=True, slots=True)
class Point:
    """An epoch of the best trial: seconds from the first visit to its end, rows seen, metric.

    `loss` is that of validation, where it is known.
    """

    epoch: int
    seconds: float
    samples: int
    value: float
    loss: float = math.nan


@dataclass(frozen=True, slots=True)
class NodeUse:
    """What a node's processes took; seconds since the setting began."""

    node: str
    #: What -> (seconds, values).
    series: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]

    #: From when to when it trained.
    window: tuple[float, float] = (0.0, math.inf)

    def values(self, what: str) -> tuple[float, ...]:
        return self.series.get(what, ((), ()))[1]

    def mean(self, what: str) -> float:
        """While it trained; of all its time where that was too short for a few samples.

        Each is of the time before it, so that the first is of what came before, too.
        """
        first, last = self.window
        times, values = self.series.get(what, ((), ()))
        inside = [v for t, v in zip(times, values, strict=True) if first <= t <= last]
        found = inside if len(inside) >= _FEW else values
        return sum(found) / len(found) if found else math.nan

    def peak(self, what: str) -> float:
        return max(self.values(what), default=math.nan)

    def gained(self, what: str) -> float:
        """What a counter that ends so has grown by, over all of its kind."""
        return sum(max(v) for key, (_, v) in self.series.items() if key.endswith(what) and v)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One setting, run once. Times are in seconds."""

    setting: Setting
    is_done: bool
    error: str = ""
    #: Of each process.
    threads: int = 1
    #: From the start of its processes to their end.
    completion_s: float = math.nan
    #: From the first visit to the last.
    training_s: float = math.nan
    startup_s: float = math.nan
    #: Rows a second while it trained.
    samples_per_s: float = math.nan
    #: None where it is not known how many rows a step has.
    steps: int | None = None
    #: By part, over the whole run.
    parts: Mapping[str, float] = field(default_factory=dict)
    metric: str = ""
    mode: Mode = Mode.MAX
    #: Whether the number of processes changes the learning rate.
    is_rate_scaled: bool = False
    curve: tuple[Point, ...] = ()
    #: Rows that the metric is of; None where that is not known.
    valid_rows: int | None = None
    #: Rows of each training shard.
    shards: tuple[int, ...] = ()
    nodes: tuple[NodeUse, ...] = ()

    @property
    def is_accuracy(self) -> bool:
        return "acc" in self.metric.lower()

    @property
    def communication(self) -> float:
        """The part of a training step that was waiting for other processes."""
        whole = sum(self.parts.get(part, 0.0) for part in STEP_PARTS)
        return self.parts.get("communication", 0.0) / whole if whole else 0.0

    @property
    def best(self) -> float:
        """The best value of the metric."""
        values = [point.value for point in self.curve if math.isfinite(point.value)]
        pick = max if self.mode is Mode.MAX else min
        return pick(values) if values else math.nan

    @property
    def step_ms(self) -> dict[str, float]:
        """Milliseconds by part, for each training step."""
        if self.steps is None:
            return dict.fromkeys(PARTS, math.nan)
        return {part: 1e3 * self.parts.get(part, 0.0) / max(1, self.steps) for part in PARTS}


def read_measurement(
    setting: Setting, told: Mapping[str, Any], run: Path, nodes: Sequence[tuple[str, Path]]
) -> Measurement:
    """What a setting took.

    Args:
        told: What `setting.json` says: when it began, how long it took, whether it failed.
        run: The directory of its run.
        nodes: Name and `resources.csv` of each node.
    """
    began = float(told.get("began", 0.0))
    window = _window(run / layout.TRACE, began)
    use = tuple(read_node(name, path, began, window) for name, path in nodes if path.exists())
    if told.get("status") != "done":
        error = str(told.get("error", "it did not finish"))
        return Measurement(setting=setting, is_done=False, error=error, nodes=use)
    return _read_done(setting, float(told.get("seconds", math.nan)), run, use)


def _read_done(
    setting: Setting, completion_s: float, run: Path, use: tuple[NodeUse, ...]
) -> Measurement:
    store = open_store(run)
    document, history = load_history(store)
    visits = _visits(run / layout.TRACE)
    summary = history.summary
    trained = [visit for visit in visits if visit["phase"] == "train"]
    judged = [visit for visit in visits if visit["phase"] != "train"]
    params = {number: trial.params for number, trial in history.trials.items()}
    steps = _count_steps(trained, params, document.spec, setting.global_batch)
    parts = split_of(visits, float(summary.get("capacity_s", 0.0)))
    makespan = float(summary.get("makespan_s", math.nan))
    share = 1 - parts["validation"] / max(sum(parts.values()), 1e-9)
    rows = sum(visit["rows"] * visit["members"] for visit in trained)
    best = _best_trial(history)
    first_s = float(summary.get("startup_s", 0.0))
    rows_seen = _epoch_rows(trained, best)
    records = read_journal(store).records
    curve = _curve(records, best, history.metric, rows=rows_seen, first_s=first_s)
    return Measurement(
        setting=setting,
        is_done=True,
        threads=int(str(document.spec.get("threads_per_worker", 1))),
        completion_s=completion_s,
        training_s=makespan,
        startup_s=completion_s - makespan,
        samples_per_s=rows / max(makespan * share, 1e-9),
        steps=steps,
        parts=parts,
        metric=history.metric,
        mode=history.mode,
        is_rate_scaled=_is_rate_scaled(params.get(best, {})),
        curve=curve,
        valid_rows=_epoch_rows(judged, best) or None,
        shards=_shards(trained),
        nodes=use,
    )


def _count_steps(
    trained: Iterable[Mapping[str, Any]],
    params: Mapping[int, Params],
    spec: Mapping[str, Json],
    batch: int | None,
) -> int | None:
    """Training steps of all visits; `batch` is that of trials that do not say."""
    steps = 0
    for visit in trained:
        own = global_batch(params.get(visit["trial"], {}), spec) or batch
        if own is None:
            return None
        steps += -(-visit["rows"] // own)
    return steps


def global_batch(params: Params, spec: Mapping[str, Json]) -> int | None:
    """Rows that all processes of a trial take in a step, as its params or its run say.

    >>> global_batch({"batch_size": 32}, {"gang": 2, "batch_size": None})
    64
    """
    said = {**{key: spec.get(key) for key in BATCH_SIZES}, **params}
    if said.get("global_batch_size") is not None:
        return int(str(said["global_batch_size"]))
    each = said.get("batch_size")
    return None if each is None else int(str(each)) * int(str(spec.get("gang", 1)))


def _is_rate_scaled(params: Params) -> bool:
    scaling = params.get("optimizer.lr_scaling", "none")
    return scaling != "none" or bool(params.get("training.lr_warmup_epochs"))


def split_of(visits: Iterable[Mapping[str, Any]], capacity_s: float) -> dict[str, float]:
    """Seconds by part. Messages around a visit are hops; what no visit had is "other".

    >>> visit = {"phase": "train", "seconds": 1.0, "compute": 0.6, "data": 0.1, "hop": 0.05,
    ...          "communication": 0.2}
    >>> {part: round(s, 2) for part, s in split_of([visit], 1.5).items()}
    {'data': 0.1, 'compute': 0.6, 'communication': 0.2, 'hop': 0.1, 'validation': 0.0, 'other': 0.5}
    """
    found = dict.fromkeys(PARTS, 0.0)
    for visit in visits:
        if visit["phase"] != "train":
            found["validation"] += visit["seconds"]
            continue
        known = sum(visit[part] for part in STEP_PARTS)
        for part in STEP_PARTS:
            found[part] += visit[part]
        found["hop"] += max(visit["hop"], visit["seconds"] - known)
    found["other"] = max(0.0, capacity_s - sum(found.values()))
    return found


def read_node(
    name: str, path: Path, began: float, window: tuple[float, float] = (0.0, math.inf)
) -> NodeUse:
    """The samples of one node, `began` at second 0."""
    series: dict[str, tuple[list[float], list[float]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        # The last row of one that was killed may be cut off.
        for row in csv.reader(line for line in file if line.endswith("\n")):
            if len(row) != 4 or not row[2].startswith(_KEPT):
                continue
            times, values = series.setdefault(row[2], ([], []))
            times.append(float(row[0]) - began)
            values.append(float(row[3]))
    kept = {what: (tuple(t), tuple(v)) for what, (t, v) in series.items()}
    return NodeUse(name, kept, window)


def _window(trace: Path, began: float) -> tuple[float, float]:
    """From the first visit to the last: the trace is written right after it."""
    if not trace.exists():
        return 0.0, math.inf
    visits = [event for event in _events(trace) if event["ph"] == "X"]
    if not visits:
        return 0.0, math.inf
    ended = trace.stat().st_mtime - began
    first = min(visit["ts"] for visit in visits)
    last = max(visit["ts"] + visit["dur"] for visit in visits)
    return ended - (last - first) / 1e6, ended


def _visits(trace: Path) -> list[dict[str, Any]]:
    return [_visit(event) for event in _events(trace) if event["ph"] == "X"]


def _events(trace: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    return found


def _visit(event: Mapping[str, Any]) -> dict[str, Any]:
    said = event["args"]
    names = {"compute": "compute_ms", "data": "data_ms", "hop": "hop_ms"}
    spent = {part: said.get(name, 0.0) / 1e3 for part, name in names.items()}
    return {
        **spent,
        "communication": said.get("comm_ms", 0.0) / 1e3,
        "phase": said["phase"],
        "seconds": event["dur"] / 1e6,
        "rows": said.get("rows", 0),
        "members": said.get("members", 1),
        "trial": said["trial"],
        "epoch": said["epoch"],
        "shard": said.get("shard", 0),
    }


def _best_trial(history: Any) -> int:
    """The number of the trial whose curve is shown."""
    sign = 1 if history.mode is Mode.MAX else -1
    found = [
        (sign * value, -trial.number)
        for trial in history.trials.values()
        for epoch in trial.epochs
        if math.isfinite(value := epoch.metrics.get(history.metric, math.nan))
    ]
    return -max(found)[1] if found else 0


def _epoch_rows(trained: Sequence[Mapping[str, Any]], trial: int) -> int:
    """Rows that the trial sees in an epoch; of a stack all members see as many."""
    by_trial = [visit for visit in trained if visit["trial"] == trial] or list(trained)
    first = [v["rows"] for v in by_trial if (v["trial"], v["epoch"]) == (by_trial[0]["trial"], 0)]
    return sum(first)


def _shards(trained: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Rows of each shard, in the order of their numbers."""
    found = {visit["shard"]: int(visit["rows"]) for visit in trained}
    return tuple(found[shard] for shard in sorted(found))


def _curve(
    records: Iterable[Mapping[str, Any]], trial: int, metric: str, *, rows: int, first_s: float
) -> tuple[Point, ...]:
    points: list[Point] = []
    for record in records:
        if record["type"] != "epoch":
            continue
        trials = cast("list[int]", record.get("trials", [record.get("trial")]))
        if trial not in trials:
            continue
        metrics = record["metrics"]
        own = metrics[trials.index(trial)] if isinstance(metrics, list) else metrics
        epoch = int(record["epoch"])
        seconds = float(record.get("end_s", math.nan)) - first_s
        value, loss = (float(own.get(name, math.nan)) for name in (metric, "val_loss"))
        points.append(Point(epoch, seconds, rows * (epoch + 1), value, loss))
    return tuple(points)
