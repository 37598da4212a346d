"""Runs whose trials are trained by several workers at once, from the experiment to the files."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch import nn

from cerebro import Experiment, Task
from cerebro.backend.gang.rendezvous import read_flags
from cerebro.errors import ReplicaError, UsageError
from tests.experiments import outcome
from tests.integration.project import DEADLINE_S
from tests.processes import ROOT
from tests.unit.backend.ganging import GangTask, make_home


@pytest.fixture
def home(tmp_path):
    return make_home(tmp_path)


def run(home, name, task, fault="", **changes):
    """The bytes of the last checkpoint of a run's trial."""
    experiment = Experiment(
        name=name, data=home / "data", store=home / "runs", workers=2, **changes
    )
    space = {"lr": [0.1], "fault": [fault]}
    experiment.run_fit(task, space, 2, global_batch_size=8, parallel="ddp", progress=False)
    (path,) = (home / "runs" / name / "trials" / "t0000" / "checkpoints").glob("*.safetensors")
    return path.read_bytes()


def test_a_run_in_which_a_rank_is_killed_gives_the_digest_of_one_in_which_none_is(home):
    task = GangTask(str(home / "faults"), os.getpid(), is_parent=True)
    calm = run(home, "calm", task, backend="inline")
    assert run(home, "killed", task, "kill", backend="local") == calm
    assert (home / "faults" / "kill").exists()


class DriftingTask(GangTask):
    """Forgets that its gradients have to be averaged: it makes its own steps."""

    def loss(self, model, batch, params):
        loss = super().loss(model, batch, params)
        if model.training:
            own = torch.optim.SGD(model.parameters(), lr=0.01)
            loss.backward()
            own.step()
            own.zero_grad()
            loss = super().loss(model, batch, params)
        return loss


class PlacedTask(GangTask):
    """Takes labels by their place in the batch, not by their row."""

    def loss(self, model, batch, params):
        return super().loss(model, {**batch, "y": torch.arange(len(batch["x"])) % 3}, params)


class ForgetfulTask(Task):
    """Draws its initial weights from something that no seed controls."""

    def model(self, params):
        model = nn.Linear(3, 3)
        with torch.no_grad():
            model.weight.copy_(torch.from_numpy(np.random.default_rng().normal(size=(3, 3))))
        return model

    def optimizer(self, model, params):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(self, model, batch, params):
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (DriftingTask, r"t0000 to shard 0, model\.0\.weight of rank 1 differs"),
        (ForgetfulTask, r"before the first step of t0000 model\.weight of rank 1 differs"),
        (PlacedTask, r"step 0 of a visit of t0000 to shard 0 .*Labels must belong to their rows"),
    ],
    ids=["drifting", "forgetful", "labels by place"],
)
def test_a_run_whose_replicas_drift_ends_with_what_is_wrong(home, task, message):
    with pytest.raises(ReplicaError, match=message):
        run(home, "drift", task(), backend="inline")


def test_replicas_are_compared_as_often_as_is_asked_for(home):
    experiment = Experiment(
        name="often", data=home / "data", store=home / "runs", backend="inline", workers=2
    )
    # A visit has ten steps.
    given = {"global_batch_size": 2, "parallel": {"mode": "ddp", "check_every": 2}}
    with pytest.raises(ReplicaError, match=r"after step 2 of a visit of t0000 to shard 0"):
        experiment.run_fit(DriftingTask(), {"lr": [0.1]}, 1, **given, progress=False)


class SlowTask(GangTask):
    """Every row, or every batch, takes its time, by a clock that moves on in its own process."""

    ahead_s = 0.0

    def __init__(self, by: str) -> None:
        super().__init__()
        self.by = by
        self.driver = os.getpid()

    def __setstate__(self, state):
        self.__dict__.update(state)
        found = time.perf_counter
        if os.getpid() != self.driver and found.__name__ == "perf_counter":
            time.perf_counter = lambda: found() + SlowTask.ahead_s

    def loss(self, model, batch, params):
        if model.training:
            SlowTask.ahead_s += 100.0 * (len(batch["x"]) if self.by == "row" else 1)
        return super().loss(model, batch, params)


