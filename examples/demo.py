"""Sixteen convolutional networks on handwritten digits, hopping over eight shards.

Stop it with Ctrl-C in the middle and run it again: it goes on where it was. `--backend ray` (or
inline, or spark) trains the same weights there, on a CPU to the bit.
"""

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

import cerebro
from cerebro import Experiment, Result, Task, tune
from cerebro.errors import RunInterrupted

FOLDER = Path("demo")


class Digits(Task):
    """A small network for images of 8 x 8 pixels."""

    def model(self, params):
        width = params["width"]
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(params["dropout"]),
            nn.Linear(32 * width, 10),
        )

    def optimizer(self, model, params):
        return torch.optim.Adam(model.parameters(), lr=params["lr"])

    def loss(self, model, batch, params):
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def metrics(self, model, batch, params):
        return {"accuracy": (model(batch["x"]).argmax(1) == batch["y"]).float().mean()}


def near(path: str | Path) -> str:
    """The path as it is shortest to type from here."""
    return min(str(path), os.path.relpath(path), key=len)


def search(backend: str = "local", *, epochs: int = 6, **options: Any) -> Result:
    """Train them all."""
    data = FOLDER / "data"
    if not (data / "dataset.json").exists():
        cerebro.data.from_arrays(
            data, train=cerebro.data.digits(), shards=8, validation=0.2, seed=0
        )
    space = {
        "lr": tune.choice([3e-2, 1e-2, 3e-3, 1e-3]),
        "width": tune.choice([16, 32]),
        "dropout": tune.choice([0.0, 0.3]),
    }
    exp = Experiment(
        name="digits" if backend == "local" else f"digits-{backend}",
        data=data,
        store=FOLDER / "runs",
        backend=backend,
        workers=1 if backend == "inline" else 2,
        seed=0,
    )
    return exp.run_fit(
        Digits(),
        space,
        num_epochs=epochs,
        batch_size=32,
        metric="val_accuracy",
        mode="max",
        **options,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="sixteen networks on handwritten digits")
    parser.add_argument("--backend", default="local", help="local, inline, ray or spark")
    parser.add_argument("--fresh", action="store_true", help="forget what was trained before")
    given = parser.parse_args()
    print("16 networks x 8 shards: starting workers, which takes some seconds", flush=True)
    try:
        result = search(given.backend, progress=True, fresh=given.fresh)
    except RunInterrupted as stop:
        print(stop, file=sys.stderr)
        return stop.exit_code
    # Nobody needs to activate an environment to type these.
    python, run = near(sys.executable), near(result.path)
    print(f"\nbest: {result.best.id} {dict(result.best.params)}")
    print(f"      {result.metric} {result.best.metrics[result.metric]:.4f}")
    print(f"look: {run}/report.html in a browser, {run}/trace.json at ui.perfetto.dev")
    if find_spec("tensorboard") is None:
        print(f"      {python} -m pip install tensorboard, then")
    print(f"      {python} -m tensorboard.main --logdir {run}/tensorboard")
    print(f"next: {python} -m cerebro results {run} --csv")
    print(f"      {python} -m examples.demo --fresh")
    return 0


if __name__ == "__main__":
    sys.exit(main())
