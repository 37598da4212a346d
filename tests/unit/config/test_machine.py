from __future__ import annotations

import glob
from importlib import metadata

import pytest

from cerebro.backend import InlineBackend
from cerebro.backend.gang.rendezvous import Kind
from cerebro.config.backends import BackendChoice
from cerebro.config.machine import available_cores, default_workers
from cerebro.run.devices import count_devices, count_gpus


@pytest.fixture
def gpus(monkeypatch):
    """A machine with three GPUs and a PyTorch that can use them."""
    monkeypatch.setattr(metadata, "version", lambda name: "2.13.0+cu128")
    monkeypatch.setattr(glob, "glob", lambda pattern: [f"/dev/nvidia{n}" for n in range(3)])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("visible", "count"),
    [("0", 1), ("2,0", 2), ("", 0), ("-1", 0), ("0,-1,2", 1), ("GPU-f00", 1), ("0,1,2,3", 3)],
)
def test_what_is_hidden_does_not_count(monkeypatch, visible, count):
    assert count_gpus() == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert count_gpus() == count


@pytest.mark.usefixtures("gpus")
def test_there_is_a_worker_for_every_gpu():
    assert default_workers("auto", 1) == default_workers("cuda", 1) == 3
    assert default_workers("cuda:1", 1) == 1
    assert default_workers("cpu", 1) == available_cores()


@pytest.mark.usefixtures("gpus")
def test_a_machine_has_as_many_workers_for_a_trial_as_gpus_unless_told():
    assert BackendChoice("local").count_on_host("cuda") == 3
    assert BackendChoice("local", workers=2).count_on_host("cuda") == 2
    assert BackendChoice("local").count_on_host("cpu") == available_cores()


class Ungrouped(InlineBackend):
    has_gangs = False


@pytest.mark.parametrize(("backend", "kind"), [("local", Kind.TORCHRUN), (Ungrouped(), None)])
def test_the_only_rank_of_a_launcher_is_one_worker_where_there_are_gangs(
    backend, kind, monkeypatch
):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert BackendChoice(backend).find_lone_launcher(None) is kind


@pytest.mark.usefixtures("gpus")
def test_workers_are_spread_over_what_they_got():
    assert count_devices("cuda", "auto") == count_devices("cuda", "cuda") == 3
    assert count_devices("cuda", "cuda:1") == count_devices("cpu", "auto") == 1


@pytest.mark.usefixtures("gpus")
def test_a_pytorch_for_the_cpu_alone_sees_none(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "2.13.0+cpu")
    assert count_gpus() == 0
    assert default_workers("auto", 1) == available_cores()


@pytest.mark.usefixtures("gpus")
def test_without_pytorch_there_is_none(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert count_gpus() == 0
