from __future__ import annotations

from cerebro.cli.measuring import spread, warmed_up
from cerebro.search import make_sampler, parse_space


def test_trials_to_try_come_from_all_over_a_search():
    space = parse_space({"width": [8, 16, 32, 64], "lr": [0.1, 0.01, 0.001]})
    tried = spread(make_sampler("grid", space), 5)
    assert len(tried) == 5
    assert {params["width"] for params in tried} == {8, 16, 32, 64}


def test_of_a_small_search_all_trials_are_tried():
    assert spread(make_sampler("grid", parse_space({"lr": [1, 2]})), 5) == [{"lr": 1}, {"lr": 2}]


def test_an_adaptive_search_is_not_asked():
    space = parse_space({"lr": {"uniform": [0.0, 1.0]}})
    assert spread(make_sampler("tpe", space, num_trials=50), 5) == []


def test_the_first_visit_of_a_trial_or_stack_does_not_count_unless_it_is_the_only_one():
    def visit(step, **unit):
        return {"type": "visit", "step": step, **unit}

    records = [
        visit(0, trial=0),
        visit(0, stack=1, trials=[1, 2]),
        visit(0, trial=3),
        visit(1, trial=0),
        visit(1, stack=1, trials=[1, 2]),
    ]
    assert warmed_up(records) == [visit(0, trial=3), *records[3:]]
