"""How long people wait before something happens.

    python -m benchmarks.startup [--json]

Every command is a new process, timed from its start: `import cerebro`, `cerebro --help`, and
`cerebro run` of an experiment file with a `module:Class` task until its first visit is done, told
by the worker through a pipe. The reference is a plain script that imports torch and does the same
first visit on arrays in memory. Sides take turns; files are in the page cache.

Predicted: the driver (0.3 s) and the worker's torch (1.5 s) start one after the other, and then
overlap: 1.2 times the script.
"""

from __future__ import annotations

import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.report import Report, arguments, slowdown
from cerebro import data as cdata

ROUNDS = 7
LIMIT = 1.5
TIMEOUT_S = 120.0

TASK = """
import os

import torch
from cerebro import Task


class Line(Task):
    def model(self, params):
        return torch.nn.Linear(4, 1)

    def optimizer(self, model, params):
        return torch.optim.SGD(model.parameters(), lr=params["lr"])

    def loss(self, model, batch, params):
        return (model(batch["x"]) - batch["y"]).square().mean()

    def on_epoch_end(self, model, optimizer, params, epoch):
        with open(os.environ["TOLD"], "w") as told:
            told.write("done")
"""

SCRIPT = """
import os

import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    loss = (model(torch.ones(8, 4)) - torch.ones(8, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with open(os.environ["TOLD"], "w") as told:
    told.write("done")
"""

EXPERIMENT = """
name: first
task: line:Line
data: data
store: runs
workers: 1
epochs: 1
batch_size: 8
metric: train_loss
mode: min
space: {lr: [0.1]}
"""


def main() -> int:
    options = arguments("start-up")
    report = Report()
    with tempfile.TemporaryDirectory(prefix="cerebro-startup-") as name:
        folder = Path(name)
        prepare(folder)
        times = measure(folder)
    reference = times.pop("script")
    print(f"{'from the start of a process to':<46}{'median s':>9}{'ratio':>8}")
    print(f"{'first step of a script with torch':<46}{statistics.median(reference):>9.3f}")
    for key, text in (
        ("import", "import cerebro"),
        ("help", "cerebro --help"),
        ("run", "first visit of `cerebro run` done"),
    ):
        ratio = slowdown(times[key], reference)
        print(f"{text:<46}{statistics.median(times[key]):>9.3f}{ratio:>8.2f}")
        report.add(f"{key}_s", statistics.median(times[key]))
        report.gate(f"{key}_ratio", ratio, at_most=LIMIT)
    report.add("script_s", statistics.median(reference))
    return report.finish(as_json=options.json)


def prepare(folder: Path) -> None:
    """An experiment of one visit with four steps, and the script."""
    x = np.ones((32, 4), np.float32)
    cdata.from_arrays(folder / "data", {"x": x, "y": x[:, :1]}, shards=1, seed=0)
    (folder / "line.py").write_text(TASK)
    (folder / "script.py").write_text(SCRIPT)
    (folder / "first.yaml").write_text(EXPERIMENT)
    os.mkfifo(folder / "told")


def measure(folder: Path) -> dict[str, list[float]]:
    """Seconds of every side, round by round; the first round fills caches and does not count."""
    python = sys.executable
    command = [python, "-m", "cerebro"]
    sides = {
        "script": lambda: until_told(folder, [python, "script.py"]),
        "run": lambda: until_told(folder, [*command, "run", "first.yaml", "--fresh"]),
        "import": lambda: until_end(folder, [python, "-c", "import cerebro"]),
        "help": lambda: until_end(folder, [*command, "--help"]),
    }
    times: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(ROUNDS + 1):
        for side in sides if number % 2 else reversed(sides):
            seconds = sides[side]()
            if number:
                times[side].append(seconds)
    return times


def until_end(folder: Path, command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def until_told(folder: Path, command: list[str]) -> float:
    """Until the training process says through the pipe that it is done."""
    told = os.open(folder / "told", os.O_RDONLY | os.O_NONBLOCK)
    environment = {**os.environ, "TOLD": str(folder / "told")}
    try:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        ready, _, _ = select.select([told], [], [], TIMEOUT_S)
        seconds = time.perf_counter() - began
        _, errors = process.communicate(timeout=TIMEOUT_S)
        if not ready or process.returncode or os.read(told, 10) != b"done":
            raise SystemExit(f"{' '.join(command)} failed:\n{errors.decode(errors='replace')}")
        return seconds
    finally:
        os.close(told)


if __name__ == "__main__":
    sys.exit(main())
