"""Sixteen convolutional networks on handwritten digits, hopping over eight shards.

Stop it with Ctrl-C in the middle and run it again: it goes on where it was.
"""

import sys
from pathlib import Path

import torch
from torch import nn

import cerebro
from cerebro import Experiment, Task, tune

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


def main() -> None:
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
    print(f"\nbest: {result.best.id} {dict(result.best.params)}")
    print(f"      {result.metric} {result.best.metrics[result.metric]:.4f}")
    print(f"look: {result.path}/report.html in a browser")
    print(f"      {result.path}/trace.json at ui.perfetto.dev")
    print(f"      tensorboard --logdir {result.path}/tensorboard")
    print(f"next: cerebro results {result.path} --csv")
    print("      python examples/demo.py --fresh")


if __name__ == "__main__":
    main()
