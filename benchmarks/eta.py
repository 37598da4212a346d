"""How right the time left is that a run shows, in real runs on the demo's digits.

    python -m benchmarks.eta [--json] [--quick]

Five runs of more than a minute on two workers: grids and random searches, trials of one cost and of
costs apart, with stacks and without, many trials and few. Epochs are chosen from a short run first.
At each quarter, counted from the first record to the last, the time left that the board shows is
set against what was left in truth. `--quick` is one run of some seconds, whose error has no bound.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass

# One thread on every side; it must be said before NumPy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn

import cerebro
from benchmarks.report import Report
from cerebro import Task
from cerebro.backend.local import LocalBackend
from cerebro.data import Dataset, open_dataset
from cerebro.run.fit import Settings, fit
from cerebro.run.request import Request, resolve
from cerebro.search import parse_space
from cerebro.storage import DirectoryStore
from cerebro.track.board import Board
from cerebro.track.records import Record, VisitFinished
from examples.demo import Digits

SHARDS = 8
WORKERS = 2
QUARTERS = (0.25, 0.5, 0.75)
BOUND = 0.2
LONG_S, QUICK_S = 80.0, 8.0


class Perceptron(Task):
    """A small one, of the kind that is trained in stacks."""

    def model(self, params):
        width = params["width"]
        return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def optimizer(self, model, params):
        return torch.optim.SGD(model.parameters(), lr=params["lr"], momentum=0.9)

    def loss(self, model, batch, params):
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run."""

    name: str
    task: Task
    space: Mapping[str, object]
    search: str = "grid"
    num_trials: int | None = None
    stack: bool | int | str = False


CASES = (
    Case(
        name="grid",
        task=Digits(),
        space={"lr": [0.01, 0.003, 0.001, 0.0003], "width": [8, 16], "dropout": [0.0, 0.3]},
    ),
    Case(
        name="unequal",
        task=Digits(),
        space={"lr": {"loguniform": [1e-4, 1e-2]}, "width": [4, 8, 16, 32, 48], "dropout": 0.1},
        search="random",
        num_trials=12,
    ),
    Case(
        name="few",
        task=Digits(),
        space={"lr": [0.001], "width": [8, 16, 32], "dropout": [0.1]},
    ),
    Case(
        name="stacks",
        task=Perceptron(),
        space={"lr": {"loguniform": [1e-3, 1e-1]}, "width": [16, 64]},
        search="random",
        num_trials=64,
        stack="auto",
    ),
    Case(
        name="many",
        task=Perceptron(),
        space={"lr": {"loguniform": [1e-3, 1e-1]}, "width": [16, 64, 256]},
        search="random",
        num_trials=100,
    ),
)


class Follower:
    """A tracker that keeps the time left that a board shows, and when."""

    def __init__(self) -> None:
        self.shown: list[tuple[float, float]] = []
        self.begin_s = self.end_s = 0.0
        self._board = Board()

    def record(self, record: Record) -> None:
        self._board.record(record)
        self.end_s = time.monotonic()
        self.begin_s = self.begin_s or self.end_s
        if isinstance(record, VisitFinished):
            self.shown.append((self.end_s, self._board.eta_s))

    def close(self) -> None:
        """Nothing is held back."""

    def at(self, part: float) -> tuple[float, float]:
        """The time left as it was shown at this part of the run, and in truth."""
        moment = self.begin_s + part * (self.end_s - self.begin_s)
        now, left_s = next(each for each in reversed(self.shown) if each[0] <= moment)
        return left_s, self.end_s - now


def main() -> int:
    parser = argparse.ArgumentParser(description="the time left that a run shows")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="one run of some seconds, no bound")
    options = parser.parse_args()
    report = Report()
    with tempfile.TemporaryDirectory(prefix="cerebro-eta-") as folder:
        data = os.path.join(folder, "data")
        cerebro.data.from_arrays(
            data, train=cerebro.data.digits(), shards=SHARDS, validation=0.2, seed=0
        )
        dataset = open_dataset(data)
        print(f"{'run':<10}{'seconds':>8}  shown / true seconds left at each quarter")
        for case in CASES[2:3] if options.quick else CASES:
            target_s = QUICK_S if options.quick else LONG_S
            measure(case, dataset, folder, target_s, report, is_bound=not options.quick)
    return report.finish(as_json=options.json)


def measure(
    case: Case, dataset: Dataset, folder: str, target_s: float, report: Report, *, is_bound: bool
) -> None:
    """One case: a short run to choose the epochs, then the one that counts."""
    probe = run(case, dataset, folder, f"{case.name}-probe", epochs=2)
    first_s, last_s = probe.shown[0][0], probe.shown[-1][0]
    epochs = max(2, round(target_s / ((last_s - first_s) / 2)))
    followed = run(case, dataset, folder, case.name, epochs=epochs)
    seconds = followed.end_s - followed.begin_s
    report.add(f"{case.name}_s", seconds, 1)
    told = []
    for part in QUARTERS:
        shown_s, true_s = followed.at(part)
        told.append(f"{shown_s:.1f} / {true_s:.1f} ({shown_s / true_s - 1:+.0%})")
        key, error = f"{case.name}_error_{part:.2f}", abs(shown_s / true_s - 1)
        report.gate(key, error, at_most=BOUND if is_bound else None)
    print(f"{case.name:<10}{seconds:>8.1f}  {'   '.join(told)}", flush=True)


def run(case: Case, dataset: Dataset, folder: str, name: str, *, epochs: int) -> Follower:
    """A whole run as users have it, but for the tracker."""
    request = Request(
        name=name,
        space=parse_space(case.space),
        search=case.search,
        num_trials=case.num_trials,
        epochs=epochs,
        batch_size=32,
        metric="val_loss",
        mode="min",
        stack=case.stack,
    )
    spec, sampler, stopper = resolve(request, dataset, workers=WORKERS)
    store = DirectoryStore(folder).child("runs").child(name)
    followed = Follower()
    fit(
        spec,
        Settings(task=case.task, workers=WORKERS, device="cpu"),
        store=store,
        backend=LocalBackend(log_dir=os.path.join(store.local_path(), "logs")),
        sampler=sampler,
        stopper=stopper,
        trackers=[followed],
    )
    return followed


if __name__ == "__main__":
    sys.exit(main())
