"""Sixteen convolutional networks on handwritten digits, hopping over eight shards.

Stop it with Ctrl-C in the middle and run it again: it goes on where it was.
"""

import os
import sys
from pathlib import Path

import torch
from torch import nn

import cerebro
from cerebro import Experiment, Task, tune
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


def main() -> int:
    print("16 networks x 8 shards: starting 2 workers, which takes some seconds", flush=True)
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
    exp = Experiment(name="digits", data=data, store=FOLDER / "runs", workers=2, seed=0)
    try:
        result = exp.run_fit(
            Digits(),
            space,
            num_epochs=6,
            batch_size=32,
            metric="val_accuracy",
            mode="max",
            progress=True,
            fresh="--fresh" in sys.argv,
        )
    except RunInterrupted as stop:
        print(stop, file=sys.stderr)
        return stop.exit_code
    # Nobody needs to activate an environment to type these.
    python, run = near(sys.executable), near(result.path)
    print(f"\nbest: {result.best.id} {dict(result.best.params)}")
    print(f"      {result.metric} {result.best.metrics[result.metric]:.4f}")
    print(f"look: {run}/report.html in a browser, {run}/trace.json at ui.perfetto.dev")
    print(f"      {python} -m pip install tensorboard, then")
    print(f"      {python} -m tensorboard.main --logdir {run}/tensorboard")
    print(f"next: {python} -m cerebro results {run} --csv")
    print(f"      {python} -m examples.demo --fresh")
    return 0


if __name__ == "__main__":
    sys.exit(main())
