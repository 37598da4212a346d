"""PyTorch: one visit of one trial, trained, evaluated or loaded."""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from cerebro.data import Shard
from cerebro.errors import UsageError
from cerebro.storage.tensors import Layout
from cerebro.task import Task
from cerebro.track.graph import GraphNode
from cerebro.train.gang.gradients import BucketMemory
from cerebro.train.gang.group import Gang
from cerebro.train.gang.parts import part_of
from cerebro.train.gang.visit import GangVisit, add_up, begin_alike
from cerebro.train.loading import Loading
from cerebro.train.meter import Meter, training_sums
from cerebro.train.model_file import ExportCall
from cerebro.train.rebase import rebase_meta
from cerebro.train.score.calls import ScoreCall, ScoreReport
from cerebro.train.seeds import derive_seed
from cerebro.train.stack.survey import Surveyor
from cerebro.train.stack.trainer import StackTrainer
from cerebro.train.told import told
from cerebro.train.torch.attributes import AttributeWatch
from cerebro.train.torch.batches import TorchBatches
from cerebro.train.torch.buffer import PrivateCopy, copy_state
from cerebro.train.torch.build import Builder, seed_everything
from cerebro.train.torch.device import Rows
from cerebro.train.torch.export import export_model
from cerebro.train.torch.files import load_model_file
from cerebro.train.torch.graph import model_graph
from cerebro.train.torch.loading import augmented, loading_on
from cerebro.train.torch.machine import pick_device, warm_up
from cerebro.train.torch.memory import device_bytes, memory_guard
from cerebro.train.torch.metrics import metrics_of
from cerebro.train.torch.precision import amp_of, autocast, precision
from cerebro.train.torch.score import score_shard
from cerebro.train.torch.state import Components
from cerebro.train.torch.step import TrainStep, micro_batch_of, require_finite, scalar
from cerebro.train.visit import (
    Allocate,
    Diverged,
    MemberReport,
    State,
    Sums,
    Survey,
    SurveyCall,
    VisitCall,
    VisitReport,
)
from cerebro.types import Json, Params

#: Trains on a batch, or a part of one, of so many rows in all; gives its mean loss.
Step = Callable[[Any, int], Any]


