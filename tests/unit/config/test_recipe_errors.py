"""What is wrong with a recipe or an override of it, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.errors import ConfigError
from cerebro.search.domain import Constant
from tests.unit.config.recipes import RECIPE, changed, load, refused


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("lr=0.1", "unknown key 'lr'. Known: description, .*Did you mean 'optimizer.lr'?"),
        ("optimiser.lr=0.1", "unknown key 'optimiser'.*Did you mean 'optimizer'?"),
        ("training.n_epoch=1", "unknown key 'training.n_epoch'. Known: training.batch_size"),
        ("goal.devises=cpu", "unknown key 'goal.devises'. Known: goal.target, .*'goal.devices'?"),
        ("optimizer=SGD", "`optimizer` must be a mapping, but got 'SGD'"),
        ("optimizer.weight_decay=-1", "weight_decay must be a number of at least 0, but got -1"),
        ("optimizer.betas=[0.9]", "betas must be a list of two numbers of at least 0"),
        ("optimizer.beta_1=much", "beta_1 must be a number of at least 0, but got 'much'"),
        ("optimizer.amsgrad=1", "amsgrad must be true or false, but got 1"),
        ("optimizer.lr=fast", "`optimizer.lr` must be a number, but got 'fast'"),
        ("optimizer.momentum=0.9", "optimizer Adam has no option 'momentum'"),
        ("optimizer.name=Adm", "unknown optimizer 'Adm'. Known: ASGD.*Did you mean 'Adam'?"),
        ("model.name=cnnn", "unknown model 'cnnn'. Known: cnn, mlp6, resnet50.*'cnn'?"),
        ("model.dropuot=0", "model 'cnn' has no option 'dropuot'. Known: name, .*'dropout'?"),
        ("model.dropout=1.5", "`0 <= dropout < 1` must hold, but got dropout=1.5"),
        ("data.name=dumy", "unknown data set 'dumy'. Known data sets: cifar10.*'dummy'?"),
        ("data.n_trian=5", "data set 'dummy' has no option 'n_trian'"),
        ("training.loss=hinge", "`training.loss` must be 'binary_crossentropy'"),
        ("search.name=grd", "unknown search 'grd'"),
        ("search.trials=3", "num_trials belongs to random search"),
        ("search.name=random", "search='random' needs num_trials"),
        ("search={name: tpe, startup_trials: 0}", "`startup_trials` of search 'tpe' must be an"),
        ("search.stopper=ashs", "unknown stopper 'ashs'"),
        ("parallel=dpp", "`parallel`: parallel must be one of mop, ddp, hybrid, auto"),
        ("backend=lokal", "unknown backend 'lokal'"),
        ("optimizer", "an override is written section.key=value"),
    ],
    ids=str,
)
def test_wrong_overrides_say_which_and_list_what_exists(override, message):
    found = refused(RECIPE, override)
    assert found.startswith(f"override {override!r}: ")
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        load(RECIPE, override)


@pytest.mark.parametrize("section", ["model", "training", "optimizer"])
def test_a_misspelt_section_is_told_with_those_that_exist(section):
    message = refused(changed(f"\n{section}:", f"\n{section}x:"))
    assert f"unknown key '{section}x'. Known: description, output_dir, " in message
    assert f"Did you mean '{section}'?" in message


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("lr: 0.001", "lr: -1", 13, "`optimizer.lr` must be greater than or equal to 0"),
        ("lr: 0.001", "lr: 0.001\n  lr_scaling: cubic", 14, "'linear', 'sqrt' or 'none'"),
        ("lr: 0.001", "lr: 0.001\n  nesterov: true", 14, "Adam has no option 'nesterov'"),
        ("batch_size: 16", "batch_size: 16\n  global_batch_size: 32", 16, "of the two, .* to null"),
        ("  batch_size: 16\n", "", 14, "but got neither"),
        ("n_epochs: 3", "n_epochs: 3\n  compile: true", 17, "unknown key 'training.compile'"),
        ("n_epochs: 3", "n_epochs: 3\n  lr_schedule: sine", 17, "unknown lr_schedule 'sine'"),
        (
            "n_epochs: 3",
            "n_epochs: 3\n  lr_schedule:\n    - {start_epoch: 0, multiplier: 1}\n"
            "    - {start_epoch: 2, end_epoch: 2, multiplier: 1}",
            19,
            r"lr_schedule\[1\]: `end_epoch > start_epoch`",
        ),
        ("name: Adam", "name: [Adam]", 12, "`optimizer.name` must be a string"),
        ("input_shape: [16, 16, 3]", "input_shape: [16, 16]", 9, "at least 3 items"),
        ("n_train: 64", "n_train: 0", 5, "`n_train >= 1` must hold"),
        ("n_train: 64", "augment: {rotate: 10}", 5, "unknown augmentation 'rotate'"),
        ("n_train: 64", "augment: {shift: 2}", 5, "shift is a share of the picture"),
        ("n_train: 64", "augment: {shift: .nan}", 5, "'data.augment': .* a finite number, .* nan"),
        ("n_train: 64", "augment: {zoom: 1}", 5, "`0 <= zoom < 1` must hold, but got zoom=1: "),
        ("out/run-1", "out/run 1", 2, "a run's name must start with a letter"),
    ],
    ids=str,
)
def test_errors_name_the_line(old, new, line, message):
    text = changed(old, new)
    found = refused(text)
    assert found.startswith(f"recipe.yaml:{line}: "), found
    with pytest.raises(ConfigError, match=message):
        load(text)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ("lr: [1]", "parameter 'lr': what varies is a key of data, model"),
        ("training.n_epochs: [1, 2]", "it is the same for all trials"),
        ("training.lr: [1, 2]", "unknown key of training 'lr'. Known: batch_size"),
        ("optimizer.name: [Adam, SDG]", "unknown optimizer 'SDG'.*Did you mean 'SGD'?"),
        ("optimizer.lr_scaling: [linear, cube]", "lr_scaling must be one of"),
        ("optimizer.lr: {uniform: [2, 1]}", "parameter 'optimizer.lr': "),
        ("optimizer.lr: [0.1, -1]", "`optimizer.lr` must be greater than or equal to 0"),
        ("optimizer.lr: {uniform: [-1, 1]}", "greater than or equal to 0, but got -1.0"),
        ("optimizer.eps: {quniform: [-2, 1, 2]}", "eps must be a number of at least 0, but got -2"),
        ("training.batch_size: {uniform: [4, 8]}", "must be an integer, but got 4.0"),
        ("training.batch_size: {randint: [0, 8]}", "or equal to 1, but got 0"),
        (
            "training.lr_schedule: [cosine]\n    training.lr_warmup_epochs: {randint: [0, 9]}",
            "must hold, but got end_epoch=3 .* That is so with training.lr_warmup_epochs: 9",
        ),
        ("training.batch_size: [4, many]", "`training.batch_size` must be an integer"),
        ("training.clip_grad_norm: [-1, 1]", "`training.clip_grad_norm` must be greater than 0"),
        ("training.amp: [bf16, fp8]", "`training.amp` must be 'bf16', 'fp16' or 'tf32'"),
        ("optimizer.eps: [1.e-8, small]", "eps must be a number of at least 0, but got 'small'"),
        ("model.name: [[cnn], cnn]", "`model.name` must be a string"),
        ("model.name: [cnn, mlp]", "unknown model 'mlp'.*Did you mean 'mlp6'?"),
        ("optimizer.lr: [null, 0.1]", "`optimizer.lr` must be a number, but got nothing"),
        ("model.name: [null, cnn]", "`model.name` must be a string, but got nothing"),
        ("training.batch_size: [null, 16]", "training.batch_size must be an integer, but got no"),
        ("model.dropout: {uniform: [0, 1]}", "`0 <= dropout < 1` must hold, but got dropout=1.0"),
        ("training.loss: [mse, rmse]", "unknown loss 'rmse'"),
        ("data.preprocess: [unit, other]", "preprocess must be unit, resnet50"),
        ("data.augment: [false, {rotate: 10}]", "unknown augmentation 'rotate'"),
        ("data.augment: [{zoom: 0.1}, {zoom: -1}]", "`0 <= zoom < 1` must hold"),
        ("data.augment: [false, sometimes]", "augment must be a mapping of shift, zoom"),
        ("training.momentum_correction: [true, 3]", "momentum_correction must be true or false"),
        (
            "training.lr_schedule: [cosine, [{start_epoch: 1, multiplier: -1}]]",
            r"lr_schedule\[0\]: multiplier must be",
        ),
    ],
    ids=str,
)
def test_what_varies_is_checked_value_by_value(space, message):
    text = f"{RECIPE}search:\n  space:\n    {space}\n"
    assert refused(text).startswith("recipe.yaml:21: ")
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        load(text)


def test_a_value_that_does_not_go_with_what_the_file_has_is_refused_there():
    text = changed("name: Adam", "name: SGD\n  momentum: 0.9")
    text += "search:\n  space:\n    optimizer.name: [SGD, Adam]\n"
    message = refused(text)
    assert message.startswith("recipe.yaml:13: optimizer Adam has no option 'momentum'.")
    assert "That is so with optimizer.name: 'Adam'." in message


def test_an_option_that_only_some_of_the_models_have_is_refused_there():
    text = changed("n_classes: 1", "n_classes: 1\n  stem: cifar").replace("cnn", "resnet50")
    assert load(text).space["model.stem"] == Constant("cifar")
    message = refused(text, "search.space.model.name=[resnet50, mlp6]")
    assert message.startswith("recipe.yaml:11: model 'mlp6' has no option 'stem'. Known: name, ")
    assert message.endswith("That is so with model.name: 'mlp6'.")
    assert refused(text, "model.stem=big").endswith(
        "unknown stem 'big'. Known stems: cifar, imagenet."
    )


def test_a_value_that_does_not_go_with_another_domain_is_refused():
    text = changed("name: Adam", "name: SGD")
    text += "search:\n  space:\n    optimizer.name: [SGD, Adam]\n    optimizer.momentum: [0, 0.9]\n"
    assert refused(text).startswith("recipe.yaml:22: optimizer Adam has no option 'momentum'.")


def test_a_model_has_room_for_the_classes_of_its_data():
    text = changed("name: dummy\n  n_train: 64\n  n_valid: 32", "name: cifar10")
    for classes in (1, 5):
        message = refused(text, f"model.n_classes={classes}")
        assert message == (
            f"override 'model.n_classes={classes}': `n_classes >= 10` must hold for cifar10, but "
            f"got n_classes={classes}."
        )


def test_a_metric_needs_to_know_which_way():
    assert "search.mode is missing" in refused(RECIPE, "search.metric=val_loss")
    found = load(RECIPE, "search.metric=val_loss", "search.mode=min")
    assert (found.metric, found.mode) == (["val_loss"], ["min"])
