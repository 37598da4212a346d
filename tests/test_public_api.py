"""The public names, frozen: a change here is a change for users and belongs in CHANGELOG.md."""

from __future__ import annotations

import importlib
import inspect

import pytest

PUBLIC = {
    "cerebro": [
        "ETLSpec",
        "Experiment",
        "MiniBatchSpec",
        "Result",
        "Steering",
        "Task",
        "__version__",
        "data",
        "errors",
        "tune",
        "zoo",
    ],
    "cerebro.backend": ["Backend", "InlineBackend", "LocalBackend", "RayBackend", "SparkBackend"],
    "cerebro.data": [
        "Batch",
        "BatchBuffers",
        "BytesColumn",
        "Column",
        "Dataset",
        "Kind",
        "Shard",
        "ShardInfo",
        "SparseRows",
        "TextColumn",
        "batch_order",
        "digits",
        "from_arrays",
        "from_csv",
        "from_parquet",
        "from_torch",
        "iter_batches",
        "open_dataset",
        "permutation",
    ],
    "cerebro.data.named": ["DATASETS", "NamedData", "lookup", "prepare"],
    "cerebro.keras": [
        "CerebroModel",
        "Compiled",
        "KerasEstimator",
        "KerasTask",
        "SparkEstimator",
    ],
    "cerebro.storage": [
        "DirectoryStore",
        "HDFSStore",
        "LocalStore",
        "PrefixStore",
        "Store",
        "open_store",
    ],
    "cerebro.torch": ["CerebroModel", "TorchEstimator"],
    "cerebro.tune": [
        "GridSearch",
        "HyperOpt",
        "ModelSelection",
        "ModelSelectionResult",
        "RandomSearch",
        "TPESearch",
        "choice",
        "grid",
        "hp_choice",
        "hp_loguniform",
        "hp_qloguniform",
        "hp_quniform",
        "hp_uniform",
        "loguniform",
        "qloguniform",
        "quniform",
        "randint",
        "uniform",
    ],
    "cerebro.zoo": [
        "MODELS",
        "build",
        "cnn",
        "decayed_parameters",
        "make_augment",
        "mlp6",
        "parameter_groups",
        "resnet50",
        "resnet_small",
    ],
}

NAMES = [(module, name) for module, names in PUBLIC.items() for name in names]


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_are_exactly(module):
    assert sorted(importlib.import_module(module).__all__) == sorted(PUBLIC[module])


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_every_public_name_can_be_had(module, name):
    assert getattr(importlib.import_module(module), name) is not None


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_every_public_name_is_documented(module, name):
    value = getattr(importlib.import_module(module), name)
    if inspect.isclass(value) or inspect.isfunction(value) or inspect.ismodule(value):
        assert (value.__doc__ or "").strip()


@pytest.mark.parametrize("module", PUBLIC)
def test_dir_lists_the_public_names(module):
    assert set(PUBLIC[module]) <= set(dir(importlib.import_module(module)))
