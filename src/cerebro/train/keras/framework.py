"""Keras: one visit of one trial, trained, evaluated or loaded."""

from __future__ import annotations

import gc
import math
import time
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import keras

from cerebro.data import Shard
from cerebro.errors import UsageError
from cerebro.task import Task
from cerebro.train.keras.batches import Batches
from cerebro.train.keras.build import Builder, Parts, as_guest, seed_everything, zeros_like
from cerebro.train.keras.device import Device, memory_guard
from cerebro.train.keras.files import export_model, load_weights
from cerebro.train.keras.hooks import Hooks
from cerebro.train.keras.meter import Meter, test_on, train_on, warn_of_others
from cerebro.train.keras.score import score_shard
from cerebro.train.keras.task import KerasTask
from cerebro.train.keras.variables import MODEL, pack, require_finite
from cerebro.train.loading import Loading
from cerebro.train.model_file import ExportCall
from cerebro.train.rebase import rebase
from cerebro.train.score.calls import ScoreCall, ScoreReport
from cerebro.train.seeds import derive_seed
from cerebro.train.visit import (
    Allocate,
    Diverged,
    Group,
    MemberReport,
    State,
    Sums,
    Survey,
    SurveyCall,
    VisitCall,
    VisitReport,
)
from cerebro.types import Json, Params

_OBSTACLE = "Keras trains one model at a time"
_HINT = "Use a smaller batch_size or model, or fewer workers."


