"""Looks at trials before a run: which could be trained as one, why not, and what it would cost."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import psutil
import torch

from cerebro.data import Shard
from cerebro.task import ParamDict, Task
from cerebro.train.stack.batches import first_rows, tensor_columns
from cerebro.train.stack.build import MixedParams
from cerebro.train.stack.cost import count, predict, predict_compiled, rates_of
from cerebro.train.stack.rewrite import is_random
from cerebro.train.stack.structure import (
    obstacle,
    optimizer_structure,
    structure_of,
)
from cerebro.train.stack.trace import CannotTrace, ReadParams, Traced
from cerebro.train.stack.trainer import StackTrainer
from cerebro.train.torch.buffer import allocate_pages
from cerebro.train.torch.build import Builder
from cerebro.train.torch.precision import amp_of, precision
from cerebro.train.visit import (
    Diverged,
    Group,
    MemberReport,
    Stacking,
    State,
    Sums,
    Survey,
    SurveyCall,
    VisitCall,
    VisitReport,
)
from cerebro.types import Params, Split

#: Steps, and how far a stack's losses may be off a plain loop's.
_CHECKED_STEPS = 3
_TOLERANCE = {None: 1e-3, "tf32": 2e-2, "bf16": 1e-1}
#: Rows that rounding may put into another class, as an accuracy counts them.
_UNSURE_ROWS = 2
#: Numbers of members to measure, and steps for each.
_MEASURED = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_MEASURED_STEPS = 8

#: No unit of a run has this number.
_UNIT = -(2**62)

Train = Callable[..., tuple[State, VisitReport]]


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    number: int
    params: Params
    batch_size: int
    obstacle: str


class Surveyor:
    """Groups trials for one worker.

    Args:
        plain: Trains a visit of a single trial.
    """

    def __init__(
        self,
        task: Task,
        builder: Builder,
        trainer: StackTrainer,
        device: torch.device,
        plain: Train,
    ) -> None:
        self._task = task
        self._builder = builder
        self._trainer = trainer
        self._device = device
        self._plain = plain
        self._structures: dict[Hashable, tuple[Any, Hashable]] = {}

    def survey(self, call: SurveyCall, shard: Shard) -> Survey:
        """The groups of these trials."""
        groups: dict[Hashable, list[_Trial]] = {}
        for number, params, size in zip(call.trials, call.params, call.batch_sizes, strict=True):
            key, why_not = self._key(call.seed, number, ParamDict(params))
            trial = _Trial(number, ParamDict(params), size, why_not)
            groups.setdefault((key, trial.batch_size, bool(why_not)), []).append(trial)
        columns = "" if tensor_columns(shard) else "a column of the data is not a tensor"
        found: list[Group] = []
        for trials in groups.values():
            why_not = trials[0].obstacle or columns
            if why_not:
                found.append(Group(trials=_numbers(trials), obstacle=why_not))
            else:
                found += self._try(call, shard, trials)
        return Survey(groups=tuple(found), memory_bytes=self._memory())

    def _key(self, seed: int, trial: int, params: Params) -> tuple[Hashable, str]:
        """What trials of one group have in common, and what is in the way of any group."""
        task = self._task
        try:
            model, structure = self._structure(seed, trial, params)
            optimizer, scheduler = self._builder.optimizer(model, seed, trial, params)
        except ValueError as error:
            return trial, str(error)
        except Exception:
            # Its own visit will tell what is wrong.
            return trial, "it cannot be built"
        why_not = obstacle(task, params, model, optimizer, scheduler)
        key = optimizer_structure(model, optimizer, scheduler), params.get("amp", task.amp)
        return (structure, key), why_not

    def _structure(self, seed: int, trial: int, params: Params) -> tuple[Any, Hashable]:
        """A model of the trial's structure; built once for all that agree in what model() reads."""
        for key, known in self._structures.items():
            if all(params.get(name, _ABSENT) == value for name, value in key):  # type: ignore[attr-defined]
                return known
        reads: set[str] = set()
        model = self._builder.skeleton(seed, trial, ReadParams(params, reads))
        key = tuple((name, params.get(name, _ABSENT)) for name in sorted(reads))
        found = model, structure_of(model)
        if all(_is_hashable(value) for _, value in key):
            self._structures[key] = found
        return found

    def _try(self, call: SurveyCall, shard: Shard, trials: list[_Trial]) -> Iterator[Group]:
        """Train a few steps both ways: stacked, and one trial after the other."""
        size = trials[0].batch_size
        few = first_rows(shard, _CHECKED_STEPS * size)
        every = [trial.params for trial in trials]
        try:
            with precision(amp_of(self._task, every[0])):
                _, traced = self._trainer.trace(_visit(call, trials[:2]), few, every)
                _require_told(call, traced)
                is_alike = all(
                    self._agree(call, few, pair, is_random=is_random(traced.module))
                    for pair in dict.fromkeys([tuple(trials[:2]), tuple(trials[-2:])])
                )
                group = self._price(call, shard, trials)
        except MixedParams as error:
            parts: dict[Hashable, list[_Trial]] = {}
            for trial in trials:
                values = tuple(repr(trial.params.get(name)) for name in sorted(error.names))
                parts.setdefault(values, []).append(trial)
            for part in parts.values():
                yield from self._try(call, shard, part)
            return
        except CannotTrace as error:
            yield Group(trials=_numbers(trials), obstacle=str(error))
            return
        except Exception as error:
            # Whatever is wrong with them, they may well go on alone; if not, their visits tell.
            text = f"{type(error).__name__}: {error}".split("\n")[0]
            yield Group(trials=_numbers(trials), obstacle=f"{text:.200}")
            return
        if not is_alike:
            yield Group(
                trials=_numbers(trials),
                obstacle="stacked and plain training give other losses or training metrics",
            )
            return
        yield group

    def _agree(
        self, call: SurveyCall, shard: Shard, trials: Sequence[_Trial], *, is_random: bool
    ) -> bool:
        """Whether a few steps give the same losses and training metrics both ways.

        Not the same weights: some do not bear on the loss (a bias before batch norm), and what an
        optimizer makes of their gradients is noise.
        """
        visit = _visit(call, trials)
        try:
            _, report = self._trainer.train(visit, shard, None, allocate_pages)
            members = report.members
        except Diverged as error:
            members = tuple(MemberReport(sums={}, diverged=str(error)) for _ in trials)
        finally:
            self._trainer.forget(_UNIT)
        if self._device.type == "cuda" and is_random:
            # Masks are drawn in another way there.
            return True
        amp = trials[0].params.get("amp", self._task.amp)
        tolerance = _TOLERANCE.get(amp, 1e-3)  # type: ignore[arg-type]
        for trial, member in zip(trials, members, strict=True):
            alone = replace(_visit(call, [trial]), stack=None)
            try:
                _, expected = self._plain(alone, shard, None, allocate_pages)
            except Diverged:
                if member.diverged is None:
                    return False
                continue
            if member.diverged is not None:
                return False
            pairs = zip(expected.members[0].losses, member.losses, strict=True)
            if any(abs(a - b) > tolerance * (abs(a) + 1e-2) for a, b in pairs):
                return False
            told = _pairs(expected.members[0].sums, member.sums)
            if any(abs(a - b) > tolerance * abs(a) + _UNSURE_ROWS for a, b in told):
                return False
        return True

    def _price(self, call: SurveyCall, shard: Shard, trials: list[_Trial]) -> Group:
        visit = _visit(call, trials[:2])
        members, traced = self._trainer.trace(visit, shard)
        shapes = members.shapes()
        sizes = {n: dtype.itemsize * math.prod(shape) for n, (dtype, shape) in shapes.items()}
        trained = sum(sizes[f"model.{name}"] for name in members.trained)
        work = count(traced.module, len(visit.trials), sum(sizes.values()), trained)
        rates = rates_of(self._device.type, trials[0].params.get("amp", self._task.amp))
        compile_s, compiled = predict_compiled(work, rates)
        step_s = predict(work, rates)
        if call.measure:
            with contextlib.suppress(Diverged):
                step_s = self._measure(call, shard, trials)
                compile_s, compiled = 0.0, {}
        return Group(
            trials=_numbers(trials),
            state_bytes=work.state_bytes,
            step_bytes=work.step_bytes,
            step_s=step_s,
            compile_s=compile_s,
            compiled_step_s=compiled,
        )

    def _measure(self, call: SurveyCall, shard: Shard, trials: list[_Trial]) -> dict[int, float]:
        """Seconds of a step for different numbers of members, from one visit each to warm up."""
        size = trials[0].batch_size
        few = first_rows(shard, _MEASURED_STEPS * size)
        steps = -(-few.rows // size)
        plain = replace(_visit(call, trials[:1]), stack=None)
        found = {0: self._time(partial(self._plain, plain, few, None, allocate_pages), steps)}
        for number in (n for n in _MEASURED if n <= len(trials)):
            train = partial(self._trainer.train, _visit(call, trials[:number]))
            found[number] = self._time(partial(train, few, None, allocate_pages), steps)
        return found

    def _time(self, train: Callable[[], tuple[State, VisitReport]], steps: int) -> float:
        train()
        return min(train()[1].compute_s for _ in range(3)) / steps

    def _memory(self) -> int:
        if self._device.type == "cuda":
            return int(torch.cuda.mem_get_info(self._device)[0])
        return int(psutil.virtual_memory().total)


_ABSENT = object()


def _visit(call: SurveyCall, trials: Sequence[_Trial]) -> VisitCall:
    return VisitCall(
        unit=_UNIT,
        trials=_numbers(trials),
        params=tuple(trial.params for trial in trials),
        seed=call.seed,
        epoch=0,
        step=0,
        steps=2,
        split=Split.TRAIN,
        shard=0,
        attempt=0,
        batch_size=trials[0].batch_size,
        stack=Stacking(),
        same_order=call.same_order,
        # Others may wait for the worker that is asked, but none of them has heard of this.
        is_alone=True,
    )


def _require_told(call: SurveyCall, traced: Traced) -> None:
    missing = sorted(call.goes_by - set(traced.values))
    if missing:
        raise CannotTrace(f"the run goes by train_{missing[0]}, which stacks cannot tell")


def _pairs(expected: Sums, found: Sums) -> Iterator[tuple[float, float]]:
    """Sums of what both have."""
    for name in expected.keys() & found.keys():
        yield expected[name][0], found[name][0]


def _numbers(trials: Sequence[_Trial]) -> tuple[int, ...]:
    return tuple(trial.number for trial in trials)


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
