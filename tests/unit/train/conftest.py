from __future__ import annotations

import pytest
import torch

from cerebro.data import Dataset
from tests.unit.train.bare import make_data


@pytest.fixture(scope="session", autouse=True)
def warm_torch() -> None:
    """The first optimizer makes PyTorch set an environment variable; no test should own that."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make_data(tmp_path_factory.mktemp("data"))
