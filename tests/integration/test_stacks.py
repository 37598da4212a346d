"""Stacks on worker processes: the same bits as in one process, and failures of members."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cerebro.backend import InlineBackend, LocalBackend
from cerebro.results import Result
from cerebro.storage import DirectoryStore
from cerebro.storage.journal import read
from cerebro.testing.history import check
from cerebro.testing.toy import ToyTask
from tests.experiments import fast_folder, fit_toy, learnt, make_toy_data, outcome, toy_spec

pytestmark = pytest.mark.slow

SPACE = {"lr": [0.5, 0.05, 0.2, 0.1], "momentum": [0.9, 0.5]}
SICK = {"lr": [0.5, 0.05], "fail": [None, {"kind": "kill", "epoch": 1, "step": 1}]}


@pytest.fixture(scope="module")
def home():
    with fast_folder() as path:
        make_toy_data(path / "data", shards=3)
        yield path


@pytest.fixture
def folder():
    with fast_folder() as path:
        yield path


def fit_local(root, spec, workers, **settings):
    fit_toy(root, spec, backend=LocalBackend(), workers=workers, threaded=True, **settings)
    check(root)


@pytest.mark.parametrize("stack", [False, "auto", 4])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_for_one_setting_backend_and_workers_change_no_bit(home, folder, stack, workers):
    """With `auto` the number of workers decides about stacks, unless nothing is gained by them."""
    spec = toy_spec(home / "data", SPACE, epochs=2, stack=stack)
    fit_toy(folder / "inline", spec, backend=InlineBackend())
    fit_local(folder / "local", spec, workers)
    assert outcome(folder / "local") == outcome(folder / "inline")
    assert learnt(folder / "local") == learnt(folder / "inline")


def test_auto_stacks_on_worker_processes(home, folder):
    spec = toy_spec(home / "data", SPACE, stack="auto")
    fit_local(folder / "run", spec, 2, task=ToyTask(gain=4.0))
    sizes = [len(stack["trials"]) for stack in stacks_of(folder / "run")]
    assert sum(sizes) == 8
    assert len(sizes) >= 2


def test_one_shard_makes_stacks_and_trials_alone_the_same(folder):
    make_toy_data(folder / "data", shards=1)
    spec = toy_spec(folder / "data", SPACE, stack=3)
    fit_local(folder / "stacked", spec, 2)
    fit_local(folder / "alone", replace(spec, stack=False), 2)
    assert outcome(folder / "stacked") == outcome(folder / "alone")


def test_a_member_that_kills_its_workers_fails_alone(home, folder):
    spec = toy_spec(home / "data", SICK, stack=4)
    fit_local(folder / "run", spec, 2)
    result = Result.open(folder / "run")
    assert [str(trial.status) for trial in result.trials] == ["finished", "failed"] * 2
    assert "quarantined" in str(result.trials[1].error)
    kinds = [record["type"] for record in read(DirectoryStore(folder / "run")).records]
    assert kinds.count("dissolved") == 1


def test_a_worker_that_dies_once_costs_nothing(home, folder):
    plan = {"kind": "kill", "epoch": 1, "attempts": 1}
    spec = toy_spec(home / "data", {"lr": [0.5, 0.05], "fail": [plan]}, stack=4)
    fit_local(folder / "run", spec, 2)
    well = toy_spec(home / "data", {"lr": [0.5, 0.05]}, stack=4)
    fit_toy(folder / "well", well)
    found = [trial.metrics for trial in Result.open(folder / "run").trials]
    assert found == [trial.metrics for trial in Result.open(folder / "well").trials]


def test_memory_that_is_short_is_made_up_by_checkpoints(home, folder):
    spec = toy_spec(home / "data", SPACE, stack=3)
    fit_local(folder / "short", spec, 2, memory_bytes=0)
    fit_toy(folder / "long", spec)
    assert outcome(folder / "short") == outcome(folder / "long")


def stacks_of(root):
    (record,) = [r for r in read(DirectoryStore(root)).records if r["type"] == "stacks"]
    return record["stacks"]
