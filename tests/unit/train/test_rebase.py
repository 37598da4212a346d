from __future__ import annotations

from typing import Any

import pytest
import torch

from cerebro.train.rebase import rebase
from cerebro.train.torch.framework import TorchFramework
from tests import zoo


@pytest.mark.parametrize(
    ("saved", "old", "new", "expected"),
    [
        (0.01, 0.1, 0.1, 0.01),
        (0.01, 0.1, 0.2, 0.02),
        (0.1, 0.1, 0.3, 0.3),
        (5, 0, 7, 7),
        (True, True, False, False),
        ([0.05, 1], [0.1, 1], [0.2, 1], [0.1, 1]),
        ([1], [1, 2], [3, 4], [3, 4]),
        ([1, 9], [1], [3], [3, 9]),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 1, "b": 4}, {"a": 1, "b": 4}),
        ({"a": 1}, {"a": 1}, {"a": 1, "new": 3}, {"a": 1, "new": 3}),
        (None, None, "sgd", "sgd"),
    ],
)
def test_what_differs_is_as_it_would_be(saved, old, new, expected):
    assert rebase(saved, old, new) == pytest.approx(expected)


def test_a_clone_goes_on_with_its_own_learning_rate_and_the_others_momentum():
    def optimizer(model: Any, params: Any) -> Any:
        made = torch.optim.SGD(model.parameters(), lr=params["lr"], momentum=0.9)
        return made, torch.optim.lr_scheduler.StepLR(made, 2, gamma=0.1)

    make, shape = zoo.ARCHITECTURES["mlp"]
    task = zoo.Zoo(make, optimizer, scheduler_step="batch")
    trained = zoo.train_plain(TorchFramework(task, device="cpu"), shape, [{"lr": 0.1}])
    meta = trained.metas[0]
    framework = TorchFramework(task, device="cpu")
    try:
        old, new = (
            framework._build(0, 0, {"lr": rate}, is_new=False).meta() for rate in (0.1, 0.3)
        )
    finally:
        framework.close()
    from cerebro.train.rebase import rebase_meta

    changed = rebase_meta(meta, old, new)
    before, after = meta["groups"][0], changed["groups"][0]
    assert after["lr"] == pytest.approx(3 * before["lr"])
    assert after["initial_lr"] == pytest.approx(0.3)
    assert after["momentum"] == before["momentum"]
    assert changed["scheduler"]["base_lrs"] == pytest.approx([0.3])
    assert changed["scheduler"]["last_epoch"] == meta["scheduler"]["last_epoch"]
    assert changed["slots"] == meta["slots"]
