"""R3: the same result wherever, in whatever order and however often saved it is computed."""

from __future__ import annotations

import pytest

from cerebro import Experiment, Result, tune
from cerebro.data import digits, from_arrays
from cerebro.testing.history import check
from tests.experiments import STACK, learnt, outcome
from tests.tasks import Net

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SPACE = {
    "lr": tune.loguniform(1e-3, 1e-1),
    "width": tune.choice([16, 24]),
    "batch_size": tune.choice([32, 64]),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("equivalence")
    data = {name: column[:1200] for name, column in digits().items()}
    from_arrays(folder / "data", train=data, shards=3, validation=0.2)
    return folder


def run(home, name, backend, workers, **options):
    experiment = Experiment(
        name=name, data=home / "data", store=home / "runs", backend=backend, workers=workers, seed=5
    )
    experiment.run_fit(
        Net(),
        SPACE,
        **{
            "num_epochs": 3,
            "search": "random",
            "num_trials": 5,
            "metric": "val_accuracy",
            "mode": "max",
            "progress": False,
            # For the number of workers `auto` may choose other stacks.
            "stack": False if STACK == "auto" else STACK,
            **options,
        },
    )
    check(home / "runs" / name)
    return home / "runs" / name


@pytest.fixture(scope="module")
def oracle(home):
    """One process, one visit after another."""
    return run(home, "oracle", "inline", 1)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_worker_processes_give_the_digest_of_the_inline_backend(home, oracle, workers):
    assert outcome(run(home, f"local{workers}", "local", workers)) == outcome(oracle)


def test_more_inline_workers_give_the_same_digest(home, oracle):
    assert outcome(run(home, "inline3", "inline", 3)) == outcome(oracle)


@pytest.mark.parametrize("checkpoint", ["epoch", "off"])
def test_how_often_state_is_saved_does_not_change_the_metrics(home, oracle, checkpoint):
    root = run(home, f"saved-{checkpoint}", "local", 2, checkpoint=checkpoint)
    assert list(Result.open(root).leaderboard()) == list(Result.open(oracle).leaderboard())


def test_saving_once_an_epoch_ends_in_the_same_weights(home, oracle):
    root = run(home, "saved-at-epochs", "inline", 1, checkpoint="epoch")
    assert outcome(root) == outcome(oracle)


def test_random_search_tries_the_same_trials_every_time(home, oracle):
    params = [trial[0] for trial in learnt(oracle).values()]
    again = run(home, "again", "inline", 1, num_epochs=1)
    assert [trial[0] for trial in learnt(again).values()] == params
    assert len({str(trial) for trial in params}) == 5


def test_another_seed_gives_another_result(home):
    digests = set()
    for seed in (5, 6):
        experiment = Experiment(
            name=f"seed{seed}",
            data=home / "data",
            store=home / "runs",
            backend="inline",
            workers=1,
            seed=seed,
        )
        result = experiment.run_fit(
            Net(),
            {"lr": 0.01, "width": 16, "batch_size": 32},
            num_epochs=1,
            metric="val_accuracy",
            mode="max",
            progress=False,
        )
        digests.add(result.digest())
    assert len(digests) == 2


def test_a_model_loads_from_its_checkpoint_and_scores_as_recorded(home, oracle):
    import torch

    from cerebro.data import open_dataset

    result = Result.open(oracle, task=Net())
    model = result.load(result.best.id)
    dataset, hits, rows = open_dataset(home / "data"), 0, 0
    for number in range(len(dataset.shards("val"))):
        columns = dataset.open_shard("val", number).columns
        x, y = (torch.tensor(columns[name]) for name in ("x", "y"))
        with torch.no_grad():
            hits += int((model(x).argmax(1) == y).sum())
        rows += len(y)
    assert hits / rows == pytest.approx(result.best.metrics["val_accuracy"], rel=1e-6)
