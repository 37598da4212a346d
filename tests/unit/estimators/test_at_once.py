"""Two searches at once on one store: each gets its own data, or is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from cerebro.data import open_dataset
from cerebro.errors import DataError, RunLockedError
from cerebro.tune import GridSearch
from tests.unit.estimators.made import classifier, points


def meanwhile(act):
    """A function for estimators that does something else once, when training has begun."""
    calls = []

    def generate(params):
        calls.append(params)
        # The first call comes before data are prepared.
        if len(calls) == 2:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(act).result()
        return classifier(params)

    return generate


def grid(folder, generate=classifier, lr=0.5, **options):
    return GridSearch("inline", str(folder), generate, {"lr": [lr]}, 1, **options)


@pytest.mark.parametrize("seed", [0, 1], ids=["same", "other"])
def test_data_that_are_trained_on_are_not_replaced(tmp_path, seed):
    refused = []

    def fit_as_well():
        with pytest.raises(
            DataError, match=r"must stay as it is while models are trained"
        ) as caught:
            grid(tmp_path).fit(points(seed=seed))
        refused.append(str(caught.value))

    result = grid(tmp_path, meanwhile(fit_as_well)).fit(points())
    assert str(tmp_path / "train_data") in refused[0]
    data = open_dataset(tmp_path / "train_data")
    assert result.run.document.spec["data_digest"] == data.digest
    assert result.run.digest() == grid(tmp_path / "alone").fit(points()).run.digest()
    assert grid(tmp_path).fit(points(seed=1)).run.is_finished


def test_prepared_data_serve_several_searches_at_once(tmp_path):
    inner = []

    def search_as_well():
        inner.append(grid(tmp_path, lr=0.1).fit_on_prepared_data())

    outer = grid(tmp_path, meanwhile(search_as_well)).fit(points())
    assert inner[0].run.path != outer.run.path
    assert inner[0].run.is_finished
    assert outer.run.is_finished


def test_the_same_search_has_one_driver(tmp_path):
    refused = []

    def search_as_well():
        with pytest.raises(RunLockedError, match="a run must have one driver"):
            grid(tmp_path, name="mine").fit_on_prepared_data()
        refused.append(True)

    grid(tmp_path, meanwhile(search_as_well), name="mine").fit(points())
    assert refused == [True]


def test_another_path_is_all_that_another_search_needs(tmp_path):
    def fit_as_well():
        grid(tmp_path / "other").fit(points(seed=1))

    assert grid(tmp_path, meanwhile(fit_as_well)).fit(points()).run.is_finished
