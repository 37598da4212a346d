"""Workers that join and leave during a run, under any number."""

from __future__ import annotations

import pytest

from cerebro.errors import WorkerError
from cerebro.results import Result
from cerebro.run.jobs import carry_out
from cerebro.testing.elastic import ElasticBackend
from cerebro.testing.history import check
from cerebro.track.board import Board
from cerebro.track.tracker import Tracker
from tests.experiments import fit_toy, outcome, toy_spec
from tests.unit.run.runs import records_of
from tests.unit.run.test_jobs import Note, Office

SPACE = {"lr": [0.5, 0.05, 0.2, 0.1]}
HALVING = {"stopper": {"name": "halving", "eta": 2}, "search": "random", "num_trials": 4}

#: Name -> who joins and leaves after how many answers, and who is where.
COMINGS = {
    "later": {"joins": {1: 3}},
    "much-later-and-many": {"joins": {1: 8, 2: 8, 40: 10}},
    "one-for-another": {"joins": {17: 5}, "leaves": {0: 5}},
    "one-after-another": {"joins": {1: 4, 2: 8, 3: 12}, "leaves": {0: 6, 1: 10, 2: 14}},
    "before-any-visit": {"joins": {1: 0, 5: 0}, "leaves": {0: 0}},
    "on-hosts": {"joins": {1: 2, 2: 6, 3: 9}, "hosts": {0: "a", 1: "b", 2: "c", 3: "b"}},
    "hosts-that-go": {
        "joins": {1: 2, 2: 6},
        "leaves": {0: 5, 1: 9},
        "hosts": {0: "a", 1: "b", 2: "c"},
    },
}


class Following(Tracker):
    """Keeps what the live table would show."""

    def __init__(self) -> None:
        self.board = Board()

    def record(self, record) -> None:
        self.board.record(record)


@pytest.mark.parametrize("changes", [{}, {"stack": 2}, HALVING], ids=["alone", "stacked", "search"])
@pytest.mark.parametrize("case", COMINGS)
def test_a_run_ends_the_same_whoever_comes_and_goes(data, folder, case, changes):
    spec = toy_spec(data, SPACE, **{"stack": False, **changes})
    fit_toy(folder / "whole", spec)
    tracker = Following()
    fit_toy(folder / "run", spec, backend=ElasticBackend(**COMINGS[case]), trackers=[tracker])
    check(folder / "run")
    assert outcome(folder / "run") == outcome(folder / "whole")
    assert tracker.board.visits_done == tracker.board.visits_total
    assert not tracker.board.in_flight


@pytest.mark.parametrize("case", ["later", "much-later-and-many", "one-for-another"])
def test_those_who_come_later_get_visits(data, root, case):
    spec = toy_spec(data, SPACE, epochs=3, stack=False)
    fit_toy(root, spec, backend=ElasticBackend(**COMINGS[case]))
    busy = {record["worker"] for record in records_of(root, "visit")}
    assert busy >= set(COMINGS[case]["joins"])


def test_efficiency_counts_the_workers_that_were_there(data, root):
    spec = toy_spec(data, SPACE, epochs=3, stack=False)
    backend = ElasticBackend(joins={1: 12}, leaves={0: 14})
    fit_toy(root, spec, backend=backend)
    summary = Result.open(root).summary
    assert summary["workers"] == 2
    assert summary["makespan_s"] < summary["capacity_s"] < 1.9 * summary["makespan_s"]


def test_a_run_without_workers_ends_with_what_the_backend_says(data, root):
    backend = ElasticBackend(leaves={0: 3})
    with pytest.raises(WorkerError, match="all have left"):
        fit_toy(root, toy_spec(data, SPACE), backend=backend)
    fit_toy(root, toy_spec(data, SPACE))
    check(root)


@pytest.mark.parametrize("case", ["later", "one-for-another", "before-any-visit"])
def test_jobs_are_done_once_whoever_comes_and_goes(folder, case):
    jobs = [Note(f"job{n}") for n in range(20)]
    found = []
    carry_out(
        jobs,
        ElasticBackend(**COMINGS[case]),
        Office(str(folder)),
        workers=1,
        done=lambda job, answer: found.append(job.name),
    )
    assert sorted(found) == sorted(job.name for job in jobs)
