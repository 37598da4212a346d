"""Gangs over NCCL, whose ranks pretend to be on two machines so that one GPU is enough."""

from __future__ import annotations

import multiprocessing
import os

import pytest
import torch
import torch.distributed as dist
from torch import nn

from cerebro import Experiment
from cerebro.train.gang.gradients import BucketMemory, GradientSync
from cerebro.train.gang.group import Gang, GangBroken
from cerebro.train.gang.nccl import SETTINGS
from tests.gpu.apart import ApartTask, environment
from tests.unit.backend.ganging import make_home

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

HOST = "127.0.0.1"
#: For the GPU to be busy with: a fifth of a second.
LATE_CYCLES = 400_000_000
#: The gradient of the second has 5 MB.
SHAPES = [(64, 32), (64, 20_000)]


def join(directory, name, rank):
    store = dist.FileStore(f"{directory}/{name}", 2)
    return Gang(store, rank, 2, own_host=HOST, check_every=0, gradients="nccl")


def make_layer(shape):
    torch.manual_seed(0)
    return nn.Linear(*shape).cuda()


def rows(count):
    return torch.linspace(-1, 1, count * 64, device="cuda").view(count, 64)


def gradients_of(gang, shape):
    """Those of six rows, of which each rank has three; rank 1 is late."""
    layer = make_layer(shape)
    if gang.rank == 1:
        torch.cuda._sleep(LATE_CYCLES)
    sync = GradientSync(gang, list(layer.parameters()), BucketMemory())
    loss = layer(rows(6)[3 * gang.rank : 3 * gang.rank + 3]).square().sum()
    sync.begin(loss.detach())
    loss.backward()
    sync.finish()
    sync.close()
    return [param.grad for param in layer.parameters()]


def follow(directory, name, *, adds):
    """Be rank 1 until the leader says that it is over."""
    os.environ.update(environment(1))
    gang = join(directory, name, 1)
    for shape in SHAPES if adds else ():
        gradients_of(gang, shape)
    assert gang.receive() is None
    gang.close()


@pytest.fixture
def start(tmp_path):
    processes = []

    def start(name, **given):
        context = multiprocessing.get_context("spawn")
        processes.append(context.Process(target=follow, args=(tmp_path, name), kwargs=given))
        processes[-1].start()
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.join()


def check_gradients(gang):
    for shape in SHAPES:
        layer = make_layer(shape)
        layer(rows(6)).square().sum().backward()
        expected = [param.grad for param in layer.parameters()]
        for found, whole in zip(gradients_of(gang, shape), expected, strict=True):
            assert torch.allclose(found, whole, rtol=1e-4, atol=1e-4)


@pytest.fixture
def _leader(monkeypatch):
    # As torchrun sets one of them, and users may set all.
    for name, value in {**environment(0), **dict.fromkeys(SETTINGS, "1")}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("_leader")
@pytest.mark.parametrize("adds", [False, True], ids=["at once", "later"])
def test_a_rank_that_dies_breaks_the_gang_and_another_is_formed(tmp_path, start, adds):
    follower = start("first", adds=adds)
    gang = join(tmp_path, "first", 0)
    if adds:
        waited_s = gang.waited_s
        check_gradients(gang)
        assert gang.waited_s - waited_s > 0.05
    gang.add_up(torch.ones(1 << 20, device="cuda"))
    gang.finish()
    follower.kill()
    torch.cuda.synchronize()
    with pytest.raises(GangBroken):
        gang.finish()
    gang.close()

    follower = start("second", adds=True)
    gang = join(tmp_path, "second", 0)
    check_gradients(gang)
    gang.send(None)
    follower.join(60)
    assert follower.exitcode == 0
    gang.close()


@pytest.fixture
def home(tmp_path):
    return make_home(tmp_path)


def run(home, name, fault="", workers=2):
    """A run whose gang, if it is one, talks over NCCL."""
    log = home / f"log-{name}"
    log.mkdir()
    task = ApartTask(str(home / "faults"), os.getpid(), str(log))
    place = {"data": home / "data", "store": home / "runs", "backend": "local"}
    experiment = Experiment(name=name, workers=workers, **place)
    settings = {"global_batch_size": 8, "parallel": "ddp" if workers > 1 else "mop"}
    space = {"lr": [0.1], "fault": [fault]}
    result = experiment.run_fit(task, space, 2, **settings, device="cuda", progress=False)
    if workers > 1:
        assert sum("Init COMPLETE" in path.read_text() for path in log.iterdir()) >= workers
    return result


def weights_of(result):
    return [param.detach().cpu() for param in result.load(0).parameters()]


def test_a_run_trains_what_one_worker_trains_whatever_befalls_a_rank(home):
    alone, calm = run(home, "alone", workers=1), run(home, "calm")
    for found, expected in zip(weights_of(calm), weights_of(alone), strict=True):
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
    for fault in ("kill", "fail", "leader fail"):
        assert run(home, fault.replace(" ", "-"), fault).states(0) == calm.states(0)
        assert (home / "faults" / fault).exists()


@pytest.mark.parametrize(
    ("fault", "message"), [("always fail", "no such luck"), ("always index", "device-side assert")]
)
@pytest.mark.parametrize("who", ["", "leader "], ids=["follower", "leader"])
def test_a_task_that_fails_in_one_rank_ends_its_trial_with_what_that_said(
    home, who, fault, message
):
    (trial,) = run(home, "failing", who + fault).trials
    assert trial.status == "failed"
    assert message in trial.error