class TorchFramework:
    """Trains a `Task` with PyTorch on one device."""

    #: Whether it may be one of several ranks (`join`).
    can_join = True

    def __init__(self, task: Task, *, device: str = "auto", threads: int = 1, worker: int = 0):
        self._threads_before = torch.get_num_threads()
        if threads:
            torch.set_num_threads(threads)
        self.task = task
        self._device = pick_device(device, worker)
        self.device = self._device.type
        self._batches = TorchBatches(self._device, task)
        self._builder = Builder(task, self._device)
        self._stacks = StackTrainer(
            task, self._device, self._builder, self._evaluate, self._batches.on_device
        )
        self._private = PrivateCopy()
        self._watch = AttributeWatch()
        self._gang: Gang | None = None
        self._buckets = BucketMemory()
        warm_up(self._device)

    def versions(self) -> dict[str, str]:
        # Not the object itself: to unpickle it imports torch.
        return {"torch": str(torch.__version__)}

    @property
    def accelerator(self) -> str:
        """What tells its GPU from all others; "" on the CPU."""
        if self.device != "cuda":
            return ""
        return str(torch.cuda.get_device_properties(self._device).uuid)

    def join(self, gang: Gang | None) -> None:
        """Be one of several ranks from now on, or alone again: all must be given the same calls."""
        self._gang = gang

    def train(
        self, call: VisitCall, shard: Shard, state: State | None, allocate: Allocate
    ) -> tuple[State, VisitReport]:
        if call.stack is not None and self._gang_of(call) is not None:
            raise UsageError("a gang must train one trial at a time, but got a stack.")
        if call.stack is not None and micro_batch_of(self.task, call) is not None:
            raise UsageError("trials with micro batches must be trained alone, but got a stack.")
        with self._visiting(call):
            if call.origin is not None and state is not None:
                state = self._rebased(call, call.origin, state)
            if call.stack is not None:
                return self._stacks.train(call, shard, state, allocate)
            return self._train(call, shard, state, allocate)

    def _rebased(self, call: VisitCall, origin: Params, state: State) -> State:
        """Another trial's state, with the hyperparameters that this one begins with."""
        seed, trial = call.seed, call.trials[0]
        old, new = (
            self._build(seed, trial, params, is_new=False).meta()
            for params in (origin, call.params[0])
        )
        return State(state.buffer, rebase_meta(state.meta, old, new))

    def _train(
        self, call: VisitCall, shard: Shard, state: State | None, allocate: Allocate
    ) -> tuple[State, VisitReport]:
        began = time.perf_counter()
        params, gang = call.params[0], self._gang_of(call)
        waited_s = _waited_s(gang)
        parts = self._build(call.seed, call.trials[0], params, is_new=state is None)
        if gang is not None and state is None:
            begin_alike(gang, parts, call)
        bound: tuple[Layout, memoryview] | None = None
        steps, epoch_loss, epoch_rows = 0, 0.0, 0
        if state is not None:
            bound = copy_state(state, allocate)
            parts.bind(*bound, state.meta)
            steps = cast(int, state.meta["steps"])
            if call.step > 0:
                epoch_loss, epoch_rows = cast("tuple[float, int]", state.meta["epoch_loss"])
        watched = self._watch.begin(call.trials[0], parts.model)
        seed_everything(self._seed_for("visit", call))
        if call.step == 0:
            self.task.on_epoch_start(parts.model, parts.optimizer, params, call.epoch)
        parts.model.train()
        ordered = time.perf_counter()
        loading = loading_on(self._device)
        step: Step
        if gang is None:
            batches = loading.of(self._batches.shuffled(shard, call))
            step = TrainStep(self.task, parts, call, self.device)
        else:
            visit = GangVisit(gang, self.task, parts, call, self._device, self._buckets)
            batches, step = visit.batches(shard, self._batches, loading), visit.step
        if self.task.has("augment"):
            batches = augmented(batches, self.task, params, self._generator(call), loading)
        started, before_s = time.perf_counter(), _waited_s(gang)
        losses, sizes, totals = self._metered_loop(parts, batches, step, call)
        ended, looped_s = time.perf_counter(), _waited_s(gang) - before_s
        if gang is not None:
            visit.settle()
        total, rows = _weigh(losses, sizes), sum(sizes)
        epoch_loss, epoch_rows = epoch_loss + total, epoch_rows + rows
        if call.step == call.steps - 1:
            self._end_epoch(parts, params, call.epoch, epoch_loss / epoch_rows)
        require_finite(parts)
        self._watch.end(watched, parts.model)
        meta: dict[str, Json] = {
            **parts.meta(),
            "steps": steps + len(losses),
            "epoch_loss": [epoch_loss, epoch_rows],
            "seed": call.seed,
            "trial": call.trials[0],
        }
        buffer = parts.save(allocate, bound)
        finished = time.perf_counter()
        comm_s, compute_s = _waited_s(gang) - waited_s, ended - started - looped_s
        report = VisitReport(
            rows=rows,
            members=(
                MemberReport(
                    sums={"loss": (total, rows), **training_sums(totals, rows)},
                    losses=tuple(losses),
                    first_step=steps,
                ),
            ),
            compute_s=compute_s,
            load_s=loading.within(compute_s),
            data_s=started - ordered,
            hop_s=(ordered - began) + (finished - ended) - (comm_s - looped_s),
            comm_s=comm_s,
        )
        return State(buffer, meta), report

    def evaluate(self, call: VisitCall, shard: Shard, state: State) -> VisitReport:
        with self._visiting(call):
            if call.stack is not None:
                return self._stacks.evaluate(call, shard, state, self._eval_size(call))
            return self._evaluate(call, shard, state)

    def _evaluate(self, call: VisitCall, shard: Shard, state: State) -> VisitReport:
        began = time.perf_counter()
        params, gang = call.params[0], self._gang_of(call)
        waited_s = _waited_s(gang)
        parts = self._build(call.seed, call.trials[0], params, is_new=False)
        parts.bind_model(*self._private.take(state), state.meta)
        seed_everything(self._seed_for("eval", call))
        started = time.perf_counter()
        loading = loading_on(self._device)
        sums = self._score(parts.model, shard, call, params, loading)
        comm_s = _waited_s(gang) - waited_s
        compute_s = time.perf_counter() - started - comm_s
        return VisitReport(
            rows=shard.rows,
            members=(MemberReport(sums=sums),),
            compute_s=compute_s,
            load_s=loading.within(compute_s),
            hop_s=started - began,
            comm_s=comm_s,
        )

    def metric_names(self, call: VisitCall, shard: Shard) -> tuple[str, ...]:
        params = call.params[0]
        with self._visiting(call), torch.no_grad():
            model = self._builder.model(call.seed, call.trials[0], params).eval()
            size = min(self._eval_size(call), shard.rows)
            batch, _ = next(self._batches.in_order(shard, size))
            return ("loss", *metrics_of(self.task, model, batch, params))

    def graph(self, call: VisitCall, shard: Shard) -> tuple[GraphNode, ...]:
        params = call.params[0]
        with self._visiting(call):
            model = self._builder.model(call.seed, call.trials[0], params).eval()
            batch, _ = next(self._batches.in_order(shard, min(call.batch_size, shard.rows, 16)))
            return model_graph(self.task, model, batch, params)

    def survey(self, call: SurveyCall, shard: Shard) -> Survey:
        surveyor = Surveyor(self.task, self._builder, self._stacks, self._device, self.train)
        return surveyor.survey(call, shard)

    def load(self, params: Params, state: State) -> nn.Module:
        seed, trial = cast(int, state.meta["seed"]), cast(int, state.meta["trial"])
        with self._builder.as_guest():
            parts = self._build(seed, trial, params, is_new=False)
            # Another copy each time: the model is the caller's.
            parts.bind_model(*PrivateCopy().take(state), state.meta)
        return parts.model.eval()

    def load_file(self, params: Params, path: str, content: bytes) -> nn.Module:
        with self._builder.as_guest():
            return load_model_file(self._builder, self._device, params, path, content)

    def score(self, call: ScoreCall, shard: Shard, models: Sequence[object]) -> ScoreReport:
        return score_shard(self.task, self._device, self._batches, call, shard, models)

    def memory_bytes(self) -> int:
        return device_bytes(self._device)

    def export(self, call: ExportCall, model: object, shard: Shard | None) -> bytes:
        return export_model(call, cast(nn.Module, model), self._batches, shard)

    def free(self) -> None:
        self._batches.free()
        self._stacks.free()
        self._buckets = BucketMemory()
        self._private = PrivateCopy()
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def close(self) -> None:
        self._stacks.close()
        if self.device == "cuda":
            # What this process keeps, nobody else can use.
            self.free()
        torch.set_num_threads(self._threads_before)

    @contextlib.contextmanager
    def _visiting(self, call: VisitCall) -> Iterator[None]:
        amp = amp_of(self.task, call.params[0])
        with precision(amp), memory_guard(self.task, self._device, call):
            yield

    def _build(self, seed: int, trial: int, params: Params, *, is_new: bool) -> Components:
        build = self._builder.model if is_new else self._builder.skeleton
        model = build(seed, trial, params)
        optimizer, scheduler = self._builder.optimizer(model, seed, trial, params)
        scaler = None
        if self.device == "cuda" and amp_of(self.task, params) == "fp16":
            scaler = torch.amp.GradScaler("cuda")
        return Components(model, optimizer, scheduler, scaler)

    def _gang_of(self, call: VisitCall) -> Gang | None:
        return None if call.is_alone else self._gang

    def _seed_for(self, purpose: str, call: VisitCall) -> int:
        """Each rank draws its own numbers; the first those of a worker alone."""
        gang = self._gang_of(call)
        rank = () if gang is None or gang.rank == 0 else (gang.rank,)
        return derive_seed(purpose, call.seed, call.trials[0], call.epoch, call.shard, *rank)

    def _metered_loop(
        self, parts: Components, batches: Iterator[Rows], step: Step, call: VisitCall
    ) -> tuple[list[float], list[int], dict[str, float]]:
        """Also sums over all rows of what the task has told of its batches."""
        meter = Meter()
        with told(self.task, "meter", meter):
            losses, sizes = self._loop(parts, batches, step)
        gang, totals = self._gang_of(call), meter.totals()
        return losses, sizes, totals if gang is None else add_up(gang, totals)

    def _loop(
        self, parts: Components, batches: Iterator[Rows], step: Step
    ) -> tuple[list[float], list[int]]:
        each_batch = parts.scheduler if self.task.scheduler_step == "batch" else None
        losses: list[Any] = []
        sizes: list[int] = []
        for batch, rows in batches:
            losses.append(step(batch, rows))
            sizes.append(rows)
            if each_batch is not None:
                _step_scheduler(each_batch, losses[-1])
        if self.device != "cpu":
            losses = [float(v) for v in torch.stack(losses).float().cpu().tolist()]
            if not all(map(math.isfinite, losses)):
                raise Diverged("loss is not finite")
        return losses, sizes

    def _end_epoch(self, parts: Components, params: Params, epoch: int, loss: float) -> None:
        if parts.scheduler is not None and self.task.scheduler_step == "epoch":
            _step_scheduler(parts.scheduler, loss)
        self.task.on_epoch_end(parts.model, parts.optimizer, params, epoch)

    def _score(
        self, model: nn.Module, shard: Shard, call: VisitCall, params: Params, loading: Loading
    ) -> Sums:
        model.eval()
        totals: dict[str, float] = {}
        gang = self._gang_of(call)
        rows_of = None if gang is None else np.arange(*part_of(shard.rows, gang.rank, gang.size))
        inside = autocast(amp_of(self.task, params), self.device) or contextlib.nullcontext
        with torch.no_grad(), inside():
            batches = self._batches.batches(shard, self._eval_size(call), rows_of)
            for batch, rows in loading.of(batches):
                values = {"loss": self.task.loss(model, batch, params)}
                values.update(metrics_of(self.task, model, batch, params))
                for name, value in values.items():
                    totals[name] = totals.get(name, 0.0) + scalar(value, name) * rows
        if gang is not None:
            totals = add_up(gang, totals)
        for name, total in totals.items():
            if not math.isfinite(total):
                raise Diverged(f"val_{name} is {total / shard.rows}")
        return {name: (total, shard.rows) for name, total in totals.items()}

    def _eval_size(self, call: VisitCall) -> int:
        size = self.task.eval_batch_size
        if size is None:
            # As many as fit in training.
            ranks = 1 if (gang := self._gang_of(call)) is None else gang.size
            own = micro_batch_of(self.task, call)
            if own is not None and call.micro_batch is None:
                return own
            return -(-(own or call.batch_size) // ranks)
        if not isinstance(size, int) or size < 1:
            raise UsageError(
                f"{type(self.task).__name__}.eval_batch_size must be an integer of at least 1 or "
                f"None, but is {size!r}."
            )
        return size

    def _generator(self, call: VisitCall) -> torch.Generator:
        generator = torch.Generator(device=self._device)
        return generator.manual_seed(self._seed_for("augment", call))


def _step_scheduler(scheduler: Any, loss: Any) -> None:
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        scheduler.step(loss)
    else:
        scheduler.step()


def _waited_s(gang: Gang | None) -> float:
    return 0.0 if gang is None else gang.waited_s


def _weigh(values: list[float], sizes: list[int]) -> float:
    return math.fsum(value * rows for value, rows in zip(values, sizes, strict=True))
