"""Random search and tree-structured Parzen estimators (TPE): what each of them proposes.

Both try 48 networks out of wide ranges. TPE proposes ten at random, then near what was good so far.
"""

import statistics
from pathlib import Path

import torch
from torch import nn

import cerebro
from cerebro import Experiment, Task, tune

FOLDER = Path("demo/search")
TRIALS = 48


class Digits(Task):
    def model(self, params):
        width = params["width"]
        return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def optimizer(self, model, params):
        return torch.optim.SGD(model.parameters(), lr=params["lr"], momentum=params["momentum"])

    def loss(self, model, batch, params):
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def metrics(self, model, batch, params):
        return {"accuracy": (model(batch["x"]).argmax(1) == batch["y"]).float().mean()}


if __name__ == "__main__":
    data = FOLDER / "data"
    cerebro.data.from_arrays(data, cerebro.data.digits(), shards=4, validation=0.2, seed=0)
    space = {
        "lr": tune.loguniform(1e-6, 10.0),
        "momentum": tune.uniform(0.0, 0.99),
        "width": tune.choice([16, 32, 64, 128]),
    }
    for search in ("random", "tpe"):
        exp = Experiment(name=search, data=data, store=FOLDER, workers=2, seed=0)
        result = exp.run_fit(
            Digits(),
            space,
            search=search,
            num_trials=TRIALS,
            num_epochs=2,
            batch_size=64,
            metric="val_accuracy",
            mode="max",
        )
        print(result.leaderboard(), end="\n\n")
        found = [trial.metrics.get("val_accuracy", 0.0) for trial in result.trials]
        best = [f"{max(found[:count]):.4f} after {count}" for count in (12, 24, TRIALS)]
        later = statistics.median(found[24:])
        print(f"{search}: best {', '.join(best)} trials; median of the last 24: {later:.4f}\n")
