from __future__ import annotations

import time

import pytest
import torch

from cerebro.data import Dataset
from tests.unit.train.bare import make_data
from tests.unit.train.slow import CLOCK


@pytest.fixture(scope="session", autouse=True)
def warm_torch() -> None:
    """The first optimizer makes PyTorch set an environment variable; no test should own that."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is slow by `CLOCK` is slow; all else takes as long as it takes."""
    real = time.perf_counter
    CLOCK.ahead_s = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: real() + CLOCK.ahead_s)
