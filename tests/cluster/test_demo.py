"""The demo's networks are the same bits wherever they are trained."""

from __future__ import annotations

import pytest

from cerebro.testing.history import check
from examples import demo
from tests.cluster.rays import machine
from tests.cluster.sparks import session
from tests.experiments import outcome

pytestmark = [pytest.mark.ray, pytest.mark.spark, pytest.mark.timeout(900)]


def test_the_demo_ends_in_the_same_checkpoints_on_every_backend(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "FOLDER", tmp_path)
    with machine(cpus=2), session("local[2]"):
        ends = [
            demo.search(name, epochs=1, search="random", num_trials=6)
            for name in ("inline", "local", "ray", "spark")
        ]
    for result in ends:
        check(result.path)
    assert len({result.digest() for result in ends}) == 1
    first, *others = [outcome(result.path) for result in ends]
    assert all(each == first for each in others)
