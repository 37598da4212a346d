"""A framework in plain NumPy whose trials train in milliseconds and fail on demand.

Tests of what surrounds training use it: runs, backends, stores. It imports no deep-learning
package.
"""

from __future__ import annotations

import ctypes
import enum
import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, NoReturn, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from cerebro.data import BatchBuffers, Shard, batch_order
from cerebro.errors import UsageError
from cerebro.storage.tensors import Layout
from cerebro.task import Task
from cerebro.train.seeds import derive_seed, seed_host
from cerebro.train.visit import Allocate, Diverged, State, VisitCall, VisitReport
from cerebro.types import Params

Array: TypeAlias = npt.NDArray[np.float64]
Labels: TypeAlias = npt.NDArray[np.int64]


class Fault(enum.StrEnum):
    """How a trial goes wrong. `params["fail"]` is one of these, or a dict with `kind`."""

    RAISE = "raise"
    #: Raise an exception that pickle refuses.
    UNPICKLABLE = "unpicklable"
    #: End the worker with `os._exit`.
    EXIT = "exit"
    SEGFAULT = "segfault"
    #: SIGKILL to the worker by itself.
    KILL = "kill"
    #: Never answer.
    HANG = "hang"
    NAN_LOSS = "nan_loss"
    #: A weight becomes infinite.
    NAN_STATE = "nan_state"
    #: The accuracy of an evaluation is NaN.
    NAN_METRIC = "nan_metric"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """A fault and where it strikes; the first `attempts` attempts of that visit alone.

    >>> FaultPlan.of({"fail": {"kind": "raise", "epoch": 1, "attempts": 1}})
    FaultPlan(kind=<Fault.RAISE: 'raise'>, epoch=1, step=0, batch=0, attempts=1)
    """

    kind: Fault
    epoch: int = 0
    step: int = 0
    batch: int = 0
    attempts: int = 1_000_000

    @classmethod
    def of(cls, params: Params) -> FaultPlan | None:
        """The plan in a trial's params."""
        given = params.get("fail")
        if given is None:
            return None
        fields = dict(given) if isinstance(given, Mapping) else {"kind": given}
        kind = Fault(str(fields.pop("kind")))
        return cls(kind=kind, **{name: int(str(value)) for name, value in fields.items()})

    def strikes(self, call: VisitCall) -> bool:
        """Whether it strikes in this visit."""
        return (self.epoch, self.step) == (call.epoch, call.step) and call.attempt < self.attempts


class ToyTask(Task):
    """Softmax regression of an integer column `y` on a vector column `x`.

    Params: `lr`; optional `momentum` (0.9), `noise` (0.1: the share of inputs dropped, drawn from
    NumPy's global generator), `visit_s` (that of the task), `fail` (see `FaultPlan`).

    Args:
        classes: How many values `y` has.
        visit_s: Seconds that a training visit takes at least.
        log: A file that gets one line "trial epoch step attempt" when a training visit starts.

    >>> ToyTask().framework
    'cerebro.testing.toy:ToyFramework'
    """

    framework: ClassVar[str] = "cerebro.testing.toy:ToyFramework"

    def __init__(self, *, classes: int = 3, visit_s: float = 0.0, log: str | None = None) -> None:
        self.classes = classes
        self.visit_s = visit_s
        self.log = log