class KerasFramework:
    """Trains a `KerasTask` on one device of the backend that Keras runs on."""

    def __init__(self, task: Task, *, device: str = "auto", threads: int = 1, worker: int = 0):
        if not isinstance(task, KerasTask):
            raise UsageError(
                f"the framework 'keras' trains a KerasTask, not {type(task).__name__}."
            )
        if task.micro_batch is not None:
            raise UsageError(
                f"{type(task).__name__}.micro_batch must be None: give the optimizer a smaller "
                "batch_size and gradient_accumulation_steps instead."
            )
        self.task = task
        self._device = Device(device, worker=worker, threads=threads)
        self.device = self._device.kind
        self._batches = Batches()
        self._builder = Builder(task)
        #: What `load` and `load_file` gave, with what belongs to it.
        self._loaded: weakref.WeakKeyDictionary[Any, Parts] = weakref.WeakKeyDictionary()

    def versions(self) -> dict[str, str]:
        return {"keras": str(keras.__version__), self._device.backend: self._device.version()}

    def train(
        self, call: VisitCall, shard: Shard, state: State | None, allocate: Allocate
    ) -> tuple[State, VisitReport]:
        if call.stack is not None:
            raise UsageError(f"trials must be trained alone: {_OBSTACLE}, but got a stack.")
        with self._device(), memory_guard(_HINT):
            return self._train(call, shard, state, allocate)

    def _train(
        self, call: VisitCall, shard: Shard, state: State | None, allocate: Allocate
    ) -> tuple[State, VisitReport]:
        began = time.perf_counter()
        trial = call.trials[0]
        parts = self._parts(call, shard, is_new=state is None)
        past = _Past(state, call)
        if state is not None:
            parts.restore(state, with_optimizer=True)
            if call.origin is not None:
                self._rebase(parts, call, call.origin, shard)
        seed_everything(derive_seed("visit", call.seed, trial, call.epoch, call.shard))
        hooks = Hooks(parts.compiled.callbacks, parts.model, call)
        hooks.begin()
        ordered, loading = time.perf_counter(), Loading()
        size = parts.compiled.batch_size or call.batch_size
        batches = loading.of(self._batches.shuffled(shard, call, size, parts.feed))
        started = time.perf_counter()
        losses: list[float] = []
        with Meter(parts.model) as meter:
            for fed in batches:
                number = past.epoch_steps + len(losses)
                hooks.batch_begins(number)
                logs = train_on(parts.model, fed)
                values = meter.add(logs, fed.rows)
                losses.append(values["loss"])
                if not math.isfinite(losses[-1]):
                    step = len(losses) - 1
                    raise Diverged(f"loss is {losses[-1]} at step {step} of the visit")
                hooks.batch_ended(number, values)
            sums = meter.finite_sums("train_")
        ended = time.perf_counter()
        epoch = past.add(sums)
        hooks.end({name: total / rows for name, (total, rows) in epoch.items()})
        arrays = parts.arrays()
        require_finite({name: a for name, a in arrays.items() if name.startswith(MODEL)})
        meta: dict[str, Json] = {
            "steps": past.steps + len(losses),
            "epoch_steps": past.epoch_steps + len(losses),
            "epoch_sums": {name: list(pair) for name, pair in epoch.items()},
            "inputs": parts.shapes,
            "seed": call.seed,
            "trial": trial,
        }
        buffer = pack(arrays, allocate)
        finished = time.perf_counter()
        report = VisitReport(
            rows=meter.rows,
            members=(MemberReport(sums=sums, losses=tuple(losses), first_step=past.steps),),
            compute_s=ended - started,
            load_s=loading.within(ended - started),
            data_s=started - ordered,
            hop_s=(ordered - began) + (finished - ended),
        )
        return State(buffer, meta), report

    def evaluate(self, call: VisitCall, shard: Shard, state: State) -> VisitReport:
        with self._device(), memory_guard(_HINT):
            began = time.perf_counter()
            parts = self._parts(call, shard, is_new=False)
            parts.restore(state, with_optimizer=False)
            seed_everything(derive_seed("eval", call.seed, call.trials[0], call.epoch, call.shard))
            started, loading = time.perf_counter(), Loading()
            batches = self._batches.in_order(shard, self._eval_size(parts, call), parts.feed)
            with Meter(parts.model) as meter:
                for fed in loading.of(batches):
                    meter.add(test_on(parts.model, fed), fed.rows)
                sums = meter.finite_sums("val_")
            ended = time.perf_counter()
        return VisitReport(
            rows=meter.rows,
            members=(MemberReport(sums=sums),),
            compute_s=ended - started,
            load_s=loading.within(ended - started),
            hop_s=started - began,
        )

    def metric_names(self, call: VisitCall, shard: Shard) -> tuple[str, ...]:
        with self._device(), memory_guard(_HINT):
            parts = self._parts(call, shard, is_new=False)
            size = min(self._eval_size(parts, call), shard.rows)
            fed = next(self._batches.in_order(shard, size, parts.feed))
            with Meter(parts.model) as meter:
                meter.add(test_on(parts.model, fed), fed.rows)
                warn_of_others(parts.model)
                names = meter.sums()
            return tuple(names)

    def survey(self, call: SurveyCall, shard: Shard) -> Survey:
        groups = [Group(trials=(trial,), obstacle=_OBSTACLE) for trial in call.trials]
        return Survey(groups=tuple(groups), memory_bytes=0)

    def load(self, params: Params, state: State) -> Any:
        seed, trial = cast(int, state.meta["seed"]), cast(int, state.meta["trial"])
        with self._device(), as_guest(derive_seed("model", seed, trial)):
            # Another one each time: the model is the caller's.
            parts = self._builder.build(params, lambda _: zeros_like(state.meta["inputs"]))
            parts.restore(state, with_optimizer=False)
        self._loaded[parts.model] = parts
        return parts.model

    def load_file(self, params: Params, path: str, content: bytes) -> Any:
        with self._device(), as_guest(derive_seed("file", path)):
            parts = self._builder.build(params, None)
            load_weights(parts, path, content)
        self._loaded[parts.model] = parts
        return parts.model

    def score(self, call: ScoreCall, shard: Shard, models: Sequence[object]) -> ScoreReport:
        members = [self._loaded[model] for model in models]
        with self._device(), memory_guard(_HINT):
            return score_shard(type(self.task).__name__, self._batches, call, shard, members)

    def memory_bytes(self) -> int:
        return self._device.memory_bytes()

    def export(self, call: ExportCall, model: object, shard: Shard | None) -> bytes:
        return export_model(call, self._loaded[model])

    def free(self) -> None:
        self._batches.free()
        self._builder.free()
        gc.collect()
        self._device.free()

    def close(self) -> None:
        if self.device != "cpu":
            # What this process keeps, nobody else can use.
            self.free()
        self._device.close()

    def _parts(self, call: VisitCall, shard: Shard, *, is_new: bool) -> Parts:
        get = self._builder.new if is_new else self._builder.known
        sample = partial(self._batches.sample, shard)
        return get(call.seed, call.trials[0], call.params[0], sample)

    def _rebase(self, parts: Parts, call: VisitCall, origin: Params, shard: Shard) -> None:
        """Give another trial's state the learning rate that this one begins with.

        All else that an optimizer is made with is no variable, so it is this trial's own already.
        """
        begun: list[float | None] = []
        for params in (origin, call.params[0]):
            made = self._builder.build(params, partial(self._batches.sample, shard))
            made.compile()
            begun.append(made.learning_rate)
        saved = parts.learning_rate
        if saved is not None and None not in begun:
            parts.learning_rate = cast(float, rebase(saved, *begun))

    def _eval_size(self, parts: Parts, call: VisitCall) -> int:
        return self.task.eval_batch_size or parts.compiled.batch_size or call.batch_size


class _Past:
    """What a trial has behind it: its steps, and the sums of the epoch it is in."""

    def __init__(self, state: State | None, call: VisitCall) -> None:
        meta: Any = {} if state is None else state.meta
        self.steps: int = meta.get("steps", 0)
        self.epoch_steps: int = meta["epoch_steps"] if call.step > 0 and meta else 0
        self._sums: dict[str, tuple[float, int]] = (
            meta["epoch_sums"] if call.step > 0 and meta else {}
        )

    def add(self, sums: Sums) -> Sums:
        """The sums of the epoch with those of one more visit."""
        return {
            name: (
                total + self._sums.get(name, (0.0, 0))[0],
                rows + self._sums.get(name, (0, 0))[1],
            )
            for name, (total, rows) in sums.items()
        }
