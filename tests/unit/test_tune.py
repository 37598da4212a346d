from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from cerebro import tune
from cerebro.errors import UsageError
from cerebro.search.domain import Choice, Domain, Grid

SEEDS = range(300)


def draws(domain: Domain) -> list[Any]:
    return [domain.sample(random.Random(seed)) for seed in SEEDS]


@pytest.mark.parametrize("options", [["x", "y", "z"], [1.0, 2.0, 22.0]])
def test_hp_choice_gives_its_options(options: list[object]) -> None:
    assert set(draws(tune.hp_choice(options))) == set(options)


def test_hp_uniform_stays_in_range_for_every_seed() -> None:
    assert all(0 <= value <= 100 for value in draws(tune.hp_uniform(0, 100)))


def test_hp_quniform_stays_in_range_for_every_seed() -> None:
    values = draws(tune.hp_quniform(0, 100, 3))
    assert set(values) <= set(range(0, 100, 3))


def test_hp_quniform_cannot_give_zero_or_more_than_its_maximum() -> None:
    assert set(draws(tune.hp_quniform(16, 256, 96))) == {96, 192}


def test_hp_loguniform_takes_exponents_of_ten() -> None:
    values = draws(tune.hp_loguniform(-4, -1))
    assert all(1e-4 <= value <= 1e-1 for value in values)
    assert min(values) < 3e-4
    assert max(values) > 3e-2


def test_hp_qloguniform_stays_in_range_for_every_seed() -> None:
    values = draws(tune.hp_qloguniform(-4, -1, 0.0005))
    assert all(5e-4 <= value <= 1e-1 for value in values)


def test_hp_qloguniform_of_integers_gives_integers() -> None:
    assert {type(value) for value in draws(tune.hp_qloguniform(1, 3, 16))} == {int}


def test_hp_names_take_the_keywords_of_the_original() -> None:
    assert tune.hp_loguniform(min=-4, max=-1) == tune.loguniform(1e-4, 1e-1)
    assert tune.hp_quniform(min=0, max=10, q=2) == tune.quniform(0, 10, 2)


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (
            tune.hp_uniform,
            (
                1,
                1,
            ),
        ),
        (
            tune.hp_quniform,
            (
                2,
                1,
                1,
            ),
        ),
        (
            tune.hp_quniform,
            (
                0,
                10,
                10,
            ),
        ),
        (
            tune.hp_quniform,
            (
                0,
                10,
                20,
            ),
        ),
        (
            tune.hp_loguniform,
            (
                -1,
                -4,
            ),
        ),
        (
            tune.hp_loguniform,
            (
                -1,
                400,
            ),
        ),
        (
            tune.hp_loguniform,
            (
                "-4",
                -1,
            ),
        ),
        (
            tune.hp_qloguniform,
            (
                -1,
                -4,
                0.1,
            ),
        ),
        (tune.hp_choice, ("xyz",)),
        (tune.hp_choice, ([],)),
    ],
)
def test_hp_names_refuse_what_makes_no_range(make: Any, arguments: Any) -> None:
    with pytest.raises(UsageError):
        make(*arguments)


def test_two_hp_objects_are_not_correlated() -> None:
    one, other = tune.hp_uniform(0, 1), tune.hp_uniform(0, 1)
    pairs = np.array([(one.sample_value(), other.sample_value()) for _ in range(500)])
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 0.2


def test_two_hp_choices_do_not_pick_the_same_index() -> None:
    one, other = tune.hp_choice([0, 1, 2]), tune.hp_choice([0, 1, 2])
    assert len({(one.sample_value(), other.sample_value()) for _ in range(300)}) == 9


def test_numpy_values_come_out_plain() -> None:
    assert type(tune.hp_choice(list(np.array([16, 32]))).sample_value()) is int


@pytest.mark.parametrize("name", [name for name in tune.__all__ if name.startswith("hp_")])
def test_every_hp_name_has_sample_value(name: str) -> None:
    arguments: Any = {
        "hp_choice": ([1, 2],),
        "hp_uniform": (0, 1),
        "hp_quniform": (0, 10, 2),
        "hp_loguniform": (-2, -1),
        "hp_qloguniform": (0, 2, 1),
    }[name]
    assert getattr(tune, name)(*arguments).sample_value() is not None


def test_choice_and_grid_are_told_apart() -> None:
    assert type(tune.choice([1, 2])) is Choice
    assert type(tune.grid([1, 2])) is Grid


def test_loguniform_takes_values() -> None:
    assert tune.loguniform(1e-4, 1e-1) == tune.hp_loguniform(-4, -1)


def test_a_choice_of_subspaces_draws_the_parameters_of_one() -> None:
    values = draws(tune.choice([{"kind": "cnn", "depth": tune.randint(1, 3)}, {"width": [32, 64]}]))
    assert {tuple(value) for value in values} == {("kind", "depth"), ("width",)}
    assert {value["depth"] for value in values if "depth" in value} == {1, 2, 3}
    assert {value["width"] for value in values if "width" in value} == {32, 64}
