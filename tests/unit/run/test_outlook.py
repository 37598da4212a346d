"""What a run tells of its budget and its batches before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cerebro import Experiment, tune
from cerebro.errors import UsageError
from cerebro.testing.toy import ToyTask
from tests.experiments import fast_folder, make_toy_data

SPACE = {"lr": [0.5, 0.2, 0.05]}


@pytest.fixture
def home():
    with fast_folder() as path:
        make_toy_data(path / "data")
        yield path


def told(
    home: Path,
    caplog: pytest.LogCaptureFixture,
    name: str = "toy",
    space: dict[str, Any] | None = None,
    **asked: Any,
) -> str:
    """The warnings of a run, of three trials and two epochs of two visits where nothing is said."""
    caplog.clear()
    experiment = Experiment(
        name=name, data=home / "data", store=home / "runs", backend="inline", workers=1
    )
    usual: dict[str, Any] = {"num_epochs": 2, "metric": "val_loss", "mode": "min", "batch_size": 16}
    experiment.run_fit(
        ToyTask(),
        SPACE if space is None else {"lr": 0.1, **space},
        **{**usual, "stack": False, **asked},
    )
    return "\n".join(record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (
            "3 epochs",
            "the budget of 3 epochs is not enough for the 6 of 3 trials: 1 will be trained to the "
            "end, 1 for 1 of 2 epochs, 1 not at all, unless others end early",
        ),
        (
            "9 visits",
            "the budget of 9 visits (4 epochs) is not enough for the 6 of 3 trials: 2 will be "
            "trained to the end, 1 not at all, unless others end early",
        ),
        (
            "2 trials",
            "the budget of 2 trials is not enough: the search has 3; 1 of them will not be tried",
        ),
        ({"epochs": 6, "trials": 3, "time": "1h"}, ""),
    ],
)
def test_what_a_budget_is_not_enough_for_is_told(home, caplog, budget, message):
    assert told(home, caplog, budget=budget) == message


def test_a_configuration_is_tried_with_all_its_repeats_or_not(home, caplog):
    assert "the search has 6; 2 of them will not be" in told(
        home, caplog, budget="5 trials", seeds=2
    )


def test_with_a_stopper_only_what_is_certain_is_told(home, caplog):
    stopper = {"name": "asha", "eta": 2}
    assert told(home, caplog, "enough", budget="3 epochs", stopper=stopper) == ""
    assert told(home, caplog, "short", budget="2 epochs", stopper=stopper) == (
        "the budget of 2 epochs is not enough for 3 trials; at least 1 will not be trained"
    )


def test_time_is_told_from_what_an_earlier_run_measured(home, caplog):
    assert told(home, caplog, "first") == ""
    message = told(home, caplog, "second", num_epochs=500, budget="0.001s")
    assert message.startswith("the budget of 0.001s is not enough: about ")
    assert message.endswith(" are needed; the run will end when it is used up")


def test_a_run_that_is_finished_tells_nothing(home, caplog):
    assert told(home, caplog, budget="3 epochs")
    assert told(home, caplog, budget="3 epochs") == ""
    assert told(home, caplog, budget="3 epochs", fresh=True)


def test_a_run_that_is_finished_cuts_no_batches(home, caplog):
    assert "is cut to the 36 of a shard" in told(home, caplog, batch_size=40)
    assert told(home, caplog, batch_size=40) == ""


@pytest.mark.parametrize(
    "sizes",
    [[16.0, 32.0], ["16"], [0], [True], [None], tune.uniform(8, 20), tune.quniform(8.0, 20.0, 4.0)],
    ids=str,
)
def test_what_is_no_batch_size_is_an_error(home, caplog, sizes):
    given = {"batch_size": None, "search": "random", "num_trials": 1}
    with pytest.raises(UsageError, match="batch_size must be an integer of at least 1"):
        told(home, caplog, space={"batch_size": sizes}, **given)


@pytest.mark.parametrize(
    ("space", "rows"),
    [
        ({"batch_size": [8, 40]}, 40),
        ({"batch_size": tune.randint(8, 50)}, 50),
        ({"global_batch_size": 37}, 37),
        ({"batch_size": [8, 36]}, None),
    ],
    ids=["listed", "range", "together", "fits"],
)
def test_batches_that_are_larger_than_a_shard_are_told(home, caplog, space, rows):
    """Learning rates were chosen for the batches that were asked for."""
    found = told(home, caplog, space=space, batch_size=None, search="random", num_trials=1)
    assert found == (
        ""
        if rows is None
        else f"a batch of {rows} rows is cut to the 36 of a shard, as a step takes rows of one: "
        "fewer shards make larger batches possible"
    )
