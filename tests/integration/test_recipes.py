"""The recipes that come along, and `cerebro run` of one: on small files in the real formats."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import cerebro
from cerebro.cli.located import located
from cerebro.cli.opening import open_experiment
from cerebro.cli.recipe import check_pictures, tell_best
from cerebro.cli.run import fit_experiment
from cerebro.config.files import load_file
from cerebro.config.recipe import RecipeExperiment
from cerebro.errors import ConfigError, UsageError
from cerebro.results import Result
from tests.named import write_cifar_binary, write_mnist, write_pictures, write_svhn

CONFIGS = Path(__file__).resolve().parent.parent.parent / "configs"
#: One process, one epoch.
SMALL = (
    *("backend=inline", "workers=1", "device.intra_threads=1"),
    *("training.n_epochs=1", "training.batch_size=8"),
)
RECIPE = """\
output_dir: runs/small
data: {name: dummy, n_train: 48, n_valid: 16, shards: 2}
model: {name: cnn, input_shape: [8, 8, 1], n_classes: 1}
optimizer: {name: SGD, lr: 0.01, momentum: 0.9}
training:
  batch_size: 8
  n_epochs: 2
  lr_warmup_epochs: 1
  lr_schedule: [{start_epoch: 1, multiplier: 0.1}]
  loss: binary_crossentropy
  metrics: [accuracy]
