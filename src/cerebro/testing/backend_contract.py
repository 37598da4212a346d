"""What every backend must do, as a suite of tests.

Subclass `BackendContract` in a test module, name the subclass `Test...`, and write `make`. Where
workers are processes of their own, subclass `ProcessBackendContract` of
`cerebro.testing.process_contract` instead.
"""

from __future__ import annotations

import os
import threading
import unittest
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from cerebro.backend.base import Answered, Done, Failed, Posted
from cerebro.data import open_dataset
from cerebro.errors import DataError, UsageError
from cerebro.storage.stacked import take_member
from cerebro.testing.backend_session import fault_at, make_call
from cerebro.testing.failure_contract import FailureContract
from cerebro.train.runner import VisitRunner
from cerebro.train.visit import Stacking, Survey, SurveyCall
from cerebro.types import Params, Split

raises = unittest.TestCase().assertRaises


@dataclass(frozen=True, slots=True)
class Looking:
    """A job that looks at what its worker has opened."""

    what: str

    def run(self, runner: VisitRunner) -> dict[str, str]:
        if self.what != "data":
            raise LookupError(f"{self.what} is not here")
        return {self.what: runner.dataset.digest}


class BackendContract(FailureContract):
    """Tests that hold for any backend.

    >>> from cerebro.backend import InlineBackend
    >>> class TestMyBackend(BackendContract):
    ...     def make(self):
    ...         return InlineBackend()
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     TestMyBackend().test_every_worker_joins(Path(directory))
    """

    # Workers

    def test_every_worker_joins(self, tmp_path: Path) -> None:
        with self.unstarted(tmp_path) as session:
            joined = session.start(3)
            assert sorted(event.info.worker for event in joined) == [0, 1, 2]

    def test_it_says_whether_it_ends_visits_for_good(self, tmp_path: Path) -> None:
        with self.unstarted(tmp_path) as session:
            assert isinstance(session.backend.ends_visits, bool)

    def test_a_worker_says_what_it_found(self, tmp_path: Path) -> None:
        with self.unstarted(tmp_path) as session:
            info = session.start(1)[0].info
            assert info.device == "cpu"
            assert info.versions == {"toy": "1"}
            assert info.task_name == "cerebro.testing.toy:ToyTask"
            assert len(info.task_digest) == 64
            assert info.host

    # Visits

    def test_a_training_visit_is_answered_with_a_report_and_a_state(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            answer = session.run(0, make_call())
            assert isinstance(answer, Done)
            assert answer.report.rows == 20
            assert answer.state is not None
            assert answer.state.bytes == len(session.content(answer.state))

    def test_an_evaluation_is_answered_without_a_state(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            state = session.train(0, make_call())
            answer = session.run(0, make_call(split=Split.VAL), state)
            assert isinstance(answer, Done)
            assert answer.state is None
            assert answer.report.members[0].sums.keys() == {"loss", "accuracy"}

    def test_every_visit_is_answered_exactly_once(self, tmp_path: Path) -> None:
        with self.session(tmp_path, workers=2) as session:
            calls = [replace(make_call(), trials=(n,), unit=n) for n in (7, 8)]
            for worker, call in enumerate(calls):
                session.backend.submit(worker, call, None)
            answers = session.take(2)
            # A second answer would come before that to the worker's next visit.
            answers += [session.run(worker, make_call()) for worker in range(2)]
            answered = Counter(event.call.trials for event in answers if isinstance(event, Done))
            assert answered == {(7,): 1, (8,): 1, (0,): 2}

    def test_a_visit_gives_the_same_on_every_worker(self, tmp_path: Path) -> None:
        with self.session(tmp_path, workers=2) as session:
            states = [session.train(worker, make_call()) for worker in (0, 1)]
            assert session.content(states[0]) == session.content(states[1])

    def test_a_survey_is_answered_with_what_was_found(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            odd: Params = {"lr": 0.1, "obstacle": "it is round"}
            params = ({"lr": 0.1}, {"lr": 0.2}, odd)
            call = SurveyCall(trials=(0, 1, 4), params=params, batch_sizes=(8, 8, 8), seed=0)
            session.backend.submit(0, call, None)
            answer = session.next(Answered)
            assert isinstance(answer, Answered)
            assert (answer.worker, answer.call) == (0, call)
            assert isinstance(answer.answer, Survey)
            found = {group.trials: group.obstacle for group in answer.answer.groups}
            assert found == {(0, 1): None, (4,): "it is round"}
            assert isinstance(session.run(0, make_call()), Done)

    def test_a_job_is_answered_with_what_it_gives(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            job = Looking("data")
            session.backend.submit(0, job, None)
            answer = session.next(Answered)
            assert isinstance(answer, Answered)
            assert (answer.worker, answer.call) == (0, job)
            assert answer.answer == {"data": open_dataset(session.directory / "data").digest}
            assert isinstance(session.run(0, make_call()), Done)

    def test_a_job_that_raises_is_described(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            session.backend.submit(0, Looking("the moon"), None)
            answer = session.next(Failed)
            assert isinstance(answer, Failed)
            assert (answer.call, answer.failure.error) == (Looking("the moon"), "LookupError")
            assert "the moon is not here" in answer.failure.message
            assert isinstance(session.run(0, make_call()), Done)

    def test_a_survey_that_fails_is_described(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            call = SurveyCall(trials=(0,), params=({"lr": 0.1},), batch_sizes=(), seed=0)
            session.backend.submit(0, call, None)
            answer = session.next(Failed)
            assert isinstance(answer, Failed)
            assert answer.call == call

    def test_a_stack_is_one_state_that_hops_and_shrinks(self, tmp_path: Path) -> None:
        with self.session(tmp_path, workers=2) as session:
            params = ({"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3})
            call = replace(make_call(), unit=-1, trials=(0, 1, 2), params=params, stack=Stacking())
            state = session.train(0, call)
            assert state.meta["trials"] == [0, 1, 2]
            fewer = replace(call, step=1, shard=1, trials=(0, 2), params=params[::2])
            saved = session.save(state)
            states = [session.train(1, fewer, source) for source in (state, saved)]
            states.append(session.train(0, fewer, state, consume=True))
            assert [after.meta["trials"] for after in states] == [[0, 2]] * 3
            assert len({session.content(after) for after in states}) == 1
            alone = session.train(0, make_call(1), session.train(0, make_call()))
            found, _ = take_member(session.content(states[0]), states[0].meta, 0)
            assert found == session.content(alone)

    # States

    def test_a_state_is_readable_by_another_worker(self, tmp_path: Path) -> None:
        with self.session(tmp_path, workers=2) as session:
            state = session.train(0, make_call())
            alone = session.train(0, make_call(1), state)
            hopped = session.train(1, make_call(1), state)
            assert session.content(hopped) == session.content(alone)

    def test_a_state_is_readable_by_several_evaluations_at_once(self, tmp_path: Path) -> None:
        with self.session(tmp_path, workers=3) as session:
            state = session.train(0, make_call())
            for worker in range(3):
                session.backend.submit(worker, make_call(split=Split.VAL), state)
            answers = session.take(3)
            sums = [answer.report.members[0].sums for answer in answers if isinstance(answer, Done)]
            assert len(sums) == 3
            assert sums[0] == sums[1] == sums[2]

    def test_training_leaves_the_incoming_state_as_it_was(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            state = session.train(0, make_call())
            before = session.content(state)
            after = session.train(0, make_call(1), state)
            assert session.content(state) == before
            assert session.content(after) != before

    def test_evaluation_leaves_the_state_as_it_was(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            state = session.train(0, make_call())
            before = session.content(state)
            session.run(0, make_call(split=Split.VAL), state)
            assert session.content(state) == before

    def test_a_visit_from_a_checkpoint_equals_one_from_memory(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            state = session.train(0, make_call())
            saved = session.save(state)
            from_memory = session.train(0, make_call(1), state)
            from_checkpoint = session.train(0, make_call(1), saved)
            assert session.content(from_checkpoint) == session.content(from_memory)

    def test_the_rest_of_a_state_is_saved_and_travels(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            state = session.train(0, make_call())
            after = session.train(0, make_call(1), session.save(state))
            assert state.meta == {"steps": 3}
            assert after.meta == {"steps": 6}

    def test_a_state_that_is_handed_over_gives_the_same_result(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            state = session.train(0, make_call())
            copied = session.train(0, make_call(1), state)
            handed_over = session.train(0, make_call(1), state, consume=True)
            assert session.content(handed_over) == session.content(copied)
            assert handed_over.meta == copied.meta

    def test_a_failed_visit_takes_the_state_that_was_handed_over_with_it(
        self, tmp_path: Path
    ) -> None:
        with self.session(tmp_path) as session:
            state = session.train(0, make_call())
            saved = session.save(state)
            failed = session.run(0, make_call(1, fail=fault_at(1)), state, consume=True)
            assert isinstance(failed, Failed)
            first = session.train(0, make_call(1), saved)
            # Its memory is used again, and nobody else's.
            second = session.train(0, make_call(2), first)
            assert session.content(first) == session.content(session.train(0, make_call(1), saved))
            assert session.content(second) != session.content(first)

    def test_memory_of_released_states_does_not_disturb_others(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            kept = session.train(0, make_call())
            content = session.content(kept)
            for visit in range(1, 6):
                state = session.train(0, make_call(visit), kept)
                session.backend.release(state)
            assert session.content(kept) == content

    def test_a_state_may_be_saved_on_another_thread_while_it_is_trained_on(
        self, tmp_path: Path
    ) -> None:
        with self.session(tmp_path) as session:
            state = session.train(0, make_call())
            content: list[bytes] = []
            thread = threading.Thread(target=lambda: content.append(session.content(state)))
            session.backend.submit(0, make_call(1), state)
            thread.start()
            session.next(Done)
            thread.join()
            assert content == [session.content(state)]

    # Setups that are wrong

    def test_a_task_that_cannot_be_imported_is_a_usage_error(self, tmp_path: Path) -> None:
        with self.unstarted(tmp_path) as session, raises(UsageError) as caught:
            session.backend.start(session.setup("no_such_module:Task"), 2)
            session.backend.events()
        assert "'no_such_module:Task' cannot be imported" in str(caught.exception)

    def test_a_dataset_that_is_not_there_is_a_data_error(self, tmp_path: Path) -> None:
        with self.unstarted(tmp_path) as session, raises(DataError) as caught:
            session.backend.start(session.setup(data=str(tmp_path / "nowhere")), 2)
            session.backend.events()
        assert "there is no dataset at" in str(caught.exception)

    def test_a_device_that_is_not_there_is_a_usage_error(self, tmp_path: Path) -> None:
        with self.unstarted(tmp_path) as session, raises(UsageError) as caught:
            session.backend.start(session.setup(device="abacus"), 1)
            session.backend.events()
        assert "abacus" in str(caught.exception)

    # Posts and the end

    def test_a_post_from_another_thread_wakes_events(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            for number in range(20):
                thread = threading.Thread(target=session.backend.post, args=(number,))
                thread.start()
                assert session.backend.events() == [Posted(number)]
                thread.join()

    def test_a_post_from_before_the_start_is_heard(self, tmp_path: Path) -> None:
        with self.unstarted(tmp_path) as session:
            session.backend.post("early")
            # No worker joins, and nothing else happens.
            session.backend.start(session.setup(), 0)
            assert session.backend.events() == [Posted("early")]

    def test_no_post_is_lost_and_order_is_kept(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:

            def post_all() -> None:
                for number in range(2000):
                    session.backend.post(number)

            thread = threading.Thread(target=post_all)
            thread.start()
            found: list[object] = []
            while len(found) < 2000:
                found += [event.payload for event in session.backend.events()]  # type: ignore[union-attr]
            thread.join()
            assert found == list(range(2000))

    def test_stopping_twice_is_stopping_once(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            session.backend.stop()
            session.backend.stop()

    def test_stopping_what_was_not_started_does_nothing(self) -> None:
        self.make().stop()

    def test_a_post_after_the_end_is_ignored(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            session.backend.stop()
            # Whatever file now has the number of one that the backend closed stays untouched.
            files = [(tmp_path / f"file-{n}").open("wb", buffering=0) for n in range(20)]
            session.backend.post("late")
            for file in files:
                file.close()
            assert {path.stat().st_size for path in tmp_path.glob("file-*")} == {0}

    def test_nothing_stays_open(self, tmp_path: Path) -> None:
        with self.session(tmp_path):
            pass
        before = len(os.listdir("/proc/self/fd"))
        for number in range(3):
            with self.session(tmp_path / str(number)):
                pass
            self.make()
        assert len(os.listdir("/proc/self/fd")) <= before
