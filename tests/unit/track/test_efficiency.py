from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.track.efficiency import Efficiency, Summary


@dataclass(frozen=True)
class Span:
    worker: int
    start_s: float
    end_s: float
    compute_s: float
    data_s: float = 0.0
    hop_s: float = 0.0
    checkpoint_s: float = 0.0
    comm_s: float = 0.0
    load_s: float = 0.0


def summarise(spans: list[Span], *, workers: int) -> Summary:
    account = Efficiency(workers)
    for span in spans:
        account.visit(span)
    return account.summary()


def test_efficiency_is_compute_over_worker_time() -> None:
    spans = [Span(0, 2.0, 6.0, 4.0), Span(1, 2.0, 5.0, 3.0)]
    summary = summarise(spans, workers=2)
    assert summary.efficiency == pytest.approx(7 / 8)
    assert summary.parts()["wait"] == pytest.approx(1 / 8)
    assert (summary.startup_s, summary.makespan_s) == (2.0, 4.0)


def test_loading_batches_is_told_but_not_lost() -> None:
    summary = summarise([Span(0, 0.0, 1.0, 0.5, data_s=0.1, load_s=0.4)], workers=1)
    assert summary.efficiency == pytest.approx(0.9)
    assert summary.parts()["compute"] == pytest.approx(0.5)
    assert summary.parts()["loading"] == pytest.approx(0.4)
    assert "(data 10.0 %;" in summary.line()


def test_time_of_a_visit_without_a_name_is_the_hop() -> None:
    summary = summarise([Span(0, 0.0, 1.0, 0.9, data_s=0.02)], workers=1)
    assert summary.hop_s == pytest.approx(0.08)


def test_idle_time_for_a_checkpoint_is_told_apart_from_waiting() -> None:
    spans = [Span(0, 0.0, 1.0, 1.0), Span(0, 1.5, 2.5, 1.0, checkpoint_s=0.3)]
    summary = summarise(spans, workers=1)
    assert summary.checkpoint_s == pytest.approx(0.3)
    assert summary.wait_s == pytest.approx(0.2)


def test_a_worker_without_a_visit_counts_as_waiting() -> None:
    assert summarise([Span(0, 0.0, 1.0, 1.0)], workers=2).parts()["wait"] == pytest.approx(0.5)


def test_a_lost_worker_counts_until_its_death() -> None:
    account = Efficiency(workers=2)
    account.visit(Span(0, 0.0, 10.0, 10.0))
    account.visit(Span(1, 0.0, 4.0, 4.0))
    account.worker(1, alive=False, time_s=5.0)
    assert account.summary().capacity_s == pytest.approx(15.0)


def test_a_worker_that_joins_late_or_again_counts_from_then() -> None:
    account = Efficiency(workers=1)
    account.visit(Span(0, 0.0, 10.0, 10.0))
    account.worker(0, alive=False, time_s=2.0)
    account.worker(0, alive=True, time_s=6.0)
    account.worker(3, alive=True, time_s=9.0)
    assert account.summary().capacity_s == pytest.approx(10.0)  # never below what was computed
    account.visit(Span(3, 9.0, 20.0, 0.0))
    assert account.summary().capacity_s == pytest.approx(2.0 + 14.0 + 11.0)


def test_workers_ready_before_the_first_dispatch_count_from_it() -> None:
    account = Efficiency(workers=1)
    account.worker(0, alive=True, time_s=1.0)
    account.visit(Span(0, 3.0, 4.0, 1.0))
    assert account.summary().efficiency == pytest.approx(1.0)


def test_no_visits_give_a_line_all_the_same() -> None:
    assert "efficiency 0.000 of 2 workers" in summarise([], workers=2).line()


def test_small_parts_are_left_out_of_the_line() -> None:
    line = summarise([Span(0, 1.0, 2.0, 1.0)], workers=1).line()
    assert line == "efficiency 1.000 of 1 worker over 1.0 s (nothing lost; start-up 1.0 s)"


def test_gangs_are_called_so() -> None:
    summary = replace(summarise([Span(0, 1.0, 2.0, 1.0)], workers=1), ranks=2)
    assert summary.line().startswith("efficiency 1.000 of 1 gang of 2 workers over 1.0 s")


piece = st.floats(0.0, 1.0)
visits = st.lists(st.tuples(st.integers(0, 3), *[piece] * 6), min_size=1)


@given(visits)
@settings(deadline=None, max_examples=100)
def test_the_parts_add_up_to_one(raw: list[tuple[Any, ...]]) -> None:
    clock = [0.0] * 4
    account = Efficiency(workers=4)
    for worker, pause, compute, load, data, hop, saved in raw:
        saving = saved if clock[worker] else 0.0
        start = clock[worker] + pause + saving
        end = clock[worker] = start + compute + load + data + hop + 0.001
        account.visit(Span(worker, start, end, compute, data, hop, saving, load_s=load))
    summary = account.summary()
    assert sum(summary.parts().values()) == pytest.approx(1.0)
    assert min(summary.parts().values()) >= 0.0
    assert summary.capacity_s == pytest.approx(4 * summary.makespan_s)
