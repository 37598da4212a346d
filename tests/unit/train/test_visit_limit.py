"""Visits of which only some rows are trained, to see how long that takes."""

from __future__ import annotations

import pytest

from cerebro.train.torch.framework import TorchFramework
from cerebro.train.visit import Stacking
from cerebro.types import Split
from tests.unit.train.bare import LineTask, allocate, make_call, make_data


@pytest.mark.parametrize("stack", [None, Stacking()], ids=["plain", "stack"])
@pytest.mark.parametrize(("limit", "rows", "steps"), [(12, 12, 2), (1000, 22, 3)])
def test_no_more_rows_are_trained_than_asked_for(tmp_path, stack, limit, rows, steps):
    shard = make_data(tmp_path).open_shard(Split.TRAIN, 0)
    framework = TorchFramework(LineTask(), device="cpu")
    call = make_call(stack=stack, limit=limit)
    _, report = framework.train(call, shard, None, allocate)
    assert report.rows == rows
    assert len(report.members[0].losses) == steps
