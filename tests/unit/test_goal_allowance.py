"""What a goal allows, as `run_fit` holds it."""

from __future__ import annotations

import json

import pytest

from cerebro import Experiment
from cerebro.backend import InlineBackend
from cerebro.backend.gang.rendezvous import find_rendezvous
from cerebro.errors import UsageError
from cerebro.testing.toy import ToyTask
from tests.experiments import make_toy_data


class Cluster(InlineBackend):
    """Workers on three machines, or so it says."""

    num_workers = 3
    num_hosts = 3


@pytest.fixture
def fit(tmp_path, monkeypatch):
    """Fit with a goal that is never reached; gives the description of the run."""
    for name in ("SLURM_JOB_NUM_NODES", "SLURM_NNODES"):
        monkeypatch.delenv(name, raising=False)
    make_toy_data(tmp_path / "data")

    def fit(goal, device="cpu", **experiment):
        asked = {"name": "run", "backend": "inline", "workers": 1, **experiment}
        places = {"data": tmp_path / "data", "store": tmp_path / "runs"}
        Experiment(**places, **asked).run_fit(
            ToyTask(),
            {"lr": [0.5]},
            num_epochs=1,
            batch_size=16,
            metric="val_loss",
            mode="min",
            goal={"target": -1.0, **goal},
            device=device,
            progress=False,
        )
        return json.loads((tmp_path / "runs" / "run" / "run.json").read_text())

    return fit


@pytest.fixture
def refused(fit, tmp_path):
    """The same, refused before anything is written; gives what is said."""

    def refused(*asked, **experiment):
        with pytest.raises(UsageError) as caught:
            fit(*asked, **experiment)
        assert not (tmp_path / "runs").exists()
        return str(caught.value)

    return refused


def test_what_is_allowed_runs_and_another_allowance_goes_on_with_the_run(fit):
    first = fit({"devices": "cpu", "max_nodes": 1})
    assert first["spec"]["goal"]["target"] == -1.0
    assert fit({"max_nodes": 2}) == first


def test_a_device_that_is_not_allowed_is_refused(refused):
    message = refused({"devices": "cpu"}, "cuda")
    assert message == "the goal allows cpu only, but got 'cuda'. Change device or goal.devices."
    assert "the goal allows cuda only, but got 'cpu'" in refused({"devices": "cuda"}, "cpu")


@pytest.mark.parametrize(("gpus", "kind", "other"), [(0, "cpu", "cuda"), (2, "cuda", "cpu")])
def test_auto_is_what_this_machine_has(refused, monkeypatch, gpus, kind, other):
    monkeypatch.setattr("cerebro.config.backends.count_gpus", lambda: gpus)
    message = refused({"devices": other}, "auto")
    assert f"allows {other} only, but got {kind!r}, which device='auto' is on this m" in message


def test_the_backend_of_keras_is_not_asked(refused, monkeypatch):
    monkeypatch.setattr("cerebro.config.backends.count_gpus", lambda: 0)
    monkeypatch.setattr(ToyTask, "framework", "keras")
    message = refused({"devices": "cpu"}, "auto")
    assert "device='auto', which the backend of Keras decides for itself. Set" in message


def test_auto_is_allowed_where_this_machine_has_what_the_goal_says(fit, monkeypatch):
    monkeypatch.setattr("cerebro.config.backends.count_gpus", lambda: 0)
    fit({"devices": "cpu"}, "auto")


def test_on_a_cluster_the_device_is_to_be_named(refused):
    message = refused({"devices": "cpu"}, "auto", backend=Cluster())
    assert message.endswith("each machine of a cluster decides for itself. Set device to 'cpu'.")


def test_the_machines_of_a_cluster_are_counted_as_far_as_there_are_workers_for_them(fit, refused):
    message = refused({"max_nodes": 2}, backend=Cluster(), workers=None)
    assert "got 3 nodes and max_nodes=2. Change the number of workers or goal.max_nodes." in message
    fit({"max_nodes": 2}, backend=Cluster(), workers=2)


def test_the_machines_of_flags_and_of_launchers_are_counted(refused, monkeypatch):
    spot = find_rendezvous({}, nodes=4, procs=2, node=0, master="127.0.0.1:29500")
    assert "got 4 nodes and max_nodes=3" in refused({"max_nodes": 3}, rendezvous=spot)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "5")
    assert "got 5 nodes and max_nodes=3" in refused({"max_nodes": 3})


@pytest.mark.parametrize("goal", [{"devices": "tpu"}, {"max_nodes": 0}, {"max_node": 1}])
def test_wrong_values_are_refused(refused, goal):
    assert next(iter(goal)) in refused(goal)
