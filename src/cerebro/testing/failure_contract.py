"""What every backend must do when a visit fails; part of `BackendContract`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cerebro.backend.base import Backend, Done, Failed, FailureKind
from cerebro.testing.backend_session import Session, fault_at, make_call
from cerebro.testing.faults import flip_bit
from cerebro.testing.toy import ToyTask


class FailureContract:
    """Tests of visits that fail; also how the backends of all tests begin and end.

    >>> hasattr(FailureContract, "make")
    True
    """

    def make(self) -> Backend:
        """A backend that was not started."""
        raise NotImplementedError("write make(self)")

    @contextlib.contextmanager
    def session(self, directory: Path, workers: int = 1) -> Iterator[Session]:
        """A backend whose workers have joined; stopped at the end."""
        with self.unstarted(directory) as session:
            session.start(workers)
            yield session

    @contextlib.contextmanager
    def unstarted(self, directory: Path) -> Iterator[Session]:
        backend = self.make()
        try:
            yield Session(backend, directory)
        finally:
            backend.stop()

    def test_a_failed_visit_is_described(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            answer = session.run(0, make_call(fail="raise"))
            assert isinstance(answer, Failed)
            failure = answer.failure
            assert failure.kind is FailureKind.ERROR
            assert failure.message == "ValueError: this trial raises on purpose"
            assert failure.error == "ValueError"
            assert "Traceback" in failure.traceback
            assert "toy.py" in failure.traceback

    def test_failures_of_one_cause_share_a_signature(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            calls = [
                make_call(fail="raise"),
                replace(make_call(fail="raise"), attempt=1),
                make_call(fail="unpicklable"),
            ]
            answers = [session.run(0, call) for call in calls]
            signs = [answer.failure.signature for answer in answers if isinstance(answer, Failed)]
            assert len(signs) == 3
            assert signs[0] == signs[1] != signs[2]

    def test_an_error_that_cannot_be_pickled_is_described_too(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            answer = session.run(0, make_call(fail="unpicklable"))
            assert isinstance(answer, Failed)
            assert "raises what cannot be pickled" in answer.failure.message

    def test_a_worker_serves_on_after_a_failure(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            state = session.train(0, make_call())
            before = session.content(state)
            assert isinstance(session.run(0, make_call(1, fail=fault_at(1)), state), Failed)
            assert session.content(state) == before
            assert isinstance(session.run(0, make_call(1), state), Done)

    def test_divergence_is_told_from_errors(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            for kind in ("nan_loss", "nan_state"):
                answer = session.run(0, make_call(fail=kind))
                assert isinstance(answer, Failed)
                assert answer.failure.kind is FailureKind.DIVERGED

    def test_out_of_memory_is_told_from_errors_and_the_worker_serves_on(
        self, tmp_path: Path
    ) -> None:
        with self.session(tmp_path) as session:
            answer = session.run(0, make_call(fail="memory"))
            assert isinstance(answer, Failed)
            assert answer.failure.kind is FailureKind.MEMORY
            assert not answer.failure.is_splittable
            assert "8 rows" in answer.failure.message
            assert isinstance(session.run(0, make_call()), Done)

    def test_a_visit_that_can_do_with_fewer_rows_at_a_time_says_so(self, tmp_path: Path) -> None:
        with self.unstarted(tmp_path) as session:
            session.start(1, ToyTask(micro_batch="auto"))
            call = make_call(fail={"kind": "memory", "rows": 4})
            answer = session.run(0, call)
            assert isinstance(answer, Failed)
            assert answer.failure.is_splittable
            smaller = replace(call, attempt=1, micro_batch=call.smaller_micro_batch)
            state = session.train(0, smaller)
            assert session.content(state) == session.content(session.train(0, make_call()))

    def test_a_missing_param_is_a_usage_failure(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            answer = session.run(0, replace(make_call(), params=({"rate": 1.0},)))
            assert isinstance(answer, Failed)
            assert answer.failure.kind is FailureKind.USAGE
            assert "params['lr']" in answer.failure.message

    def test_a_damaged_checkpoint_is_a_failure_of_its_own_kind(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            saved = session.save(session.train(0, make_call()))
            path = Path(session.store.local_path(saved.data_path))
            path.write_bytes(flip_bit(path.read_bytes(), 4001))
            answer = session.run(0, make_call(1), saved)
            assert isinstance(answer, Failed)
            assert answer.failure.kind is FailureKind.CORRUPT
            assert saved.sha256 in answer.failure.message

    def test_a_damaged_shard_is_fatal(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            for path in (tmp_path / "data").glob("train-*.arrow"):
                path.write_bytes(flip_bit(path.read_bytes(), 12_345))
            answer = session.run(0, make_call())
            assert isinstance(answer, Failed)
            assert answer.failure.kind is FailureKind.FATAL
            assert "SHA-256" in answer.failure.message