@pytest.mark.parametrize(
    ("by", "batch", "mode", "told"),
    [
        (
            "row",
            {"global_batch_size": 10},
            "ddp",
            "there is one trial, and a step takes 1,000,000 ",
        ),
        ("row", {"batch_size": 8}, "ddp", r"a step of 8 rows takes \S+ ms alone and one of 16 "),
        ("batch", {"global_batch_size": 8}, "mop", "sharing its batches costs the one trial more"),
    ],
    ids=["shared", "batches of each rank", "alone"],
)
def test_one_trial_is_shared_where_that_is_measured_to_pay(home, caplog, by, batch, mode, told):
    caplog.set_level("INFO", "cerebro.run")
    experiment = Experiment(name="auto", data=home / "data", store=home / "runs", workers=2)
    # In a stack the loss would be called once.
    given = {**batch, "parallel": "auto", "stack": False, "progress": False}
    result = experiment.run_fit(SlowTask(by), {"lr": [0.1]}, 1, **given)
    assert result.document.spec["parallel"]["mode"] == mode
    before, after = (said for said in caplog.messages if "a step" in said)
    assert re.search(rf"parallel {mode}: .*{told}", before)
    assert re.search(r"MB of state sent at \S+ MB/s", before)
    assert re.search(r"a step took \S+ ms, \S+ ms of it communication; predicted: \S+ ms", after)


@pytest.mark.parametrize(("by", "expected"), [("row", ("ddp", 2)), ("batch", ("mop", 1))])
def test_ranks_that_were_started_on_one_machine_share_a_trial_if_that_pays(home, by, expected):
    experiment = Experiment(
        name="started",
        data=home / "data",
        store=home / "runs",
        rendezvous=read_flags(nodes=1, procs=2, node=0, master=None),
    )
    given = {"global_batch_size": 8, "parallel": "auto", "stack": False, "progress": False}
    spec = experiment.run_fit(SlowTask(by), {"lr": [0.1]}, 1, **given).document.spec
    assert (spec["parallel"]["mode"], spec["gang"]) == expected


@pytest.mark.parametrize("size", [0, -4, 16.0, "16", True, None], ids=repr)
def test_what_is_no_batch_size_is_refused_and_not_measured(home, size):
    experiment = Experiment(name="auto", data=home / "data", store=home / "runs", workers=2)
    space = {"lr": [0.1], "batch_size": [size]}
    with pytest.raises(UsageError, match="batch_size must be an integer of at least 1"):
        experiment.run_fit(GangTask(), space, 1, parallel="auto", progress=False)


def test_a_trial_that_could_be_a_stack_is_measured_too(home):
    experiment = Experiment(name="auto", data=home / "data", store=home / "runs", workers=2)
    given = {"global_batch_size": 8, "parallel": "auto", "stack": "auto", "progress": False}
    result = experiment.run_fit(GangTask(), {"lr": [0.1]}, 1, **given)
    assert result.document.spec["parallel"]["cost"]["workers"] == 2
    assert result.best.status == "finished"


@pytest.mark.parametrize(
    ("ranks", "trials", "expected"),
    [
        (1, 1, ("mop", 1, 1)),
        (2, 2, ("mop", 1, 2)),
        (4, 2, ("hybrid", 2, 2)),
    ],
    ids=str,
)
def test_ranks_of_one_machine_are_divided_by_the_number_of_trials(home, ranks, trials, expected):
    experiment = Experiment(
        name="started",
        data=home / "data",
        store=home / "runs",
        rendezvous=read_flags(nodes=1, procs=ranks, node=0, master=None),
    )
    rates = [0.1 * (1 + number) for number in range(trials)]
    result = experiment.run_fit(
        GangTask(), {"lr": rates}, 1, global_batch_size=8, parallel="auto", progress=False
    )
    spec = result.document.spec
    found = spec["parallel"]["mode"], spec["gang"], spec["parallel"]["gangs"]
    assert found == expected
    assert [trial.status for trial in result.trials] == ["finished"] * trials


def test_trials_of_a_task_that_cannot_be_shared_hop_though_it_is_only_named(home):
    experiment = Experiment(
        name="named", data=home / "data", store=home / "runs", backend="inline", workers=4
    )
    given = {"batch_size": 8, "parallel": "auto", "progress": False}
    result = experiment.run_fit("cerebro.testing.toy:ToyTask", {"lr": [0.1, 0.2]}, 1, **given)
    told = result.document.spec["parallel"]
    assert told["mode"] == "mop"
    assert told["reason"] == "as a task of 'cerebro.testing.toy:ToyFramework' cannot be shared"
    assert [trial.status for trial in result.trials] == ["finished"] * 2


