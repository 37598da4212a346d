"""Population-based training: learning rates that change while networks are trained.

After every epoch the worst networks make way for copies of the best, with changed params.
"""

from pathlib import Path

import torch
from torch import nn

import cerebro
from cerebro import Experiment, Task, tune

FOLDER = Path("demo/search")


class Digits(Task):
    def model(self, params):
        dropout = nn.Dropout(params["dropout"])
        return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), dropout, nn.Linear(128, 10))

    def optimizer(self, model, params):
        return torch.optim.SGD(model.parameters(), lr=params["lr"], momentum=0.9)

    def loss(self, model, batch, params):
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def metrics(self, model, batch, params):
        return {"accuracy": (model(batch["x"]).argmax(1) == batch["y"]).float().mean()}


if __name__ == "__main__":
    data = FOLDER / "data"
    cerebro.data.from_arrays(data, cerebro.data.digits(), shards=4, validation=0.2, seed=0)
    exp = Experiment(name="pbt", data=data, store=FOLDER, workers=2, seed=0)
    space = {"lr": tune.loguniform(1e-4, 1.0), "dropout": tune.uniform(0.0, 0.5)}
    result = exp.run_fit(
        Digits(),
        space,
        search="random",
        num_trials=8,
        num_epochs=12,
        batch_size=64,
        stopper={"name": "pbt", "interval": 1, "quantile": 0.25},
        metric="val_accuracy",
        mode="max",
    )
    print(result.leaderboard(), end="\n\n")
    print("the winner, and whom it descends from:")
    trials = {trial.id: trial for trial in result.trials}
    trial = result.best
    while True:
        lr, dropout = trial.params["lr"], trial.params["dropout"]
        print(f"  {trial.id} from epoch {trial.parent_epochs + 1}: {lr=:.4f} {dropout=:.3f}")
        if trial.parent is None:
            break
        trial = trials[trial.parent]
