from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cerebro.errors import UsageError
from cerebro.search.domain import LogUniform, QUniform, RandInt, Uniform
from cerebro.search.sampler import Sampler
from cerebro.search.sobol import MAX_DIMENSIONS, SobolSampler
from cerebro.search.space import parse_space
from cerebro.testing.sampler_contract import SamplerContract

MIXED = parse_space(
    {
        "lr": LogUniform(1e-4, 1e-1),
        "batch_size": QUniform(16, 256, 16),
        "layers": [[64], [32]],
        "act": "relu",
        "depth": RandInt(1, 4),
    }
)


class TestSobolSampler(SamplerContract):
    names = ("lr", "batch_size", "layers", "act", "depth")

    def make(self) -> Sampler:
        return SobolSampler(MIXED, seed=0, num_trials=20)


def points(dimensions: int, count: int, seed: int = 0) -> Any:
    space = parse_space({f"p{i}": Uniform(0, 1) for i in range(dimensions)})
    sampler = SobolSampler(space, seed=seed, num_trials=count)
    return np.array([list((sampler.ask(n) or {}).values()) for n in range(count)], dtype=float)


@pytest.mark.parametrize("seed", [0, 1])
def test_every_dimension_is_cut_into_equal_parts(seed: int) -> None:
    for column in points(MAX_DIMENSIONS, 64, seed).T:
        assert sorted((column * 64).astype(int)) == list(range(64))


def test_a_later_block_is_as_even_as_the_first() -> None:
    for column in points(5, 128)[64:].T:
        assert sorted((column * 64).astype(int)) == list(range(64))


def test_two_dimensions_are_cut_into_equal_squares() -> None:
    cells = (points(2, 256) * 16).astype(int)
    assert len({tuple(cell) for cell in cells}) == 256


def test_it_is_more_even_than_random_draws() -> None:
    def error(samples: list[Any]) -> float:
        means = [np.prod(sample, axis=1).mean() for sample in samples]
        return float(np.sqrt(np.mean((np.array(means) - 1 / 16) ** 2)))

    rng = np.random.default_rng(0)
    ours = error([points(4, 256, seed) for seed in range(10)])
    assert ours < error([rng.random((256, 4)) for _ in range(10)]) / 4


def test_dimensions_are_not_correlated() -> None:
    matrix = np.corrcoef(points(40, 1024).T)
    assert np.abs(matrix - np.eye(40)).max() < 0.12


def test_a_proposal_depends_on_seed_and_number_alone() -> None:
    assert np.array_equal(points(3, 64)[:10], points(3, 10))
    assert not np.array_equal(points(3, 10, seed=1), points(3, 10))


def test_the_points_are_those_of_the_sequence() -> None:
    torch = pytest.importorskip("torch")
    from cerebro.search.sobol import _make_directions

    known = torch.quasirandom.SobolEngine(MAX_DIMENSIONS).sobolstate.tolist()
    assert [[number >> 2 for number in row[:30]] for row in _make_directions()] == known


def test_proposals_are_the_same_in_every_version() -> None:
    params = SobolSampler(MIXED, seed=0, num_trials=1).ask(0)
    # The logarithm's last digit is the platform's.
    assert params == {
        "lr": pytest.approx(0.0006820772585650394),
        "batch_size": 160,
        "layers": [32],
        "act": "relu",
        "depth": 1,
    }


def test_constants_take_no_dimension() -> None:
    space = {f"p{i}": [1, 2] for i in range(MAX_DIMENSIONS)} | {"c": 1, "one": [5]}
    assert SobolSampler(parse_space(space), seed=0, num_trials=1).ask(0) is not None


@pytest.mark.parametrize(
    ("space", "num_trials", "message"),
    [
        (
            {f"p{i}": [1, 2] for i in range(MAX_DIMENSIONS + 1)},
            1,
            "spreads over at most 64 parameters with more than one value, but this space has 65.",
        ),
        ({"a": [1, 2]}, 0, "`num_trials >= 1` must hold"),
        ({"a": [1, 2]}, 2**32 + 1, "`num_trials <= 4294967296` must hold"),
    ],
)
def test_what_it_cannot_do_is_said(space: Any, num_trials: int, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        SobolSampler(parse_space(space), seed=0, num_trials=num_trials)
    assert message in str(caught.value)
