"""Keys of a recipe's open sections: what is said of one that does not exist, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.search.domain import Constant
from tests.unit.config.recipes import RECIPE, load, refused


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


DATA = (
    "Known: name, source, prepared, augment, preprocess, input_shape, n_train, n_valid, seed, "
    "shards, target_shape."
)
CNN = "Known: name, input_shape, n_classes, dropout."
ADAM = (
    "Known: name, lr, lr_scaling, betas, eps, weight_decay, maximize, amsgrad, "
    "decoupled_weight_decay, beta_1, beta_2, epsilon."
)
GRID = (
    "Known: name, space, trials, metric, mode, stopper, concurrent, seeds, warm_start, learn_from."
)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.augmnt=false", f"data set 'dummy' has no option 'augmnt'. {DATA} ... 'augment'?"),
        ("data.sorce=here", f"data set 'dummy' has no option 'sorce'. {DATA} ... 'source'?"),
        ("data.n-valid=5", f"data set 'dummy' has no option 'n-valid'. {DATA} ... 'n_valid'?"),
        ("data.extra=true", f"data set 'dummy' has no option 'extra'. {DATA}"),
        ("model.n_clases=3", f"model 'cnn' has no option 'n_clases'. {CNN} ... 'n_classes'?"),
        ("model.dropuot=0", f"model 'cnn' has no option 'dropuot'. {CNN} ... 'dropout'?"),
        ("optimizer.lr_scalin=none", f"optimizer Adam has no option 'lr_scalin'. {ADAM} ... 'lr_s"),
        ("optimizer.epsilom=1", f"optimizer Adam has no option 'epsilom'. {ADAM} ... 'epsilon'?"),
        ("search.trails=3", f"search 'grid' has no option 'trails'. {GRID} ... 'trials'?"),
        (
            "search={name: tpe, trails: 3}",
            f"search 'tpe' has no option 'trails'. {GRID[:-1]}, candidates, startup_trials. ... 't",
        ),
    ],
    ids=str,
)
def test_a_key_that_does_not_exist_is_told_with_all_that_do(override, message):
    told = refused(RECIPE, override)
    assert told.startswith(f"override {override!r}: {message}".replace("...", "Did you mean"))


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("n_train: 64", "n_trian: 64", 5, f"data set 'dummy' has no option 'n_trian'. {DATA}"),
        ("n_classes: 1", "n_clases: 1", 10, f"model 'cnn' has no option 'n_clases'. {CNN}"),
        ("lr: 0.001", "learn: 1", 13, f"optimizer Adam has no option 'learn'. {ADAM}"),
        (
            "output_dir: out/run-1",
            "search: {name: random,\n  trails: 3}",
            3,
            f"search 'random' has no option 'trails'. {GRID}",
        ),
        (
            "output_dir: out/run-1",
            "search: {space: {optimizer.lr_scalin: [none, sqrt]}}",
            2,
            f"optimizer Adam has no option 'lr_scalin'. {ADAM}",
        ),
    ],
    ids=str,
)
def test_it_is_told_with_its_line_though_another_key_is_missing_for_it(old, new, line, message):
    assert refused(RECIPE.replace(old, new)).startswith(f"recipe.yaml:{line}: {message}")


def test_an_option_is_not_blamed_where_what_it_is_for_varies():
    text = RECIPE.replace("name: Adam", "name: Adam\n  momentum: 0.9")
    text = text.replace("n_epochs: 3", "n_epoch: 3")
    told = refused(text, "search.space.optimizer.name=[SGD, RMSprop]")
    assert told.startswith("recipe.yaml:17: unknown key 'training.n_epoch'.")


def test_options_may_be_spelled_as_keras_does():
    assert load(RECIPE, "optimizer.beta_1=0.8").space["optimizer.beta_1"] == Constant(0.8)
