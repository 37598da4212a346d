from __future__ import annotations

import pytest

from cerebro.cli.plan import count_trials
from cerebro.search import make_sampler, parse_space


@pytest.mark.parametrize("trials", [1, 2, 3, 4, 5, 7, 8, 9, 1000])
def test_trials_of_a_grid_are_counted(trials):
    space = parse_space({"a": list(range(trials))})
    assert count_trials(make_sampler("grid", space)) == trials


def test_trials_of_a_huge_grid_are_counted_without_listing_them():
    space = parse_space({name: list(range(100)) for name in "abcde"})
    assert count_trials(make_sampler("grid", space)) == 100**5


def test_trials_of_a_random_search_are_counted():
    space = parse_space({"a": {"uniform": [0.0, 1.0]}})
    assert count_trials(make_sampler("random", space, seed=0, num_trials=37)) == 37
