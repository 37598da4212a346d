"""R11: a trial that needs too much memory harms nothing but itself, and says what it needs."""

from __future__ import annotations

import json
import re
import resource
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from cerebro import Experiment, Result
from cerebro.backend import LocalBackend
from cerebro.data import digits, from_arrays
from cerebro.testing.history import check
from cerebro.testing.toy import ToyFramework, ToyTask
from cerebro.types import TrialStatus
from tests.experiments import fit_toy, learnt, make_toy_data, toy_spec, trial_files
from tests.tasks import Perceptron

LRS = [0.5, 0.05]
BACKENDS = pytest.mark.parametrize("local", [False, True], ids=["inline", "local"])


class Hungry(ToyFramework):
    """With `host_bytes` its visits ask for so much of a host that has little left."""

    def train(self, call, *args):
        size = int(str(call.params[0].get("host_bytes") or 0))
        before = resource.getrlimit(resource.RLIMIT_AS)
        if size:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            used = pages * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), before[1]))
        try:
            bytearray(size)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
        return super().train(call, *args)


class HungryTask(ToyTask):
    framework: ClassVar[str] = f"{__name__}:Hungry"


class GreedyNet(Perceptron):
    """A network that has room for `params["room"]` rows at a time."""

    micro_batch = "auto"

    def loss(self, model, batch, params):
        if model.training and len(batch["x"]) > params["room"]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return super().loss(model, batch, params)


@pytest.fixture
def data(folder):
    make_toy_data(folder / "data")
    return folder / "data"


def run(folder, data, fail, *, local=False, task=None, name="sick", **changes):
    options = {"backend": LocalBackend(), "threaded": True} if local else {}
    spec = toy_spec(data, {"fail": fail, "lr": LRS}, **changes)
    fit_toy(folder / name, spec, workers=2, task=task or ToyTask(), **options)
    check(folder / name)
    return Result.open(folder / name)


def journal(path):
    lines = (path / "journal.jsonl").read_text().splitlines()
    return [json.loads(line.split(" ", 2)[2]) for line in lines]


@BACKENDS
def test_a_trial_that_is_out_of_memory_twice_ends_as_such_and_no_other(folder, data, local):
    result = run(folder, data, [None, {"kind": "memory", "epoch": 1}], local=local)
    run(folder, data, [None], name="well")
    found, healthy = learnt(folder / "sick"), learnt(folder / "well")
    assert {number: found[number] for number in healthy} == healthy
    for trial in result.trials[2:]:
        assert trial.status is TrialStatus.OUT_OF_MEMORY
        assert "out of memory with 16 rows" in trial.error
        assert "2 times, the last time with nothing else running" in trial.error
        # What it had learnt before is kept.
        assert trial_files(folder / "sick", trial.number)


@BACKENDS
def test_a_visit_that_is_out_of_memory_once_is_tried_again_and_the_result_is_the_same(
    folder, data, local
):
    run(folder, data, [{"kind": "memory", "step": 1, "attempts": 1}], local=local)
    run(folder, data, [None], name="well")
    found, healthy = learnt(folder / "sick"), learnt(folder / "well")
    assert [trial[1:] for trial in found.values()] == [trial[1:] for trial in healthy.values()]


def test_it_is_tried_again_with_nothing_else_running(folder, data):
    run(folder, data, [None, {"kind": "memory", "attempts": 1}], local=True)
    visits = [record for record in journal(folder / "sick") if record["type"] == "visit"]
    again = [visit for visit in visits if visit["attempt"] == 1]
    assert {visit["trial"] for visit in again} == {2, 3}
    for one in again:
        for other in visits:
            is_before = other["end_s"] <= one["start_s"]
            assert other is one or is_before or other["start_s"] >= one["end_s"]


@BACKENDS
def test_a_task_that_allows_it_goes_on_with_fewer_rows_at_a_time(folder, data, local, caplog):
    task, fail = ToyTask(micro_batch="auto"), {"kind": "memory", "epoch": 1, "rows": 4}
    run(folder, data, [fail], local=local, task=task)
    run(folder, data, [None], name="well")
    found, healthy = learnt(folder / "sick"), learnt(folder / "well")
    assert [trial[1:] for trial in found.values()] == [trial[1:] for trial in healthy.values()]
    # Never silently: people are told, and so is the journal.
    assert "t0000: out of memory with 16 rows at a time: goes on with 8" in caplog.text
    sizes = [r["rows"] for r in journal(folder / "sick") if r["type"] == "micro_batch"]
    assert sorted(sizes) == [4, 4, 8, 8]


def test_a_trial_that_does_not_fit_row_by_row_ends_as_out_of_memory(folder, data):
    result = run(folder, data, ["memory"], task=ToyTask(micro_batch="auto"))
    assert {trial.status for trial in result.trials} == {TrialStatus.OUT_OF_MEMORY}
    assert "out of memory with 1 rows" in result.trials[0].error


def test_memory_of_the_host_is_named_as_such(folder, data):
    spec = toy_spec(data, {"host_bytes": [None, 1 << 30], "lr": 0.5})
    fit_toy(folder / "run", spec, workers=1, task=HungryTask(), backend=LocalBackend())
    healthy, sick = Result.open(folder / "run").trials
    assert healthy.status is TrialStatus.FINISHED
    assert sick.status is TrialStatus.OUT_OF_MEMORY
    assert re.search(r"at most \d\.\d GiB of the host's .* \(MemoryError\)", sick.error)
    assert "Use fewer workers" in sick.error


def test_a_network_out_of_memory_goes_on_in_parts_and_learns_the_same(folder):
    from_arrays(folder / "data", train=digits(), shards=2, validation=0.2, seed=0)
    found = []
    for room in (1000, 20):
        experiment = Experiment(
            name=f"room-{room}", data=folder / "data", store=folder, backend="inline", seed=0
        )
        space = {"lr": 0.1, "room": room, "batch_size": 128}
        result = experiment.run_fit(
            GreedyNet(), space, num_epochs=1, metric="val_accuracy", mode="max"
        )
        assert result.trials[0].status is TrialStatus.FINISHED
        found.append(result.trials[0].metrics)
    assert found[1]["val_loss"] == pytest.approx(found[0]["val_loss"], rel=1e-3)
    assert found[1]["train_loss"] == pytest.approx(found[0]["train_loss"], rel=1e-3)
