"""Recipes: what a file says, and the experiment it becomes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

import pytest
import yaml

from cerebro.backend.gang.rendezvous import find_rendezvous, read_flags
from cerebro.cli.opening import open_experiment
from cerebro.config.files import is_recipe_file, load_file, show_file
from cerebro.config.recipe import RecipeExperiment
from cerebro.config.recipe_schema import Loss, Metric
from cerebro.run.parallel import Mode
from cerebro.search.domain import Choice, Constant, LogUniform
from cerebro.zoo.objectives import LOSSES, METRICS
from tests.unit.config.recipes import RECIPE, changed, load, refused


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SCRATCH", "SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"):
        monkeypatch.delenv(name, raising=False)


# What it becomes


def test_a_recipe_becomes_an_experiment():
    found = load()
    assert found.task == "cerebro.zoo.recipe:RecipeTask"
    assert (found.store, found.name) == (str(Path("out").absolute()), "run-1")
    assert (found.epochs, found.metric, found.mode) == (3, ["val_accuracy"], ["max"])
    assert (found.parallel, found.device, found.seed) == ("auto", "auto", 0)
    assert found.source.options == {"input_shape": [16, 16, 3], "n_train": 64, "n_valid": 32}


def test_everything_that_decides_a_trial_is_a_param_by_its_dotted_name():
    found = load().space
    assert all(isinstance(domain, Constant) for domain in found.values())
    values = {name: domain.nth(0) for name, domain in found.items()}
    assert values == {
        "optimizer.name": "Adam",
        "optimizer.lr": 0.001,
        "optimizer.lr_scaling": "linear",
        "model.name": "cnn",
        "model.input_shape": [16, 16, 3],
        "model.n_classes": 1,
        "batch_size": 16,
        "training.n_epochs": 3,
        "training.lr_warmup_epochs": 0,
        "training.momentum_correction": True,
        "training.loss": "binary_crossentropy",
        "training.metrics": ["accuracy"],
    }


def test_what_varies_stands_first_and_has_the_name_that_the_rest_knows():
    text = RECIPE + (
        "search:\n  name: random\n  trials: 4\n  space:\n"
        "    optimizer.lr: {loguniform: [1e-4, 1e-1]}\n    training.batch_size: [16, 32]\n"
        "    optimizer.name: [Adam, SGD]\n    optimizer.weight_decay: [0, 1e-4]\n"
    )
    found = load(text)
    assert list(found.space)[:4] == [
        "optimizer.lr",
        "batch_size",
        "optimizer.name",
        "optimizer.weight_decay",
    ]
    assert found.space["optimizer.lr"] == LogUniform(1e-4, 1e-1)
    assert found.space["batch_size"] == Choice([16, 32])
    assert (found.search, found.num_trials) == ("random", 4)


def test_a_batch_for_all_workers_together():
    found = load(changed("batch_size: 16", "global_batch_size: 128"))
    assert found.space["global_batch_size"] == Constant(128)
    assert "batch_size" not in found.space


CIFAR = changed("name: dummy\n  n_train: 64\n  n_valid: 32", "name: cifar10").replace(
    "n_classes: 1", "n_classes: 10"
)


def test_pictures_are_changed_as_belongs_to_the_data_set_unless_told():
    cifar = CIFAR
    found = load(cifar)
    assert found.task == "cerebro.zoo.recipe:AugmentedTask"
    assert found.space["data.augment"] == Constant({"shift": 0.1, "flip": True})
    assert load(cifar, "data.augment=false").task == "cerebro.zoo.recipe:RecipeTask"
    own = load(cifar, "data.augment={crop: 4}")
    assert own.space["data.augment"] == Constant({"crop": 4})


def test_what_belongs_to_the_data_set_can_be_compared_with_other_changes():
    found = load(CIFAR, "search.space.data.augment=[true, false, {crop: 4}]")
    assert found.space["data.augment"] == Choice([{"shift": 0.1, "flip": True}, False, {"crop": 4}])
    assert load(CIFAR, "search.space.data.augment=true").space["data.augment"] == Constant(
        {"shift": 0.1, "flip": True}
    )


def test_imagenet_is_changed_and_preprocessed_as_its_network_expects():
    text = changed(
        "name: dummy\n  n_train: 64\n  n_valid: 32",
        "name: imagenet\n  train_dir: a\n  valid_dir: b",
    )
    found = load(text)
    assert found.space["data.preprocess"] == Constant("resnet50")
    augment = {"shift": 0.33, "zoom": 0.5, "flip": True}
    assert found.space["data.augment"] == Constant(augment)
    assert yaml.safe_load(show_file(found, "recipe.yaml", []))["data"]["augment"] == augment
    assert found.source.options["train_dir"] == str(Path("a").absolute())


@pytest.mark.parametrize(
    ("gpu", "device"), [("null", "auto"), ("true", "cuda"), ("1", "cuda:1"), ("false", "cpu")]
)
def test_the_device(gpu, device):
    assert load(RECIPE, f"device.gpu={gpu}").device == device


def test_threads_are_those_that_there_are(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(4)))
    assert load(RECIPE, "device.intra_threads=32").threads_per_worker == 4
    assert load(RECIPE, "device.intra_threads=2").threads_per_worker == 2
    assert load(RECIPE, "device.intra_threads=32", "workers=3").threads_per_worker == 1


@pytest.mark.parametrize(("ranks", "threads"), [(1, 4), (2, 2), (3, 1), (8, 1)])
def test_ranks_of_a_machine_share_its_cores(monkeypatch, ranks, threads):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(4)))
    config = load(RECIPE, "device.intra_threads=32", "data.prepared=data")
    spot = read_flags(nodes=2, procs=ranks, node=0, master="127.0.0.1:29500")
    monkeypatch.setattr("sys.path", sys.path.copy())
    found = open_experiment(config.prepare(print), Path("recipe.yaml"), spot=spot)
    assert found.threads_per_worker == threads


TWO_OF_FOUR = {
    "torchrun": {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"},
    "Open MPI": {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    },
    "MPICH": {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"},
    "srun": {
        "SLURM_PROCID": "1",
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_STEP_TASKS_PER_NODE": "2,1",
    },
}


@pytest.mark.parametrize(
    ("launcher", "cores", "threads"),
    [*((name, 4, 2) for name in TWO_OF_FOUR), ("srun", 8, 4), ("Open MPI", 8, 4)],
)
def test_ranks_that_a_launcher_starts_share_the_cores_that_they_have_in_common(
    monkeypatch, launcher, cores, threads
):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(4)))
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    config = load(RECIPE, "device.intra_threads=32", "data.prepared=data")
    spot = find_rendezvous({**TWO_OF_FOUR[launcher], "MASTER_ADDR": "127.0.0.1"})
    monkeypatch.setattr("sys.path", sys.path.copy())
    found = open_experiment(config.prepare(print), Path("recipe.yaml"), spot=spot)
    assert found.threads_per_worker == threads


def test_params_to_try_first_need_not_repeat_constants():
    text = RECIPE + (
        "search:\n  name: random\n  trials: 3\n  space: {optimizer.lr: [0.1, 0.2]}\n"
        "  warm_start: [{optimizer.lr: 0.2}]\n"
    )
    (first,) = load(text).warm_start
    assert first["optimizer.lr"] == 0.2
    assert first["batch_size"] == 16


# Where it goes


def test_variables_of_the_environment_are_replaced(monkeypatch, tmp_path):
    text = changed("out/run-1", "$SCRATCH/cnn-N${SLURM_JOB_NUM_NODES}-${SLURM_JOB_ID}")
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    assert load(text).name == "cnn-N1-local"
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "8")
    assert (load(text).store, load(text).name) == (str(tmp_path), "cnn-N8-77")


def test_an_unset_variable_is_told_with_its_line():
    message = refused(changed("out/run-1", "$SCRATCH/run"))
    assert message.startswith("recipe.yaml:2: ")
    assert "the environment variable SCRATCH, which is not set" in message


def test_a_default_may_be_given_and_may_have_variables_itself(monkeypatch):
    monkeypatch.setenv("HERE", "/here")
    assert load(changed("out/run-1", "${SCRATCH:-$HERE/there}/run")).store == "/here/there"


@pytest.mark.parametrize(
    ("environment", "store"),
    [({}, "/home/me/runs"), ({"A": "/a"}, "/a"), ({"B": "/b"}, "/b/runs")],
    ids=str,
)
def test_a_default_may_have_braces_of_its_own(environment, store, monkeypatch):
    for name, value in {"C": "/home/me", **environment}.items():
        monkeypatch.setenv(name, value)
    assert load(changed("out/run-1", "${A:-${B:-${C}}/runs}/run")).store == store


def test_a_brace_that_is_not_closed_is_refused():
    message = refused(changed("out/run-1", "'${A:-/there/run'"))
    assert "must name a variable in ${, as in ${HOME}" in message


def test_defaults_in_braces_of_more_than_three_others_are_refused():
    message = refused(changed("out/run-1", "'${A:-${B:-${C:-${D:-${E:-x}}}}}'"))
    assert "of which at most 4 may be in each other" in message


def test_an_earlier_run_is_found_by_variables_and_beside_the_file(monkeypatch, tmp_path):
    monkeypatch.setenv("EARLIER", "one")
    tpe = "search: {name: tpe, trials: 2, space: {optimizer.lr: [0.1, 0.2]}, learn_from: $EARLIER}"
    assert load(f"{RECIPE}{tpe}").learn_from == str(tmp_path / "one")
    monkeypatch.delenv("EARLIER")
    message = refused(f"{RECIPE}{tpe}")
    assert message.startswith("recipe.yaml:19: '$EARLIER' needs the environment variable EARLIER")


def test_without_output_dir_a_run_is_named_after_its_file(tmp_path):
    found = load(RECIPE.replace("output_dir: out/run-1\n", ""))
    assert (found.store, found.name) == (str(tmp_path / "runs"), "recipe")


# Overrides


def test_zero_is_a_value_like_any_other():
    found = load(RECIPE, "optimizer.lr=0", "model.dropout=0", "training.momentum_correction=false")
    assert found.space["optimizer.lr"] == Constant(0)
    assert found.space["model.dropout"] == Constant(0)
    assert found.space["training.momentum_correction"] == Constant(False)


@pytest.mark.parametrize(
    ("line", "override", "expected"),
    [
        ("", "data.augment.flip=false", {"shift": 0.1, "flip": False}),
        ("augment: true", "data.augment.shift=0.2", {"shift": 0.2, "flip": True}),
        ("augment: {crop: 4}", "data.augment.flip=true", {"crop": 4, "flip": True}),
        ("augment: false", "data.augment={flip: true}", {"flip": True}),
    ],
)
def test_one_change_of_pictures_is_overridden_and_the_others_stay(line, override, expected):
    found = load(CIFAR.replace("name: cifar10", f"name: cifar10\n  {line}"), override)
    assert found.space["data.augment"] == Constant(expected)


def test_a_change_of_pictures_that_is_given_does_not_vary_any_more():
    search = "search: {space: {data.augment: [true, false]}}"
    found = load(f"{CIFAR}{search}", "data.augment.flip=false")
    assert found.space["data.augment"] == Constant({"shift": 0.1, "flip": False})


@pytest.mark.parametrize("is_first", [True, False])
def test_the_other_changes_of_pictures_are_those_of_the_data_set_that_is_given(is_first):
    overrides = ["data.name=mnist", "data.augment.crop=4"]
    found = load(CIFAR, *(overrides if is_first else reversed(overrides)))
    assert found.space["data.augment"] == Constant({"crop": 4})


def test_later_overrides_win_and_sections_may_be_made():
    found = load(
        RECIPE, "search.space.optimizer.lr=[0.1, 0.2]", "goal.target=0.5", "goal.target=0.6"
    )
    assert found.space["optimizer.lr"] == Choice([0.1, 0.2])
    assert found.goal == {"target": 0.6}


@pytest.mark.parametrize(
    ("file", "override", "expected"),
    [
        ("parallel: hybrid\n", "parallel.mode=ddp", Mode.DDP),
        ("parallel: ddp\n", "parallel.check_every=0", Mode.DDP),
        ("parallel: {mode: hybrid}\n", "parallel=ddp", Mode.DDP),
    ],
)
def test_a_word_that_stands_for_a_mapping_is_overridden_as_one(file, override, expected):
    assert load(RECIPE + file, override).to_request().parallel.mode is expected


# Shown


def test_the_file_is_shown_as_it_is_carried_out():
    found = load(RECIPE, "optimizer.lr=0")
    Path("shown.yaml").write_text(show_file(found, "recipe.yaml", ["optimizer.lr=0"]))
    again = load_file("shown.yaml")
    assert isinstance(again, RecipeExperiment)
    assert again.space == found.space
    assert (again.store, again.name) == (found.store, found.name)


def test_what_becomes_of_pictures_is_shown_though_the_file_says_nothing_of_it():
    changes = ["data.name=cifar10", "model.input_shape=[32, 32, 3]", "model.n_classes=10"]
    found = load(RECIPE, *changes)
    shown = yaml.safe_load(show_file(found, "recipe.yaml", changes))
    assert shown["data"]["augment"] == {"shift": 0.1, "flip": True}
    without = load(RECIPE, *changes, "data.augment=false")
    shown = yaml.safe_load(show_file(without, "recipe.yaml", [*changes, "data.augment=false"]))
    assert shown["data"]["augment"] is False


def test_a_file_with_a_task_is_no_recipe():
    Path("task.yaml").write_text("task: tasks:Digits\nmodel: {}\ntraining: {}\n")
    assert not is_recipe_file("task.yaml")


def test_names_in_the_schema_are_those_that_exist():
    assert set(get_args(Loss)) == set(LOSSES)
    assert set(get_args(Metric)) == set(METRICS)
