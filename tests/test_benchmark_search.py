"""The benchmark of searches compares like with like."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import environment, search, search_optuna, search_ours, search_simulated
from benchmarks.report import Report
from benchmarks.search_work import Epoch, Found, Work

WORK = Work(data="", params=[], target=0.9, epochs=9, eta=3, grace=1, batch_size=128, workers=2)


def found(seconds: float, seed: int, accuracy: float = 0.95) -> Found:
    """Of a side that reached the target with its first trial."""
    params = search.params_of(seed)[0]
    return Found.of([Epoch(0, params, accuracy, seconds)], WORK, call_s=seconds + 1)


def test_the_time_to_the_target_is_that_of_the_first_to_have_it():
    told = [Epoch(0, {}, 0.8, 1.0), Epoch(1, {}, 0.91, 4.0), Epoch(0, {}, 0.92, 3.0)]
    one = Found.of(told, WORK, call_s=5.0)
    assert (one.to_target_s, one.winner, one.epochs, one.best) == (3.0, 0, 3, 0.92)
    assert search.seconds_of(one) == 3.0


def test_who_never_has_the_target_took_the_whole_search():
    one = Found.of([Epoch(2, {}, 0.8, 1.0)], WORK, call_s=5.0)
    assert (one.to_target_s, one.winner) == (None, 2)
    assert search.seconds_of(one) == 5.0


def test_ratios_are_of_searches_for_the_same_list(capsys):
    report = Report()
    sides = {
        "ours": lambda work, seed: found(2.0 * (seed + 1), seed),
        "other": lambda work, seed: found(10.0 * (seed + 1), seed),
    }
    search.compare(WORK, sides, 3, report)
    assert report.values["speedup_vs_other"] == 5.0
    assert report.values["ours_to_target_s"] == 4.0
    assert "other" in capsys.readouterr().out


def test_a_search_that_tries_something_else_does_not_count():
    sides = {"ours": lambda work, seed: found(1.0, seed + 1)}
    with pytest.raises(SystemExit, match="other params"):
        search.compare(WORK, sides, 1, Report())


def test_sides_whose_results_are_apart_are_refused():
    sides = {
        "ours": lambda work, seed: found(1.0, 0, accuracy=0.95),
        "other": lambda work, seed: found(1.0, 0, accuracy=0.93),
    }
    with pytest.raises(SystemExit, match="apart"):
        search.check(WORK, sides, Report())


@pytest.mark.slow
def test_ours_and_a_plain_loop_search_the_same_list(tmp_path):
    work = search.prepare(None, tmp_path)
    sides = {
        "ours": lambda work, seed: search_ours.search(work, tmp_path, seed, stack=False),
        "optuna": lambda work, seed: search_optuna.search(work),
    }
    report = Report()
    search.check(replace(work, workers=1), sides, report)
    search.compare(replace(work, target=0.5), sides, 1, report)
    assert report.values["check_apart"] <= search.TOLERANCE
    assert report.values["ours_reached"] == 1.0
    assert report.values["optuna_best"] >= 0.5


def test_simulated_workers_are_busy_while_there_is_something_to_propose(capsys):
    report = Report()
    search_simulated.simulate(report)
    assert report.finish(as_json=False) == 0
    assert report.values["simulated_100_rungs"].startswith("1000 ")


def test_an_environment_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "FOLDER", tmp_path)
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer" / "installed").write_text("a\nb")
    assert environment.python_with("peer", "a", "b") == tmp_path / "peer" / "bin" / "python"
