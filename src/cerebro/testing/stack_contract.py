"""What every framework must do with stacks, as a suite of tests; part of `FrameworkContract`.

A framework whose survey gives an obstacle is excused.
"""

from __future__ import annotations

import json
import unittest
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cerebro.data import Dataset, Shard
from cerebro.storage.stacked import take_member
from cerebro.storage.tensors import Layout
from cerebro.task import ParamDict
from cerebro.train.visit import (
    Framework,
    MemberReport,
    Stacking,
    State,
    SurveyCall,
    VisitCall,
    VisitReport,
)
from cerebro.types import Json, Split

_NUMPY = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I64": "<i8", "I32": "<i4", "U8": "u1"}
_TRIALS = (3, 5, 8)
_VISITS = 3


class Memory:
    """Hands out buffers, and remembers them."""

    def __init__(self) -> None:
        self.given: list[memoryview] = []

    def __call__(self, size: int) -> memoryview:
        self.given.append(memoryview(bytearray(size)))
        return self.given[-1]


class StackContract:
    """Tests that hold for any framework that can train trials as one."""

    #: The params of a trial that learns.
    params: Mapping[str, Json] = {"lr": 0.1}
    batch_size = 8
    #: How far a member may be from the trial alone.
    rtol = 1e-4

    def make(self) -> Framework:
        """A fresh framework for a task with at least one metric, the same every time."""
        raise NotImplementedError("write make(self)")

    def dataset(self, directory: Path) -> Dataset:
        """Two training shards whose rows are no multiple of 8, and over 256 rows of validation."""
        raise NotImplementedError("write dataset(self, directory)")

    def means(self, model: object, shard: Shard) -> Mapping[str, float]:
        """The mean loss and metrics of a loaded model over all rows, computed by hand."""
        raise NotImplementedError("write means(self, model, shard)")

    def stack_params(self) -> Sequence[Mapping[str, Json]]:
        """Params of three trials that can be trained as one."""
        return [self.params, *({**self.params, "lr": lr} for lr in (0.05, 0.02))]

    def test_a_survey_puts_every_trial_into_one_group(self, tmp_path: Path) -> None:
        framework, data = self.make(), self.dataset(tmp_path)
        call = self._survey_call()
        survey = framework.survey(call, data.open_shard(Split.TRAIN, 0))
        found = [trial for group in survey.groups for trial in group.trials]
        assert sorted(found) == sorted(call.trials)
        for group in survey.groups:
            sizes = [n for n, trial in enumerate(call.trials) if trial in group.trials]
            assert len({call.batch_sizes[n] for n in sizes}) == 1
            if group.obstacle is None:
                assert group.state_bytes > 0
                assert {0, 1} <= group.step_s.keys()
                assert min(group.step_s.values()) > 0
                assert survey.memory_bytes > 0

    def test_the_state_of_a_stack_has_an_axis_for_its_members(self, tmp_path: Path) -> None:
        framework, data = self._stackable(tmp_path)
        memory = Memory()
        state, report = self._train_stack(framework, data, 0, None, memory=memory)
        assert state.buffer.nbytes == memory.given[-1].nbytes
        assert {entry.shape[0] for entry in Layout.parse(state.buffer).entries} == {len(_TRIALS)}
        assert state.meta["trials"] == list(_TRIALS)
        assert len(report.members) == len(_TRIALS)
        assert json.loads(json.dumps(state.meta, allow_nan=False)) == state.meta

    def test_a_member_of_a_stack_learns_what_it_learns_alone(self, tmp_path: Path) -> None:
        framework, data = self._stackable(tmp_path)
        stacked, reports = self._chain_stack(framework, data)
        for index, trial in enumerate(_TRIALS):
            alone, own = self._chain_alone(framework, data, index)
            self._assert_close(self._member(stacked[-1], trial), alone[-1])
            for one, other in zip(reports, own, strict=True):
                self._assert_alike(one.members[index], other.members[0])

    def test_the_same_visit_of_a_stack_gives_the_same_bytes(self, tmp_path: Path) -> None:
        framework, data = self._stackable(tmp_path)
        first, _ = self._train_stack(framework, data, 0, None)
        before = bytes(first.buffer)
        one, other = (
            self._train_stack(worker, data, 1, first) for worker in (framework, self.make())
        )
        assert bytes(one[0].buffer) == bytes(other[0].buffer)
        assert bytes(first.buffer) == before
        assert one[1].members == other[1].members

    def test_members_that_are_not_called_are_left_behind(self, tmp_path: Path) -> None:
        framework, data = self._stackable(tmp_path)
        states, _ = self._chain_stack(framework, data, _VISITS - 1)
        staying = (0, 2)
        after, report = self._train_stack(framework, data, _VISITS - 1, states[-1], staying)
        assert after.meta["trials"] == [_TRIALS[n] for n in staying]
        assert len(report.members) == len(staying)
        for index in staying:
            alone, _ = self._chain_alone(framework, data, index)
            self._assert_close(self._member(after, _TRIALS[index]), alone[-1])

    def test_a_member_that_was_taken_out_goes_on_alone(self, tmp_path: Path) -> None:
        framework, data = self._stackable(tmp_path)
        states, _ = self._chain_stack(framework, data, _VISITS - 1)
        for index, trial in enumerate(_TRIALS):
            member = self._member(states[-1], trial)
            after, _ = self._train_alone(framework, data, _VISITS - 1, index, member)
            alone, _ = self._chain_alone(framework, data, index)
            self._assert_close(after, alone[-1])

    def test_members_are_evaluated_as_they_are_alone(self, tmp_path: Path) -> None:
        framework, data = self._stackable(tmp_path)
        (state,), _ = self._chain_stack(framework, data, 1)
        shard = data.open_shard(Split.VAL, 0)
        for places in ((0, 1, 2), (0, 2)):
            report = framework.evaluate(self._stack_call(0, places, Split.VAL), shard, state)
            for index, found in zip(places, report.members, strict=True):
                member = self._member(state, _TRIALS[index])
                call = self._alone_call(0, index, Split.VAL)
                self._assert_alike(found, framework.evaluate(call, shard, member).members[0])
                model = framework.load(call.params[0], member)
                for name, mean in self.means(model, shard).items():
                    total, rows = found.sums[name]
                    assert np.isclose(total / rows, mean, rtol=1e-3, atol=1e-6), name

    def _survey_call(self) -> SurveyCall:
        params = self.stack_params()
        return SurveyCall(
            trials=(*_TRIALS, 9),
            params=tuple(ParamDict(one) for one in (*params, params[0])),
            batch_sizes=(*(self.batch_size for _ in _TRIALS), 2 * self.batch_size),
            seed=0,
        )

    def _stackable(self, directory: Path) -> tuple[Framework, Dataset]:
        framework, data = self.make(), self.dataset(directory)
        survey = framework.survey(self._survey_call(), data.open_shard(Split.TRAIN, 0))
        group = next(group for group in survey.groups if _TRIALS[0] in group.trials)
        if group.obstacle is not None:
            raise unittest.SkipTest(f"not stacked: {group.obstacle}")
        assert set(group.trials) == set(_TRIALS)
        return framework, data

    def _stack_call(
        self, visit: int, places: Sequence[int] = (0, 1, 2), split: Split = Split.TRAIN
    ) -> VisitCall:
        epoch, step = divmod(visit, 2)
        params = self.stack_params()
        return VisitCall(
            unit=-1,
            trials=tuple(_TRIALS[place] for place in places),
            params=tuple(ParamDict(params[place]) for place in places),
            seed=0,
            epoch=epoch,
            step=step,
            steps=2,
            split=split,
            shard=(epoch + step) % 2 if split is Split.TRAIN else 0,
            attempt=0,
            batch_size=self.batch_size,
            stack=Stacking(),
        )

    def _alone_call(self, visit: int, place: int, split: Split = Split.TRAIN) -> VisitCall:
        return replace(self._stack_call(visit, (place,), split), stack=None)

    def _train_stack(
        self,
        framework: Framework,
        data: Dataset,
        visit: int,
        state: State | None,
        places: Sequence[int] = (0, 1, 2),
        memory: Memory | None = None,
    ) -> tuple[State, VisitReport]:
        call = self._stack_call(visit, places)
        shard = data.open_shard(Split.TRAIN, call.shard)
        return framework.train(call, shard, state, memory or Memory())

    def _train_alone(
        self, framework: Framework, data: Dataset, visit: int, place: int, state: State | None
    ) -> tuple[State, VisitReport]:
        call = self._alone_call(visit, place)
        return framework.train(call, data.open_shard(Split.TRAIN, call.shard), state, Memory())

    def _chain_stack(
        self, framework: Framework, data: Dataset, visits: int = _VISITS
    ) -> tuple[list[State], list[VisitReport]]:
        states: list[State] = []
        reports: list[VisitReport] = []
        for visit in range(visits):
            before = states[-1] if states else None
            state, report = self._train_stack(framework, data, visit, before)
            states.append(state)
            reports.append(report)
        return states, reports

    def _chain_alone(
        self, framework: Framework, data: Dataset, place: int
    ) -> tuple[list[State], list[VisitReport]]:
        states: list[State] = []
        reports: list[VisitReport] = []
        for visit in range(_VISITS):
            before = states[-1] if states else None
            state, report = self._train_alone(framework, data, visit, place, before)
            states.append(state)
            reports.append(report)
        return states, reports

    def _member(self, state: State, trial: int) -> State:
        data, meta = take_member(state.buffer, state.meta, trial)
        return State(memoryview(data), meta)

    def _assert_close(self, one: State, other: State) -> None:
        found, expected = _arrays(one), _arrays(other)
        assert found.keys() == expected.keys()
        for name, tensor in found.items():
            limit = self.rtol * max(1e-3, float(np.abs(expected[name]).max(initial=0.0)))
            assert np.allclose(tensor, expected[name], rtol=self.rtol, atol=limit), name

    def _assert_alike(self, one: MemberReport, other: MemberReport) -> None:
        assert one.diverged is None
        assert one.first_step == other.first_step
        assert np.allclose(one.losses, other.losses, rtol=self.rtol, atol=self.rtol)
        assert one.sums.keys() == other.sums.keys()
        for name, (total, rows) in one.sums.items():
            expected, count = other.sums[name]
            assert rows == count
            assert np.isclose(total, expected, rtol=self.rtol, atol=self.rtol * rows), name


def _arrays(state: State) -> dict[str, npt.NDArray[np.float64]]:
    """The tensors whose numbers can be compared, by name."""
    layout = Layout.parse(state.buffer)
    return {
        entry.name: np.frombuffer(bytes(state.buffer[layout.span(entry.name)]), _NUMPY[entry.dtype])
        .astype(np.float64)
        .reshape(entry.shape)
        for entry in layout.entries
        if entry.dtype in _NUMPY
    }
