"""The recipes of the tutorial and of the assignment: every value is the one that is documented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cerebro.config.files import load_file
from cerebro.config.yaml import load_yaml
from cerebro.task import RunFacts
from cerebro.zoo.params import epoch_lr

CONFIGS = Path(__file__).resolve().parent.parent.parent / "configs"
CROSSENTROPY = "categorical_crossentropy"
#: What the tutorial and the assignment document, less where files are and runs go.
DOCUMENTED: dict[str, dict[str, Any]] = {
    "cifar10_cnn": {
        "description": "CNN CIFAR10",
        "data": {"name": "cifar10"},
        "model": {"name": "cnn", "input_shape": [32, 32, 3], "n_classes": 10, "dropout": 0.1},
        "optimizer": {"name": "Adam", "lr": 0.001},
        "training": {
            **{"batch_size": 64, "n_epochs": 24, "lr_warmup_epochs": 5},
            **{"loss": CROSSENTROPY, "metrics": ["accuracy"]},
        },
    },
    "cifar10_resnet": {
        "description": "ResNet CIFAR10",
        "data": {"name": "cifar10"},
        "model": {"name": "resnet_small", "input_shape": [32, 32, 3], "n_classes": 10},
        "optimizer": {"name": "Adam", "lr": 0.0001, "lr_scaling": "linear"},
        "training": {
            **{"batch_size": 64, "n_epochs": 32, "lr_warmup_epochs": 5},
            **{"loss": CROSSENTROPY, "metrics": ["accuracy"]},
        },
        "device": {"intra_threads": 32},
    },
    "hello": {
        "description": "Hello world",
        "data": {"name": "dummy", "input_shape": [64, 64, 3], "n_train": 1024, "n_valid": 1024},
        "model": {"name": "cnn", "input_shape": [64, 64, 3], "n_classes": 1},
        "optimizer": {"name": "Adam", "lr": 0.001},
        "training": {
            **{"batch_size": 32, "n_epochs": 1},
            **{"loss": "binary_crossentropy", "metrics": ["accuracy"]},
        },
    },
    "imagenet_resnet": {
        "description": "ResNet ImageNet",
        "data": {"name": "imagenet", "augment": {"shift": 0.33, "zoom": 0.5, "flip": True}},
        "model": {"name": "resnet50", "input_shape": [224, 224, 3], "n_classes": 100},
        "optimizer": {"name": "SGD", "lr": 0.0125, "momentum": 0.9},
        "training": {
            **{"batch_size": 32, "n_epochs": 100, "lr_warmup_epochs": 5},
            **{"loss": CROSSENTROPY, "metrics": ["accuracy", "top_k_categorical_accuracy"]},
            "lr_schedule": [
                {"start_epoch": 5, "end_epoch": 30, "multiplier": 1.0},
                {"start_epoch": 30, "end_epoch": 60, "multiplier": 0.1},
                {"start_epoch": 60, "end_epoch": 80, "multiplier": 0.01},
                {"start_epoch": 80, "multiplier": 0.001},
            ],
        },
    },
    "mlp6": {
        "description": "MLP of six hidden layers, SVHN",
        "data": {"name": "svhn"},
        "model": {"name": "mlp6", "input_shape": [32, 32, 3], "n_classes": 10},
        "optimizer": {"name": "SGD", "lr": 0.01, "lr_scaling": "none"},
        "training": {
            **{"batch_size": 64, "n_epochs": 40},
            **{"loss": CROSSENTROPY, "metrics": ["accuracy"]},
            "lr_schedule": [
                {"start_epoch": 0, "end_epoch": 10, "multiplier": 1},
                {"start_epoch": 10, "end_epoch": 20, "multiplier": 0.1},
                {"start_epoch": 20, "multiplier": 0.01},
            ],
        },
    },
}


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "IMAGENET"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_recipes_say_what_is_documented(name):
    said: Any = load_yaml(CONFIGS / f"{name}.yaml").tree
    del said["output_dir"]
    for key in ("train_dir", "valid_dir"):
        said["data"].pop(key, None)
    assert said == DOCUMENTED[name]


def test_runs_go_where_it_is_documented(tmp_path):
    configs = [load_file(CONFIGS / f"{name}.yaml") for name in DOCUMENTED]
    places = [Path(config.store, config.name) for config in configs]
    tutorial = tmp_path / "isc19-dl-tutorial"
    names = ("cifar-cnn-N1-local", "cifar10-resnet-N1-local", "hello-world")
    assert places == [
        *(tutorial / name for name in names),
        tutorial / "imagenet-resnet-N1-local",
        CONFIGS.parent / "runs" / "mlp6-N1-local",
    ]


def test_the_rates_of_the_assignment_are_those_of_its_three_phases():
    params = {k: d.nth(0) for k, d in load_file(CONFIGS / "mlp6.yaml").space.items()}
    facts = RunFacts(shard_rows=(640,), workers=3)
    rates = [epoch_lr(params, facts, epoch) for epoch in range(40)]
    assert rates == pytest.approx([*[1e-2] * 10, *[1e-3] * 10, *[1e-4] * 20], rel=1e-12)
