"""ASHA: train many networks a little, and only the promising ones for long.

After 1, 3 and 9 epochs the best third of those that got there goes on, up to 27 epochs.
"""

from pathlib import Path

import torch
from torch import nn

import cerebro
from cerebro import Experiment, Task, tune

FOLDER = Path("demo/search")
TRIALS, EPOCHS = 54, 27


class Digits(Task):
    def model(self, params):
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def optimizer(self, model, params):
        numbers = {name: params[name] for name in ("lr", "momentum", "weight_decay")}
        return torch.optim.SGD(model.parameters(), **numbers)

    def loss(self, model, batch, params):
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def metrics(self, model, batch, params):
        return {"accuracy": (model(batch["x"]).argmax(1) == batch["y"]).float().mean()}


if __name__ == "__main__":
    data = FOLDER / "data"
    cerebro.data.from_arrays(data, cerebro.data.digits(), shards=4, validation=0.2, seed=0)
    exp = Experiment(name="asha", data=data, store=FOLDER, workers=2, seed=0)
    space = {
        "lr": tune.loguniform(1e-3, 1.0),
        "momentum": tune.uniform(0.0, 0.99),
        "weight_decay": tune.loguniform(1e-6, 1e-2),
    }
    result = exp.run_fit(
        Digits(),
        space,
        search="random",
        num_trials=TRIALS,
        num_epochs=EPOCHS,
        batch_size=64,
        stopper={"name": "asha", "eta": 3, "grace": 1},
        metric="val_accuracy",
        mode="max",
    )
    print(result.leaderboard(), end="\n\n")
    epochs = [row["epochs"] for row in result.leaderboard()]
    for rung in (1, 3, 9, EPOCHS):
        print(f"{sum(count >= rung for count in epochs):>3} networks were trained {rung} epochs")
    print(f"{sum(epochs)} epochs in all; without ASHA {TRIALS * EPOCHS}")
