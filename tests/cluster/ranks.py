"""A small experiment for several machines, and the processes that train it together."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import yaml

from cerebro.results import Result
from tests.experiments import make_toy_data
from tests.processes import ROOT, count_visits, is_alive

TASK = """
import time
from pathlib import Path

import torch
from torch import nn

from cerebro import Task

HERE = Path(__file__).parent


class Clouds(Task):
    # As tests.processes.hold says.
    def on_epoch_start(self, model, optimizer, params, epoch):
        while (HERE / f"hold{epoch}").exists():
            time.sleep(0.01)

    def model(self, params):
        return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))

    def optimizer(self, model, params):
        return torch.optim.Adam(model.parameters(), lr=params["lr"])

    def loss(self, model, batch, params):
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def metrics(self, model, batch, params):
        return {"accuracy": (model(batch["x"]).argmax(1) == batch["y"]).float().mean()}
"""


def make_project(folder: Path, **changes: object) -> Path:
    """An experiment file with its task and data in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tasks.py").write_text(TASK)
    make_toy_data(folder / "data", shards=2, rows=128)
    experiment: dict[str, object] = {
        "name": "clouds",
        "task": "tasks.py:Clouds",
        "data": "data",
        "store": "runs",
        "parallel": "ddp",
        "epochs": 3,
        "global_batch_size": 16,
        "metric": "val_loss",
        "mode": "min",
        "device": "cpu",
        "space": {"lr": [0.01]},
    }
    (folder / "experiment.yaml").write_text(yaml.safe_dump({**experiment, **changes}))
    return folder / "experiment.yaml"


def visits_of(experiment: Path) -> int:
    """Those that are durable."""
    return count_visits(experiment.parent / "runs" / "clouds")


def digest(experiment: Path) -> str:
    """Of all that a finished run has learnt."""
    result = Result.open(experiment.parent / "runs" / "clouds")
    assert result.is_finished
    return result.digest()


def environment() -> dict[str, str]:
    """Of processes that a person would have started in a terminal."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


class Started:
    """A process with what it says, and all that it has started."""

    def __init__(self, command: Sequence[str], output: Path, env: Mapping[str, str]) -> None:
        self.output = output
        with output.open("ab") as file:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def wait(self, timeout_s: float = 300.0) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it goes on and on, and said:\n{self.said()}") from None

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def children(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def end(self) -> None:
        for child in self.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def started(
    command: Sequence[str], output: Path, env: Mapping[str, str] | None = None
) -> Iterator[Started]:
    """A process that is gone in the end, however the test goes."""
    process = Started(command, output, environment() if env is None else env)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.end()


def cerebro(*words: object) -> list[str]:
    """The command line of `cerebro`."""
    return [sys.executable, "-m", "cerebro", *map(str, words)]


def followers_of(agent: Started) -> list[psutil.Process]:
    """The processes of the ranks that an agent has started; each has a watcher below it."""
    return [child for child in psutil.Process(agent.process.pid).children() if is_alive(child)]


def train_here(folder: Path, workers: int, **changes: object) -> str:
    """What a gang of so many workers on one machine learns."""
    experiment = make_project(folder, workers=workers, **changes)
    with started(cerebro("run", experiment, "-q"), folder / "log") as process:
        assert process.wait() == 0, process.said()
    return digest(experiment)
