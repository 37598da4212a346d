"""What every framework must do, as a suite of tests.

Subclass it in a test module, name the subclass `Test...`, and write `make`, `dataset` and `means`.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

from cerebro.data import Dataset
from cerebro.storage.tensors import Layout
from cerebro.task import ParamDict
from cerebro.testing.stack_contract import Memory, StackContract
from cerebro.train.progress import PROGRESS
from cerebro.train.visit import Framework, State, VisitCall, VisitReport
from cerebro.types import Split

_VISITS = 4


class FrameworkContract(StackContract):
    """Tests that hold for any framework.

    >>> class TestMyFramework(FrameworkContract):
    ...     def make(self):
    ...         return MyFramework(MyTask(), device="cpu")
    >>> TestMyFramework.params
    {'lr': 0.1}
    """

    def check_file(self, content: bytes) -> None:
        """Check that this is a safetensors file; override it to ask the format's own library."""
        Layout.parse(content)

    # The state

    def test_a_new_trial_gets_a_state_that_is_a_safetensors_file(self, tmp_path: Path) -> None:
        state, _ = self._train(self.make(), self.dataset(tmp_path), 0, None)
        assert Layout.parse(state.buffer).entries
        self.check_file(bytes(state.buffer))

    def test_the_state_lies_in_the_last_buffer_it_asked_for(self, tmp_path: Path) -> None:
        framework, data, memory = self.make(), self.dataset(tmp_path), Memory()
        state: State | None = None
        for visit in range(_VISITS):
            state, _ = self._train(framework, data, visit, state, memory)
            assert state.buffer.nbytes == memory.given[-1].nbytes
            # Written through one, read through the other.
            place, before = len(state.buffer) - 1, state.buffer[-1]
            state.buffer[place] = before ^ 1
            assert memory.given[-1][place] == before ^ 1
            state.buffer[place] = before

    def test_what_is_no_tensor_is_json(self, tmp_path: Path) -> None:
        state = self._chain(self.make(), self.dataset(tmp_path), 2)[-1]
        assert json.loads(json.dumps(state.meta, allow_nan=False)) == state.meta

    def test_training_leaves_the_incoming_state_as_it_was(self, tmp_path: Path) -> None:
        framework, data = self.make(), self.dataset(tmp_path)
        (state,) = self._chain(framework, data, 1)
        content, meta = bytes(state.buffer), json.dumps(state.meta)
        after, _ = self._train(framework, data, 1, state)
        assert (bytes(state.buffer), json.dumps(state.meta)) == (content, meta)
        assert bytes(after.buffer) != content

    def test_the_same_visit_of_the_same_state_gives_the_same_bytes(self, tmp_path: Path) -> None:
        framework, data = self.make(), self.dataset(tmp_path)
        (state,) = self._chain(framework, data, 1)
        one, other = (self._train(framework, data, 1, state) for _ in range(2))
        assert bytes(one[0].buffer) == bytes(other[0].buffer)
        assert one[0].meta == other[0].meta
        assert one[1].members == other[1].members

    def test_another_worker_gives_the_same_bytes(self, tmp_path: Path) -> None:
        data = self.dataset(tmp_path)
        one, other = (self._chain(self.make(), data, 2)[-1] for _ in range(2))
        assert bytes(one.buffer) == bytes(other.buffer)

    def test_a_second_attempt_gives_the_same_bytes(self, tmp_path: Path) -> None:
        framework, data = self.make(), self.dataset(tmp_path)
        first = self._train(framework, data, 0, None)[0]
        second = framework.train(
            replace(self._call(0), attempt=1), data.open_shard(Split.TRAIN, 0), None, Memory()
        )[0]
        assert bytes(first.buffer) == bytes(second.buffer)

    def test_a_chain_is_the_same_when_each_state_is_saved_and_loaded(self, tmp_path: Path) -> None:
        data = self.dataset(tmp_path)
        direct = self._chain(self.make(), data, _VISITS)[-1]
        state: State | None = None
        for visit in range(_VISITS):
            state = _reload(self._train(self.make(), data, visit, state)[0])
        assert state is not None
        assert bytes(state.buffer) == bytes(direct.buffer)

    def test_trials_start_from_weights_of_their_own(self, tmp_path: Path) -> None:
        framework, data = self.make(), self.dataset(tmp_path)
        shard = data.open_shard(Split.TRAIN, 0)
        states = {
            bytes(
                framework.train(replace(self._call(0), **change), shard, None, Memory())[0].buffer
            )
            for change in ({}, {"trials": (1,)}, {"seed": 1})
        }
        assert len(states) == 3

    # The reports

    def test_a_training_report_counts_rows_and_steps(self, tmp_path: Path) -> None:
        framework, data = self.make(), self.dataset(tmp_path)
        state, first = self._train(framework, data, 0, None)
        _, second = self._train(framework, data, 1, state)
        rows = data.open_shard(Split.TRAIN, 0).rows
        assert rows % self.batch_size
        assert first.rows == rows
        assert len(first.members[0].losses) == math.ceil(rows / self.batch_size)
        steps = [report.members[0].first_step for report in (first, second)]
        assert steps == [0, len(first.members[0].losses)]

    def test_the_training_loss_is_weighted_by_rows(self, tmp_path: Path) -> None:
        _, report = self._train(self.make(), self.dataset(tmp_path), 0, None)
        full, rest = divmod(report.rows, self.batch_size)
        sizes = [self.batch_size] * full + [rest]
        total = math.fsum(a * b for a, b in zip(report.members[0].losses, sizes, strict=True))
        assert report.members[0].sums["loss"][1] == report.rows
        assert math.isclose(report.members[0].sums["loss"][0], total, rel_tol=1e-9)

    def test_evaluation_is_exact_over_an_uneven_last_batch(self, tmp_path: Path) -> None:
        framework, data = self.make(), self.dataset(tmp_path)
        state, shard = self._chain(framework, data, 2)[-1], data.open_shard(Split.VAL, 0)
        assert shard.rows > 256
        assert shard.rows % 256
        report = framework.evaluate(self._evaluation(), shard, state)
        expected = self.means(framework.load(ParamDict(self.params), state), shard)
        assert report.members[0].sums.keys() == expected.keys()
        for name, (total, rows) in report.members[0].sums.items():
            assert rows == shard.rows
            assert math.isclose(total / rows, expected[name], rel_tol=1e-5, abs_tol=1e-7), name

    def test_evaluation_leaves_the_state_as_it_was(self, tmp_path: Path) -> None:
        framework, data = self.make(), self.dataset(tmp_path)
        (state,) = self._chain(framework, data, 1)
        before = bytes(state.buffer)
        framework.evaluate(self._evaluation(), data.open_shard(Split.VAL, 0), state)
        assert bytes(state.buffer) == before

    def test_evaluating_twice_gives_the_same(self, tmp_path: Path) -> None:
        framework, data = self.make(), self.dataset(tmp_path)
        (state,), shard = self._chain(framework, data, 1), data.open_shard(Split.VAL, 0)
        one, other = (framework.evaluate(self._evaluation(), shard, state) for _ in range(2))
        assert one.members == other.members

    def test_an_evaluation_between_two_visits_changes_nothing(self, tmp_path: Path) -> None:
        framework, data = self.make(), self.dataset(tmp_path)
        first = self._train(framework, data, 0, None)[0]
        framework.evaluate(self._evaluation(), data.open_shard(Split.VAL, 0), first)
        after = self._train(framework, data, 1, first)[0]
        assert bytes(after.buffer) == bytes(self._chain(self.make(), data, 2)[-1].buffer)

    def test_metric_names_are_those_of_an_evaluation(self, tmp_path: Path) -> None:
        framework, data = self.make(), self.dataset(tmp_path)
        names = framework.metric_names(self._call(0), data.open_shard(Split.TRAIN, 0))
        (state,) = self._chain(framework, data, 1)
        report = framework.evaluate(self._evaluation(), data.open_shard(Split.VAL, 0), state)
        assert names[0] == "loss"
        assert len(names) > 1
        assert set(names) == report.members[0].sums.keys()

    def test_every_batch_is_told_as_progress(self, tmp_path: Path) -> None:
        framework, data = self.make(), self.dataset(tmp_path)
        before = PROGRESS.batches
        state, report = self._train(framework, data, 0, None)
        trained = PROGRESS.batches
        framework.evaluate(self._evaluation(), data.open_shard(Split.VAL, 0), state)
        assert trained == before + len(report.members[0].losses)
        assert PROGRESS.batches > trained

    def test_memory_can_be_given_back_between_visits(self, tmp_path: Path) -> None:
        framework, data = self.make(), self.dataset(tmp_path)
        first = self._train(framework, data, 0, None)[0]
        framework.free()
        after = self._train(framework, data, 1, first)[0]
        assert bytes(after.buffer) == bytes(self._chain(self.make(), data, 2)[-1].buffer)

    def test_times_are_not_negative(self, tmp_path: Path) -> None:
        _, report = self._train(self.make(), self.dataset(tmp_path), 0, None)
        assert report.compute_s > 0
        assert min(report.data_s, report.hop_s) >= 0
        assert 0 <= report.load_s <= report.compute_s

    def test_training_learns(self, tmp_path: Path) -> None:
        framework, data = self.make(), self.dataset(tmp_path)
        states, shard = self._chain(framework, data, 2 * _VISITS), data.open_shard(Split.VAL, 0)
        losses = [
            framework.evaluate(self._evaluation(), shard, state).members[0].sums["loss"][0]
            for state in (states[0], states[-1])
        ]
        assert losses[1] < losses[0]

    # The rest

    def test_changing_a_loaded_state_leaves_no_trace_in_a_model(self, tmp_path: Path) -> None:
        framework, data = self.make(), self.dataset(tmp_path)
        (state,), shard = self._chain(framework, data, 1), data.open_shard(Split.VAL, 0)
        model = framework.load(ParamDict(self.params), state)
        before = self.means(model, shard)
        layout = Layout.parse(state.buffer)
        state.buffer[layout.data_start :] = bytes(layout.data_bytes)
        assert self.means(model, shard) == before

    def test_versions_are_plain_text(self) -> None:
        versions = self.make().versions()
        assert versions
        assert {type(text) for pair in versions.items() for text in pair} == {str}

    def test_the_kind_of_device_is_named(self) -> None:
        assert self.make().device

    def _call(self, visit: int) -> VisitCall:
        epoch, step = divmod(visit, 2)
        return VisitCall(
            unit=0,
            trials=(0,),
            params=(ParamDict(self.params),),
            seed=0,
            epoch=epoch,
            step=step,
            steps=2,
            split=Split.TRAIN,
            shard=(epoch + step) % 2,
            attempt=0,
            batch_size=self.batch_size,
        )

    def _evaluation(self) -> VisitCall:
        return replace(self._call(0), split=Split.VAL, shard=0)

    def _train(
        self,
        framework: Framework,
        data: Dataset,
        visit: int,
        state: State | None,
        memory: Memory | None = None,
    ) -> tuple[State, VisitReport]:
        call = self._call(visit)
        shard = data.open_shard(Split.TRAIN, call.shard)
        return framework.train(call, shard, state, memory or Memory())

    def _chain(self, framework: Framework, data: Dataset, visits: int) -> list[State]:
        states: list[State] = []
        for visit in range(visits):
            before = states[-1] if states else None
            states.append(self._train(framework, data, visit, before)[0])
        return states


def _reload(state: State) -> State:
    """The state as it comes back from a checkpoint."""
    return State(memoryview(bytearray(state.buffer)), json.loads(json.dumps(state.meta)))