@pytest.mark.parametrize("rates", [[0.1], [0.1, 0.2]], ids=["one trial", "two trials"])
def test_trials_that_are_to_be_stacked_hop(home, rates):
    experiment = Experiment(
        name="stacked", data=home / "data", store=home / "runs", backend="inline", workers=4
    )
    given = {"global_batch_size": 8, "parallel": "auto", "stack": 4, "progress": False}
    result = experiment.run_fit(GangTask(), {"lr": rates}, 1, **given)
    told = result.document.spec["parallel"]
    reason = "as a stack of trials (stack=4) is trained by one worker"
    assert (told["mode"], told["reason"]) == ("mop", reason)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"parallel": "ddp"}, ["rank 0 of 2 on HOST", "rank 1 of 2 on HOST"]),
        (
            {"parallel": "hybrid", "workers_per_trial": 2},
            [f"rank {rank} of 2 of gang {gang} on HOST" for gang in (0, 1) for rank in (0, 1)],
        ),
    ],
    ids=["one gang", "hybrid"],
)
def test_every_rank_says_who_it_is(home, caplog, asked, expected):
    caplog.set_level("INFO", "cerebro")
    workers = len(expected)
    experiment = Experiment(
        name="told", data=home / "data", store=home / "runs", backend="inline", workers=workers
    )
    rates = {"lr": [0.1, 0.2]}
    experiment.run_fit(GangTask(), rates, 1, global_batch_size=8, progress=False, **asked)
    told = [said for said in caplog.messages if said.startswith("rank ")]
    assert told == [said.replace("HOST", socket.gethostname()) for said in expected]


@pytest.mark.parametrize(
    ("given", "ranks"), [({}, 1), ({"workers": 2}, 2)], ids=["alone", "workers"]
)
def test_the_only_rank_that_a_launcher_has_started_is_one_worker_unless_more_are_asked_for(
    home, monkeypatch, given, ranks
):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    experiment = Experiment(
        name="sole", data=home / "data", store=home / "runs", backend="inline", **given
    )
    asked = {"batch_size": 4, "parallel": "ddp", "progress": False}
    result = experiment.run_fit(GangTask(), {"lr": [0.1]}, 1, **asked)
    assert result.document.spec["gang"] == ranks


SCRIPT = """\
import logging
from cerebro import Experiment
from tests.unit.backend.ganging import GangTask

{setting}
experiment = Experiment(name="told", data="data", store="runs", backend="inline", workers=2)
experiment.run_fit(
    GangTask(), {{"lr": [0.1]}}, 1, batch_size=4, parallel="auto", workers_per_trial=2,
    progress={progress},
)
"""


@pytest.mark.parametrize(
    ("setting", "progress", "times"),
    [("", True, 1), ("logging.basicConfig(level=logging.INFO)", True, 1), ("", False, 0)],
    ids=["shown", "with logging of its own", "silent"],
)
def test_a_script_tells_why_and_who_and_how_it_went_where_progress_is_shown(
    home, setting, progress, times
):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(setting=setting, progress=progress)],
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    for line in ("parallel ddp: 1 gang of 2", "rank 0 of 2", "rank 1 of 2", "a step took "):
        assert done.stderr.count(line) == times, done.stderr
    assert progress or done.stderr == ""


@pytest.mark.parametrize("backend", ["inline", "local"])
def test_gangs_beside_each_other_give_the_weights_of_one_gang(home, backend):
    def train(name, workers, backend, **parallel):
        experiment = Experiment(
            name=name, data=home / "data", store=home / "runs", workers=workers, backend=backend
        )
        given = {"global_batch_size": 8, "progress": False, **parallel}
        result = experiment.run_fit(GangTask(), {"lr": [0.1, 0.2]}, 1, **given)
        spec = result.document.spec
        return (spec["gang"], spec["parallel"]["gangs"]), outcome(result.path)

    two, beside = train("beside", 4, backend, parallel="hybrid", workers_per_trial=2)
    whole, together = train("host", 2, backend, parallel="hybrid", workers_per_trial="host")
    one, alone = train("alone", 2, "inline", parallel="ddp")
    assert (two, whole, one) == ((2, 2), (2, 1), (2, 1))
    assert beside == together == alone


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_gang_of_processes_gives_the_weights_of_one_worker(home, ranks):
    def weights(name, workers, parallel):
        experiment = Experiment(
            name=name, data=home / "data", store=home / "runs", backend="local", workers=workers
        )
        given = {"global_batch_size": 8, "stack": False, "progress": False}
        result = experiment.run_fit(GangTask(), {"lr": [0.1]}, 2, parallel=parallel, **given)
        return result.load("t0000", task=GangTask()).state_dict()

    shared, alone = weights("shared", ranks, "ddp"), weights("alone", 1, "mop")
    torch.testing.assert_close(shared, alone, rtol=0, atol=1e-5)