class ToyModel:
    """The trained weights, ready for use."""

    def __init__(self, weight: Array, bias: Array) -> None:
        self.weight = weight
        self.bias = bias

    def scores(self, x: npt.ArrayLike) -> Array:
        """One number a class for each row."""
        return np.asarray(x, np.float64) @ self.weight + self.bias


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
        if state is None:
            tensors, buffer, steps = *self._initial(call, shard, allocate), 0
        else:
            # A copy: whoever else reads the state, and a second attempt, see it as it was.
            buffer = allocate(state.buffer.nbytes)
            buffer[:] = state.buffer
            tensors, steps = views(buffer), cast(int, state.meta["steps"])
        seed_host(derive_seed("visit", call.seed, call.trials[0], call.epoch, call.shard))
        started = time.perf_counter()
        losses, sizes = self._loop(call, shard, tensors)
        visit_s = float(str(call.params[0].get("visit_s", self.task.visit_s)))
        time.sleep(max(0.0, visit_s - time.perf_counter() + started))
        ended = time.perf_counter()
        if not all(np.isfinite(tensor).all() for tensor in tensors.values()):
            raise Diverged("the weights are not finite after the visit")
        total = math.fsum(loss * rows for loss, rows in zip(losses, sizes, strict=True))
        report = VisitReport(
            rows=shard.rows,
            sums={"loss": (total, shard.rows)},
            losses=tuple(losses),
            first_step=steps,
            compute_s=ended - started,
            hop_s=started - began,
        )
        return State(buffer, {"steps": steps + len(losses)}), report

    def evaluate(self, call: VisitCall, shard: Shard, state: State) -> VisitReport:
        began = time.perf_counter()
        tensors, loss, hits = views(state.buffer), 0.0, 0.0
        for x, y in _batches(shard, 256, None):
            scores = x @ tensors["weight"] + tensors["bias"]
            loss += _loss_and_slope(scores, y)[0] * len(x)
            hits += float((scores.argmax(1) == y).sum())
        plan = FaultPlan.of(call.params[0])
        if plan is not None and plan.kind is Fault.NAN_METRIC and plan.strikes(call):
            hits = math.nan
        sums = {"loss": (loss, shard.rows), "accuracy": (hits, shard.rows)}
        for name, (value, rows) in sums.items():
            if not math.isfinite(value):
                raise Diverged(f"val_{name} is {value / rows}")
        return VisitReport(rows=shard.rows, sums=sums, compute_s=time.perf_counter() - began)

    def metric_names(self, call: VisitCall, shard: Shard) -> tuple[str, ...]:
        return ("loss", "accuracy")

    def load(self, params: Params, state: State) -> ToyModel:
        tensors = views(memoryview(bytes(state.buffer)))
        return ToyModel(tensors["weight"], tensors["bias"])

    def close(self) -> None:
        """It has changed nothing in this process."""

    def _initial(
        self, call: VisitCall, shard: Shard, allocate: Allocate
    ) -> tuple[dict[str, Array], memoryview]:
        features = shard.schema["x"].shape[0]
        shapes = {"weight": (features, self.task.classes), "bias": (self.task.classes,)}
        names = [*shapes.items(), *((f"momentum.{name}", shape) for name, shape in shapes.items())]
        layout = Layout.plan((name, "F64", shape) for name, shape in names)
        buffer = allocate(layout.total_bytes)
        buffer[: layout.data_start] = layout.header_bytes()
        tensors = views(buffer)
        for tensor in tensors.values():
            tensor[:] = 0.0
        seed_host(derive_seed("model", call.seed, call.trials[0]))
        tensors["weight"][:] = np.random.normal(size=shapes["weight"])
        return tensors, buffer

    @np.errstate(over="ignore", invalid="ignore")
    def _loop(
        self, call: VisitCall, shard: Shard, tensors: dict[str, Array]
    ) -> tuple[list[float], list[int]]:
        params, plan = call.params[0], FaultPlan.of(call.params[0])
        lr, noise = float(str(params["lr"])), float(str(params.get("noise", 0.1)))
        momentum = float(str(params.get("momentum", 0.9)))
        losses: list[float] = []
        sizes: list[int] = []
        order = batch_order(
            shard, call.batch_size, seed=call.seed, trial=call.trials[0], epoch=call.epoch
        )
        for number, (x, y) in enumerate(_batches(shard, call.batch_size, order)):
            kept = x * (np.random.random(x.shape) >= noise)
            loss, slope = _loss_and_slope(kept @ tensors["weight"] + tensors["bias"], y)
            if plan is not None and plan.batch == number and plan.strikes(call):
                loss = _strike(plan.kind, loss, tensors)
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
            line = f"{call.trials[0]} {call.epoch} {call.step} {call.attempt}\n"
            with open(self.task.log, "ab", buffering=0) as file:
                file.write(line.encode())


def views(buffer: memoryview) -> dict[str, Array]:
    """The tensors of a state by name, without a copy."""
    layout = Layout.parse(buffer)
    return {
        entry.name: np.frombuffer(
            buffer, np.float64, entry.nbytes // 8, layout.data_start + entry.offset
        ).reshape(entry.shape)
        for entry in layout.entries
    }


def _batches(
    shard: Shard, size: int, order: npt.NDArray[np.int64] | None
) -> Iterator[tuple[Array, Labels]]:
    buffers = BatchBuffers(shard.schema, size)
    for rows in buffers.fill(shard, order):
        yield buffers.tensors["x"][:rows].astype(np.float64), buffers.tensors["y"][:rows]


def _loss_and_slope(scores: Array, y: Labels) -> tuple[float, Array]:
    """The mean loss of a batch and its gradient with respect to the scores."""
    rows = len(y)
    shifted = scores - scores.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    slope = np.exp(logs)
    slope[np.arange(rows), y] -= 1.0
    return float(-logs[np.arange(rows), y].sum() / rows), slope / rows


def _strike(kind: Fault, loss: float, tensors: dict[str, Array]) -> float:
    """Go wrong; the loss afterwards, where there is an afterwards."""
    if kind is Fault.RAISE:
        raise ValueError("this trial raises on purpose")
    if kind is Fault.UNPICKLABLE:
        raise UnpicklableError()
    if kind is Fault.EXIT:
        os._exit(1)
    if kind is Fault.SEGFAULT:
        ctypes.string_at(0)
    if kind is Fault.KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    if kind is Fault.HANG:
        threading.Event().wait()
    if kind is Fault.NAN_STATE:
        tensors["weight"][0, 0] = np.inf
    return math.nan if kind is Fault.NAN_LOSS else loss


class UnpicklableError(Exception):
    """Neither this exception nor its argument can be pickled."""

    def __init__(self) -> None:
        super().__init__(lambda: None)

    def __reduce__(self) -> NoReturn:
        raise TypeError("this exception cannot be pickled, on purpose")

    def __str__(self) -> str:
        return "this trial raises what cannot be pickled"