backend: inline
workers: 1
"""


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCRATCH", str(tmp_path / "scratch"))
    monkeypatch.setenv("CEREBRO_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "IMAGENET"):
        monkeypatch.delenv(name, raising=False)


def train(path: Path | str, *overrides: str, folds: int | None = None) -> tuple[Result, Path]:
    """Run a recipe; its result and its directory."""
    config = load_file(path, overrides)
    assert isinstance(config, RecipeExperiment)
    config = config.prepare(lambda text: None).model_copy(update={"folds": folds})
    check_pictures(config)
    experiment = open_experiment(config, Path(path))
    with located(config, Path(path), overrides):
        result = fit_experiment(experiment, config, progress=False)
    return result, Path(result.path)


def history(path: Path) -> dict[str, np.ndarray]:
    with np.load(path / "history.npz", allow_pickle=False) as found:
        return dict(found)


def saved_lr(run: Path, trial: str) -> float:
    """What the optimizer of a trial goes on with from its newest checkpoint."""
    newest = max((run / "trials" / trial / "checkpoints").glob("*.json"))
    rate: float = json.loads(newest.read_text())["meta"]["groups"][0]["lr"]
    return rate


def cifar() -> None:
    write_cifar_binary(Path("data/cifar10"))


def mnist() -> None:
    write_mnist(Path("data/mnist"))


def svhn() -> None:
    for seed, name in enumerate(("train", "extra", "test")):
        write_svhn(Path(f"data/svhn/{name}_32x32.mat"), seed, 16)


def imagenet() -> None:
    for split in ("train", "validation"):
        write_pictures(Path("scratch/imagenet-100") / split, ("cat", "dog", "owl"), 2)


def nothing() -> None:
    pass


#: Batches for all workers of a trial together.
TOGETHER = ("training.batch_size=null", "training.global_batch_size=8")

SHIPPED: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {
    "cifar10_cnn": (cifar, ()),
    "cifar10_resnet": (cifar, ("data.shards=1",)),
    "hello": (nothing, ("data.n_train=16", "data.n_valid=8", "data.shards=1")),
    "imagenet_resnet": (
        imagenet,
        (
            "model.input_shape=[48, 48, 3]",
            "model.stem=imagenet",
            "model.n_classes=3",
            "data.shards=1",
            "checkpoint=off",
            "training.lr_warmup_epochs=0",
        ),
    ),
    "mlp6": (svhn, ("data.shards=1",)),
    "race_cifar10": (cifar, TOGETHER),
    "race_mnist": (mnist, (*TOGETHER, "data.n_train=16")),
    "race_svhn": (svhn, (*TOGETHER, "data.n_train=16")),
}


def test_every_recipe_that_comes_along_is_tried():
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_recipe_that_comes_along_runs(name, tmp_path, capsys):
    write, overrides = SHIPPED[name]
    write()
    result, run = train(CONFIGS / f"{name}.yaml", *SMALL, f"output_dir={tmp_path}/out", *overrides)
    assert result.trials[0].status == "finished"
    curves = history(run)
    assert {"n_ranks", "loss", "acc", "val_loss", "val_acc", "lr"} <= set(curves)
    assert np.isfinite(curves["val_loss"]).all()
    assert curves["val_loss"].shape == (1,)
    if name == "imagenet_resnet":
        top_5 = curves["val_top_k_categorical_accuracy"][0]
        tell_best(result)
        assert f"best top-5 accuracy: {top_5:.4f} (t0000, epoch 1)" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["race_cifar10", "race_mnist", "race_svhn"])
def test_a_race_is_the_same_on_any_number_of_cores_and_has_a_search_to_try(name):
    path = CONFIGS / f"{name}.yaml"
    params = {key: domain.nth(0) for key, domain in load_file(path).space.items()}
    assert params["optimizer.lr_scaling"] == "none"
    assert "batch_size" not in params
    assert rates_of(params, workers=1) == rates_of(params, workers=4)
    text = path.read_text()
    before, found, search = text.partition("\n# search:\n")
    assert found
    lines = [line.removeprefix("# ") for line in f"# search:\n{search}".splitlines()]
    Path("searched.yaml").write_text(f"{before}\n" + "\n".join(lines) + "\n")
    searched = load_file("searched.yaml", ["output_dir=out"])
    assert searched.num_trials is not None
    assert searched.num_trials > 1


def rates_of(params, workers):
    facts = cerebro.task.RunFacts(shard_rows=(640,), workers=workers)
    return [cerebro.zoo.params.epoch_lr(params, facts, epoch) for epoch in range(3)]


# What a run leaves


def test_curves_are_written_for_each_trial_and_hold_the_rates(tmp_path):
    Path("recipe.yaml").write_text(RECIPE)
    _, run = train("recipe.yaml", "search.space.optimizer.lr=[0.01, 0.1]")
    assert not (run / "history.npz").exists()
    curves = [history(run / "trials" / trial) for trial in ("t0000", "t0001")]
    assert curves[0]["lr"].tolist() == pytest.approx([0.01, 0.001], rel=1e-12)
    assert curves[1]["lr"].tolist() == pytest.approx([0.1, 0.01], rel=1e-12)
    assert [int(each["n_ranks"]) for each in curves] == [1, 1]
    result = Result.open(run)
    told = [row["val_loss"] for row in result.history(0)]
    assert curves[0]["val_loss"].tolist() == told
    assert all(each["seconds"].min() > 0 for each in curves)


@pytest.mark.parametrize(
    "gangs",
    [("parallel=ddp", "workers=2"), ("parallel=hybrid", "workers=4", "workers_per_trial=2")],
    ids=["ddp", "hybrid"],
)
def test_two_workers_on_a_trial_scale_and_warm_up_its_rate(gangs):
    Path("recipe.yaml").write_text(RECIPE)
    changes = ("training.batch_size=4", "training.lr_warmup_epochs=4", "training.lr_schedule=null")
    _, run = train("recipe.yaml", *gangs, *changes, "search.space.optimizer.lr=[0.01, 0.1]")
    for trial, lr in (("t0000", 0.01), ("t0001", 0.1)):
        curves = history(run / "trials" / trial)
        assert int(curves["n_ranks"]) == 2
        assert curves["lr"].tolist() == pytest.approx([1.25 * lr, 1.5 * lr], rel=1e-12)
        # One batch further: an epoch has 6.
        assert saved_lr(run, trial) == pytest.approx((1.5 + 1 / 24) * lr, rel=1e-12)


def test_two_ranks_learn_what_one_process_does_with_the_network_of_the_assignment(tmp_path):
    svhn()
    small = (*TOGETHER, "training.n_epochs=2", "data.shards=2")
    weights = []
    for mode, workers in (("mop", 1), ("ddp", 2)):
        told = (f"parallel={mode}", f"workers={workers}", f"output_dir={tmp_path / mode}")
        result, _ = train(CONFIGS / "mlp6.yaml", "backend=inline", *small, *told)
        weights.append(result.load(0).state_dict())
    one, two = weights
    for name, tensor in one.items():
        assert torch.allclose(two[name], tensor, rtol=1e-5, atol=1e-7), name


def test_the_rates_of_trials_that_hop_are_not_scaled_by_the_number_of_workers():
    Path("recipe.yaml").write_text(RECIPE)
    changes = ("parallel=mop", "workers=2", "optimizer.lr_scaling=linear")
    _, run = train("recipe.yaml", *changes, "search.space.optimizer.lr=[0.01, 0.1]")
    curves = [history(run / "trials" / trial)["lr"].tolist() for trial in ("t0000", "t0001")]
    assert curves == [pytest.approx([0.01, 0.001]), pytest.approx([0.1, 0.01])]
    saved = [saved_lr(run, trial) for trial in ("t0000", "t0001")]
    assert saved == pytest.approx([0.001, 0.01])


def test_with_folds_an_epoch_of_the_schedule_is_one_of_the_shards_that_a_trial_is_trained_on():
    Path("recipe.yaml").write_text(RECIPE)
    drop = "training.lr_schedule=[{start_epoch: 2, multiplier: 0.1}]"
    _, run = train("recipe.yaml", drop, "training.n_epochs=3", folds=2)
    for trial in ("t0000", "t0001"):
        assert history(run / "trials" / trial)["lr"].tolist() == pytest.approx([0.01, 0.01, 0.001])
        assert saved_lr(run, trial) == pytest.approx(0.001)


def test_a_run_shows_the_graph_of_its_model_in_tensorboard():
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    Path("recipe.yaml").write_text(RECIPE)
    _, run = train("recipe.yaml", "training.n_epochs=1")
    events = [
        event
        for path in (run / "tensorboard" / "t0000").iterdir()
        for event in loader.EventFileLoader(str(path)).Load()
    ]
    assert sum(bool(event.graph_def) for event in events) == 1


def test_trials_that_differ_in_numbers_alone_are_stacked():
    Path("recipe.yaml").write_text(RECIPE)
    result, run = train(
        *("recipe.yaml", "stack=4", "training.lr_schedule=cosine", "training.lr_warmup_epochs=0"),
        "search.space.optimizer.lr=[0.01, 0.02, 0.03, 0.04]",
    )
    assert [path.name for path in (run / "stacks").iterdir()] == ["s0000"]
    assert {trial.status for trial in result.trials} == {"finished"}
    curves = history(run / "trials" / "t0003")
    assert np.isfinite(curves["acc"]).all()
    assert curves["lr"][-1] == pytest.approx(0.04 * (1 + np.cos(np.pi * 11 / 12)) / 2, rel=1e-12)


def test_a_model_is_loaded_from_a_run_alone():
    Path("recipe.yaml").write_text(RECIPE)
    _, run = train("recipe.yaml")
    model = Result.open(run).load("best")
    assert type(model).__name__ == "CNN"


def test_another_recipe_of_the_same_name_is_refused():
    Path("recipe.yaml").write_text(RECIPE)
    train("recipe.yaml")
    with pytest.raises(UsageError, match="a run is resumed only with what it began with"):
        train("recipe.yaml", "optimizer.lr=0.5")


# Goals


def test_a_goal_ends_the_run_at_once_and_tells_the_time():
    Path("recipe.yaml").write_text(RECIPE)
    result, _ = train("recipe.yaml", "training.n_epochs=5", "goal={target: 0.0, max_epochs: 5}")
    assert "reached val_accuracy" in str(result.ending)
    assert result.time_to_target_s is not None
    assert len(result.history(0)) == 1


# Mistakes that only a run can find


def test_pictures_must_be_those_that_the_model_takes():
    Path("recipe.yaml").write_text(RECIPE)
    with pytest.raises(UsageError, match=r"must be that of the pictures, \[16, 8, 1\]"):
        train("recipe.yaml", "data.input_shape=[16, 8, 1]")


def test_a_mistake_that_a_worker_finds_has_the_line_of_the_file():
    Path("recipe.yaml").write_text(RECIPE.replace("[8, 8, 1]", "[4, 4, 1]"))
    with pytest.raises(ConfigError, match=r"yaml:3: pictures must be at least 8 x 8"):
        train("recipe.yaml")


def test_targets_that_no_class_can_be_told_from_are_named():
    """Before a step already: training metrics come first."""
    Path("recipe.yaml").write_text(RECIPE)
    with pytest.raises(ConfigError, match="there must be a target for each logit"):
        train("recipe.yaml", "model.n_classes=4", "training.loss=categorical_crossentropy")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("goal.metric=val_acc",), "'goal.metric=val_acc': the metric must be one that"),
        (
            ("goal.metric=val_acc", "search={metric: val_loss, mode: min}"),
            "'goal.metric=val_acc': the metric of the goal must be one that",
        ),
        (("goal.devices=cuda",), "'goal.devices=cuda': device must name a device of this machine"),
    ],
)
def test_a_mistake_of_the_goal_is_told_as_such(overrides, message, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    Path("recipe.yaml").write_text(RECIPE + "goal: {target: 0.9, mode: max}\n")
    with pytest.raises(ConfigError, match=message):
        train("recipe.yaml", *overrides)


def test_a_stopper_by_what_the_task_does_not_give_has_the_line_of_the_file():
    search = "search: {metric: val_loss, mode: min,\n  stopper: {name: patience, mode: max,\n"
    Path("recipe.yaml").write_text(f"{RECIPE}{search}    metric: val_acc}}}}\n")
    with pytest.raises(ConfigError, match=r"yaml:16: the metric of stopper 'patience' must be"):
        train("recipe.yaml")
