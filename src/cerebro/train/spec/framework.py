"""PyTorch for a MiniBatchSpec: one visit of one trial, whose step is the user's."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import nn

from cerebro.data import Shard
from cerebro.errors import UsageError, WorkerError
from cerebro.spec import MiniBatchSpec
from cerebro.storage.tensors import Layout
from cerebro.task import ParamDict
from cerebro.train.model_file import SAFETENSORS, ExportCall
from cerebro.train.rebase import rebase_meta
from cerebro.train.score.calls import ScoreCall, ScoreReport
from cerebro.train.seeds import derive_seed
from cerebro.train.spec.batches import Minibatches
from cerebro.train.spec.build import Blueprint, Bundle
from cerebro.train.spec.score import LoadedModules, score_minibatches
from cerebro.train.spec.state import SpecComponents
from cerebro.train.spec.step import SpecSteps, Tally
from cerebro.train.spec.task import SpecTask, aggregate
from cerebro.train.torch.attributes import AttributeWatch
from cerebro.train.torch.batches import TorchBatches
from cerebro.train.torch.buffer import PrivateCopy, copy_state
from cerebro.train.torch.build import Builder, seed_everything
from cerebro.train.torch.export import export_model
from cerebro.train.torch.files import load_model_file
from cerebro.train.torch.loading import loading_on
from cerebro.train.torch.machine import pick_device, warm_up
from cerebro.train.torch.memory import device_bytes, memory_guard
from cerebro.train.torch.step import require_finite
from cerebro.train.visit import (
    Allocate,
    Group,
    MemberReport,
    State,
    Survey,
    SurveyCall,
    VisitCall,
    VisitReport,
)
from cerebro.types import Json, Params

logger = logging.getLogger("cerebro.train")

_OBSTACLE = "a MiniBatchSpec owns its step"
_HINT = "Use a smaller batch_size or model."


class SpecFramework:
    """Trains a `MiniBatchSpec` on one device."""

    def __init__(self, task: SpecTask, *, device: str = "auto", threads: int = 1, worker: int = 0):
        initialize_worker(task.spec)
        self._threads_before = torch.get_num_threads()
        if threads:
            torch.set_num_threads(threads)
        self.task = task
        self.spec = task.spec
        self._device = pick_device(device, worker)
        self.device = self._device.type
        self._batches = TorchBatches(self._device)
        self._builder = Builder(Blueprint(task.spec), self._device)
        self._private = PrivateCopy()
        self._watch = AttributeWatch()
        self._told: set[str] = set()
        self.minibatches = Minibatches(task.spec, self._batches, self._device)
        self.steps = SpecSteps(task, self._device)
        warm_up(self._device)

    def versions(self) -> dict[str, str]:
        return {"torch": str(torch.__version__)}

    def train(
        self, call: VisitCall, shard: Shard, state: State | None, allocate: Allocate
    ) -> tuple[State, VisitReport]:
        if call.stack is not None:
            raise UsageError(f"trials must be trained alone where {_OBSTACLE}, but got a stack.")
        with memory_guard(self.task, self._device, call, _HINT):
            if call.origin is not None and state is not None:
                state = self._rebased(call, call.origin, state)
            return self._train(call, shard, state, allocate)

    def _rebased(self, call: VisitCall, origin: Params, state: State) -> State:
        """Another trial's state, with the hyperparameters that this one begins with."""
        old, new = (
            self._build(call.seed, call.trials[0], params, is_new=False).made_meta()
            for params in (origin, call.params[0])
        )
        return State(state.buffer, rebase_meta(state.meta, old, new))

    def _train(
        self, call: VisitCall, shard: Shard, state: State | None, allocate: Allocate
    ) -> tuple[State, VisitReport]:
        began = time.perf_counter()
        trial, params = call.trials[0], ParamDict(call.params[0])
        parts = self._build(call.seed, trial, params, is_new=state is None)
        bound: tuple[Layout, memoryview] | None = None
        steps = 0
        if state is not None:
            bound = copy_state(state, allocate)
            parts.bind(*bound, state.meta)
            steps = cast(int, state.meta["steps"])
        watched = self._watch.begin(trial, parts.bundle)
        seed_everything(derive_seed("visit", call.seed, trial, call.epoch, call.shard))
        parts.bundle.train()
        ordered, loading = time.perf_counter(), loading_on(self._device)
        batches = loading.of(self.minibatches.shuffled(shard, call))
        started = time.perf_counter()
        tally = Tally(f"{self.steps.name}.train", "train_")
        model_object = parts.model_object
        for batch in batches:
            model_object, metrics = self.steps.train(model_object, batch, params)
            tally.add(metrics, batch.rows)
        losses = tally.losses()
        ended = time.perf_counter()
        parts = parts.after(model_object, f"{self.steps.name}.train")
        require_finite(parts)
        self._watch.end(watched, parts.bundle)
        self._warn_of(parts)
        meta: dict[str, Json] = {
            **parts.meta(),
            "steps": steps + len(tally.sizes),
            "seed": call.seed,
            "trial": trial,
        }
        buffer = parts.save(allocate, bound)
        member = self._member(tally, losses, steps)
        finished = time.perf_counter()
        report = VisitReport(
            rows=sum(tally.sizes),
            members=(member,),
            compute_s=ended - started,
            load_s=loading.within(ended - started),
            data_s=started - ordered,
            hop_s=(ordered - began) + (finished - ended),
            train_names=self._train_names(call, params, member),
        )
        return State(buffer, meta), report

    def evaluate(self, call: VisitCall, shard: Shard, state: State) -> VisitReport:
        with memory_guard(self.task, self._device, call, _HINT):
            began = time.perf_counter()
            trial, params = call.trials[0], ParamDict(call.params[0])
            parts = self._bound(call.seed, trial, params, state, self._private)
            seed_everything(derive_seed("eval", call.seed, trial, call.epoch, call.shard))
            started, loading = time.perf_counter(), loading_on(self._device)
            tally = Tally(self.steps.judge_name, "val_")
            with self.judging(parts.bundle):
                for batch in loading.of(self.minibatches.in_order(shard, call.batch_size)):
                    metrics = self.steps.judge(parts.model_object, batch, params)
                    tally.add(metrics, batch.rows)
            member = self._member(tally)
            ended = time.perf_counter()
        return VisitReport(
            rows=shard.rows,
            members=(member,),
            compute_s=ended - started,
            load_s=loading.within(ended - started),
            hop_s=started - began,
        )

    def metric_names(self, call: VisitCall, shard: Shard) -> tuple[str, ...]:
        if self.task.val_test is None:
            return ()
        params, size = ParamDict(call.params[0]), min(call.batch_size, shard.rows)
        with memory_guard(self.task, self._device, call, _HINT):
            bundle = self._builder.model(call.seed, call.trials[0], params)
            batch = next(self.minibatches.in_order(shard, size))
            with self.judging(bundle):
                found = self.steps.judge(cast(Bundle, bundle).components, batch, params)
        if not self._aggregates:
            return tuple(found)
        tally = Tally(self.steps.judge_name, "val_")
        tally.add(found, batch.rows)
        return tuple(aggregate(self.spec, "val", params, tally.batches()))

    def survey(self, call: SurveyCall, shard: Shard) -> Survey:
        groups = [Group(trials=(trial,), obstacle=_OBSTACLE) for trial in call.trials]
        return Survey(groups=tuple(groups), memory_bytes=0)

    def load(self, params: Params, state: State) -> LoadedModules:
        seed, trial = cast(int, state.meta["seed"]), cast(int, state.meta["trial"])
        with self._builder.as_guest():
            # Another copy each time: the modules are the caller's.
            parts = self._bound(seed, trial, ParamDict(params), state, PrivateCopy())
        return LoadedModules(parts.bundle.eval())

    def load_file(self, params: Params, path: str, content: bytes) -> LoadedModules:
        with self._builder.as_guest():
            model = load_model_file(self._builder, self._device, params, path, content)
        if not isinstance(model, Bundle):
            raise UsageError(
                f"a MiniBatchSpec needs the weights of its modules, but {path} is a graph: export "
                "them to safetensors."
            )
        return LoadedModules(model)

    def score(self, call: ScoreCall, shard: Shard, models: Sequence[object]) -> ScoreReport:
        return score_minibatches(self.steps, self.minibatches, self._device, call, shard, models)

    def memory_bytes(self) -> int:
        return device_bytes(self._device)

    def export(self, call: ExportCall, model: object, shard: Shard | None) -> bytes:
        loaded = cast(LoadedModules, model)
        if call.to == SAFETENSORS:
            return export_model(call, loaded.bundle, self._batches, shard)
        if len(loaded) > 1:
            raise UsageError(
                f"a graph is made of one module, but {self.steps.name} has {', '.join(loaded)}: "
                "export to safetensors, or load the trial and export a module yourself."
            )
        return export_model(call, next(iter(loaded.values())), self._batches, shard)

    @contextlib.contextmanager
    def judging(self, bundle: nn.Module) -> Iterator[None]:
        """Modules are in evaluation mode, and no gradients are kept."""
        bundle.eval()
        with torch.no_grad():
            yield

    def free(self) -> None:
        self._batches.free()
        self._private = PrivateCopy()
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def close(self) -> None:
        if self.device == "cuda":
            # What this process keeps, nobody else can use.
            self.free()
        torch.set_num_threads(self._threads_before)

    @property
    def _aggregates(self) -> bool:
        return self.spec.has("metrics_agg")

    def _build(self, seed: int, trial: int, params: Params, *, is_new: bool) -> SpecComponents:
        build = self._builder.model if is_new else self._builder.skeleton
        return SpecComponents(cast(Bundle, build(seed, trial, params)), self._device)

    def _bound(
        self, seed: int, trial: int, params: Params, state: State, memory: PrivateCopy
    ) -> SpecComponents:
        parts = self._build(seed, trial, params, is_new=False)
        parts.bind_model(*memory.take(state), state.meta)
        return parts

    def _member(
        self, tally: Tally, losses: tuple[float, ...] = (), first_step: int = 0
    ) -> MemberReport:
        if self._aggregates:
            batches = tally.batches()
            return MemberReport(sums={}, batches=batches, losses=losses, first_step=first_step)
        return MemberReport(sums=tally.sums(), losses=losses, first_step=first_step)

    def _train_names(
        self, call: VisitCall, params: Params, member: MemberReport
    ) -> tuple[str, ...]:
        if not call.probe or member.batches is None:
            return ()
        return tuple(aggregate(self.spec, "train", params, member.batches))

    def _warn_of(self, parts: SpecComponents) -> None:
        for name in parts.strangers():
            if name not in self._told:
                self._told.add(name)
                logger.warning(
                    "train() put %r into the model_object, a %s, which does not travel with the "
                    "trial: it is gone at the next visit. Make it in create_model_components, "
                    "with state_dict and load_state_dict if it has a state.",
                    *(name, type(parts.model_object[name]).__name__),
                )


#: Specs whose `initialize_worker` has been called, and in which process.
_INITIALIZED: list[tuple[int, weakref.ref[Any]]] = []


def initialize_worker(spec: MiniBatchSpec) -> None:
    """Call the spec's `initialize_worker`, unless that was done in this process."""
    pid = os.getpid()
    if any(number == pid and known() is spec for number, known in _INITIALIZED):
        return
    try:
        spec.initialize_worker()
    except Exception as error:
        raise WorkerError(
            f"{type(spec).__name__}.initialize_worker failed: {type(error).__name__}: {error}"
        ) from error
    _INITIALIZED[:] = [each for each in _INITIALIZED if each[1]() is not None]
    _INITIALIZED.append((pid, weakref.ref(spec)))
