"""A framework in plain NumPy whose trials train in milliseconds and fail on demand.

Tests of what surrounds training use it: runs, backends, stores. It imports no deep-learning
package.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from cerebro.data import BatchBuffers, Shard, batch_order
from cerebro.errors import UsageError
from cerebro.storage.tensors import Layout
from cerebro.task import Task
from cerebro.testing.toy_faults import (
    Fault,
    FaultPlan,
    UnpicklableError,
    run_out_of_memory,
    strike,
)
from cerebro.testing.toy_scores import ToyModel, loss_and_slope, score_models
from cerebro.train.model_file import SAFETENSORS, ExportCall
from cerebro.train.progress import PROGRESS
from cerebro.train.score.calls import ScoreCall, ScoreReport
from cerebro.train.seeds import derive_seed, seed_host
from cerebro.train.visit import (
    Allocate,
    Diverged,
    Group,
    MemberReport,
    State,
    Survey,
    SurveyCall,
    VisitCall,
    VisitReport,
)
from cerebro.types import Json, Params

__all__ = [
    "Fault",
    "FaultPlan",
    "ToyFramework",
    "ToyModel",
    "ToyTask",
    "UnpicklableError",
    "views",
]

Array: TypeAlias = npt.NDArray[np.float64]
Labels: TypeAlias = npt.NDArray[np.int64]


class ToyTask(Task):
    """Softmax regression of an integer column `y` on a vector column `x`.

    Params: `lr`; optional `momentum` (0.9), `noise` (0.1: the share of inputs dropped, drawn from
    NumPy's global generator), `visit_s` (that of the task), `fail` (see `FaultPlan`). Trials of one
    `kind` can be stacked, unless their `obstacle` says why not.

    Args:
        classes: How many values `y` has.
        visit_s: Seconds that a training visit takes at least.
        log: A file that gets one line "trial epoch step attempt pid" for each trial of a training
            visit when it starts.
        hold: A path: then training visits of epoch e do not go on while `{hold}{e}` is there.
        gain: How many times faster a member of a large stack is said to be than a trial alone.
        micro_batch: "auto" where a trial that runs out of memory may go on with fewer rows at a
            time, which changes nothing but that.

    >>> ToyTask().framework
    'cerebro.testing.toy:ToyFramework'
    """

    framework: ClassVar[str] = "cerebro.testing.toy:ToyFramework"

    def __init__(
        self,
        *,
        classes: int = 3,
        visit_s: float = 0.0,
        log: str | None = None,
        hold: str | None = None,
        gain: float = 1.0,
        micro_batch: Literal["auto"] | None = None,
    ) -> None:
        self.classes = classes
        self.visit_s = visit_s
        self.log = log
        self.hold = hold
        self.gain = gain
        self.micro_batch = micro_batch


class ToyFramework:
    """Trains a `ToyTask`: the reference for what a framework owes its callers."""

    def __init__(self, task: Task, *, device: str = "auto", threads: int = 1, worker: int = 0):
        if not isinstance(task, ToyTask):
            raise UsageError(f"a toy framework trains a ToyTask, but got {type(task).__name__}.")
        if device not in ("auto", "cpu"):
            raise UsageError(f"a toy framework has device 'cpu' only, but got {device!r}.")
        self.task = task
        self.device = "cpu"

    def versions(self) -> dict[str, str]:
        return {"toy": "1"}

    def train(
        self, call: VisitCall, shard: Shard, state: State | None, allocate: Allocate
    ) -> tuple[State, VisitReport]:
        began = time.perf_counter()
        self._log(call)
        while self.task.hold is not None and os.path.exists(f"{self.task.hold}{call.epoch}"):
            time.sleep(0.01)
        if state is None:
            buffer = self._initial(call, shard, allocate)
            metas: list[dict[str, Json]] = [{"steps": 0} for _ in call.trials]
        else:
            # A copy: whoever else reads the state, and a second attempt, see it as it was.
            buffer, metas = _enter(call, state, allocate)
        started = time.perf_counter()
        members = [
            self._train_member(call, index, shard, tensors, cast(int, meta["steps"]))
            for index, (tensors, meta) in enumerate(zip(_split(call, buffer), metas, strict=True))
        ]
        visit_s = float(str(call.params[0].get("visit_s", self.task.visit_s)))
        if (left_s := visit_s - time.perf_counter() + started) > 0:
            time.sleep(left_s)
        report = VisitReport(
            rows=shard.rows,
            members=tuple(members),
            compute_s=time.perf_counter() - started,
            hop_s=started - began,
        )
        counts: list[Json] = [{"steps": m.first_step + len(m.losses)} for m in members]
        if call.stack is None:
            return State(buffer, cast("dict[str, Json]", counts[0])), report
        return State(buffer, {"trials": list(call.trials), "members": counts}), report

    def _train_member(
        self, call: VisitCall, index: int, shard: Shard, tensors: dict[str, Array], steps: int
    ) -> MemberReport:
        before = {name: tensor.copy() for name, tensor in tensors.items()}
        seed_host(derive_seed("visit", call.seed, call.trials[index], call.epoch, call.shard))
        try:
            losses, sizes = self._loop(call, index, shard, tensors)
            if not all(np.isfinite(tensor).all() for tensor in tensors.values()):
                raise Diverged("the weights are not finite after the visit")
        except Diverged as error:
            plan = FaultPlan.of(call.params[index])
            if call.stack is None or (plan is not None and plan.kind is Fault.NAN_STACK):
                raise
            # Weights that are not finite are never saved.
            for name, tensor in tensors.items():
                tensor[:] = before[name]
            return MemberReport(sums={}, first_step=steps, diverged=str(error))
        total = math.fsum(loss * rows for loss, rows in zip(losses, sizes, strict=True))
        sums = {"loss": (total, shard.rows)}
        return MemberReport(sums=sums, losses=tuple(losses), first_step=steps)

    def evaluate(self, call: VisitCall, shard: Shard, state: State) -> VisitReport:
        began = time.perf_counter()
        places = _places(call, state)
        members: list[MemberReport] = []
        for index, tensors in enumerate(_split(call, state.buffer, places)):
            try:
                members.append(self._evaluate_member(call, index, shard, tensors))
            except Diverged as error:
                if call.stack is None:
                    raise
                members.append(MemberReport(sums={}, diverged=str(error)))
        seconds = time.perf_counter() - began
        return VisitReport(rows=shard.rows, members=tuple(members), compute_s=seconds)

    def _evaluate_member(
        self, call: VisitCall, index: int, shard: Shard, tensors: dict[str, Array]
    ) -> MemberReport:
        loss, hits = 0.0, 0.0
        for x, y in _batches(shard, 256, None):
            scores = x @ tensors["weight"] + tensors["bias"]
            loss += loss_and_slope(scores, y)[0] * len(x)
            hits += float((scores.argmax(1) == y).sum())
        plan = FaultPlan.of(call.params[index])
        if plan is not None and plan.kind is Fault.NAN_METRIC and plan.strikes(call):
            hits = math.nan
        sums = {"loss": (loss, shard.rows), "accuracy": (hits, shard.rows)}
        for name, (value, rows) in sums.items():
            if not math.isfinite(value):
                raise Diverged(f"val_{name} is {value / rows}")
        return MemberReport(sums=sums)

    def survey(self, call: SurveyCall, shard: Shard) -> Survey:
        groups: dict[tuple[str, int, str], list[int]] = {}
        for trial, params, size in zip(call.trials, call.params, call.batch_sizes, strict=True):
            key = (str(params.get("kind", "")), size, str(params.get("obstacle") or ""))
            groups.setdefault(key, []).append(trial)
        numbers = shard.schema["x"].shape[0] * self.task.classes
        return Survey(
            groups=tuple(
                Group(
                    trials=tuple(trials),
                    obstacle=obstacle or None,
                    state_bytes=16 * (numbers + self.task.classes),
                    step_bytes=8 * size * self.task.classes,
                    step_s={0: 1e-4, 1: 1e-4, 256: 256e-4 / self.task.gain},
                )
                for (_, size, obstacle), trials in groups.items()
            ),
            memory_bytes=1 << 30,
        )

    def metric_names(self, call: VisitCall, shard: Shard) -> tuple[str, ...]:
        return ("loss", "accuracy")

    def load(self, params: Params, state: State) -> ToyModel:
        tensors = views(memoryview(bytes(state.buffer)))
        return ToyModel(tensors["weight"], tensors["bias"])

    def load_file(self, params: Params, path: str, content: bytes) -> ToyModel:
        if not path.endswith(".safetensors"):
            raise UsageError(f"a toy framework reads safetensors alone, but got {path}.")
        tensors = views(memoryview(content))
        return ToyModel(tensors["weight"], tensors["bias"])

    def score(self, call: ScoreCall, shard: Shard, models: Sequence[object]) -> ScoreReport:
        return score_models(call, shard, cast("Sequence[ToyModel]", models))

    def memory_bytes(self) -> int:
        return 1 << 30

    def export(self, call: ExportCall, model: object, shard: Shard | None) -> bytes:
        if call.to != SAFETENSORS or not isinstance(model, ToyModel):
            raise UsageError(f"a toy framework exports safetensors alone, but not {call.to}.")
        tensors = {"weight": model.weight, "bias": model.bias}
        layout = Layout.plan([(n, "F64", t.shape) for n, t in tensors.items()], call.about)
        parts = [tensors[entry.name].tobytes() for entry in layout.entries]
        return b"".join([layout.header_bytes(), *parts])

    def free(self) -> None:
        """It keeps nothing."""

    def close(self) -> None:
        """It has changed nothing in this process."""

    def _initial(self, call: VisitCall, shard: Shard, allocate: Allocate) -> memoryview:
        features = shard.schema["x"].shape[0]
        shapes = {"weight": (features, self.task.classes), "bias": (self.task.classes,)}
        names = [*shapes.items(), *((f"momentum.{name}", shape) for name, shape in shapes.items())]
        axis = () if call.stack is None else (len(call.trials),)
        layout = Layout.plan((name, "F64", (*axis, *shape)) for name, shape in names)
        buffer = allocate(layout.total_bytes)
        buffer[: layout.data_start] = layout.header_bytes()
        for trial, tensors in zip(call.trials, _split(call, buffer), strict=True):
            for tensor in tensors.values():
                tensor[:] = 0.0
            seed_host(derive_seed("model", call.seed, trial))
            tensors["weight"][:] = np.random.normal(size=shapes["weight"])
        return buffer

    @np.errstate(over="ignore", invalid="ignore")
    def _loop(
        self, call: VisitCall, index: int, shard: Shard, tensors: dict[str, Array]
    ) -> tuple[list[float], list[int]]:
        params, plan = call.params[index], FaultPlan.of(call.params[index])
        lr, noise = float(str(params["lr"])), float(str(params.get("noise", 0.1)))
        momentum = float(str(params.get("momentum", 0.9)))
        losses: list[float] = []
        sizes: list[int] = []
        trial = 0 if call.same_order else call.trials[index]
        order = batch_order(shard, call.batch_size, seed=call.seed, trial=trial, epoch=call.epoch)
        for number, (x, y) in enumerate(_batches(shard, call.batch_size, order)):
            kept = x * (np.random.random(x.shape) >= noise)
            loss, slope = loss_and_slope(kept @ tensors["weight"] + tensors["bias"], y)
            if plan is not None and plan.batch == number and plan.strikes(call):
                if plan.kind is Fault.MEMORY:
                    run_out_of_memory(plan, call, is_auto=self.task.micro_batch == "auto")
                loss = strike(plan.kind, loss, tensors, is_stacked=call.stack is not None)
            if not math.isfinite(loss):
                raise Diverged(f"loss is {loss} at step {number} of the visit")
            for name, gradient in (("weight", kept.T @ slope), ("bias", slope.sum(0))):
                velocity = tensors[f"momentum.{name}"]
                velocity *= momentum
                velocity += gradient
                tensors[name] -= lr * velocity
            losses.append(loss)
            sizes.append(len(x))
        return losses, sizes

    def _log(self, call: VisitCall) -> None:
        if self.task.log is not None:
            where = f"{call.epoch} {call.step} {call.attempt} {os.getpid()}"
            with open(self.task.log, "ab", buffering=0) as file:
                file.write("".join(f"{trial} {where}\n" for trial in call.trials).encode())


def views(buffer: memoryview) -> dict[str, Array]:
    """The tensors of a state by name, without a copy."""
    layout = Layout.parse(buffer)
    return {
        entry.name: np.frombuffer(
            buffer, np.float64, entry.nbytes // 8, layout.data_start + entry.offset
        ).reshape(entry.shape)
        for entry in layout.entries
    }


def _places(call: VisitCall, state: State) -> list[int]:
    """Where the call's trials are in a state; those left behind may lie between them."""
    if call.stack is None:
        return [0]
    trials = cast("list[int]", state.meta["trials"])
    return [trials.index(trial) for trial in call.trials]


def _split(
    call: VisitCall, buffer: memoryview, places: list[int] | None = None
) -> list[dict[str, Array]]:
    """The tensors of each trial, without a copy."""
    tensors = views(buffer)
    if call.stack is None:
        return [tensors]
    chosen = range(len(call.trials)) if places is None else places
    return [{name: tensor[place] for name, tensor in tensors.items()} for place in chosen]


def _enter(
    call: VisitCall, state: State, allocate: Allocate
) -> tuple[memoryview, list[dict[str, Json]]]:
    """A copy of the state for the call's trials alone, and the meta of each."""
    places = _places(call, state)
    if call.stack is None:
        buffer = allocate(state.buffer.nbytes)
        buffer[:] = state.buffer
        return buffer, [dict(state.meta)]
    old = Layout.parse(state.buffer)
    layout = Layout.plan((e.name, e.dtype, (len(places), *e.shape[1:])) for e in old.entries)
    content = {name: tensor[places] for name, tensor in views(state.buffer).items()}
    # Perhaps the very memory of the state: everything was copied out of it before.
    buffer = allocate(layout.total_bytes)
    buffer[: layout.data_start] = layout.header_bytes()
    for name, tensor in views(buffer).items():
        tensor[:] = content[name]
    metas = cast("list[dict[str, Json]]", state.meta["members"])
    return buffer, [metas[place] for place in places]


def _batches(
    shard: Shard, size: int, order: npt.NDArray[np.int64] | None
) -> Iterator[tuple[Array, Labels]]:
    buffers = BatchBuffers(shard.schema, size)
    for rows in buffers.fill(shard, order):
        PROGRESS.tick()
        yield buffers.tensors["x"][:rows].astype(np.float64), buffers.tensors["y"][:rows]
