"""Random search over 1024 networks, hundreds trained as one. `--data mnist.npz`, else digits."""

import argparse
import time

import numpy as np
import torch
from torch import nn

import cerebro
from cerebro import Experiment, Task, tune


class Mlp(Task):
    amp = "tf32" if torch.cuda.is_available() else None
    eval_batch_size = 1000

    def model(self, params):
        return nn.Sequential(nn.Linear(params["inputs"], 128), nn.ReLU(), nn.Linear(128, 10))

    def optimizer(self, model, params):
        numbers = {name: params[name] for name in ("lr", "momentum", "weight_decay")}
        return torch.optim.SGD(model.parameters(), **numbers)

    def loss(self, model, batch, params):  # pictures stay bytes until here
        return nn.functional.cross_entropy(model(batch["x"].float() / 255), batch["y"])

    def metrics(self, model, batch, params):
        scores = model(batch["x"].float() / 255)
        return {"accuracy": (scores.argmax(1) == batch["y"]).float().mean()}


def load(file):
    """Pictures and labels to train with, and those to validate with if they are apart."""
    if not file:
        arrays = cerebro.data.digits()
        return {"x": (arrays["x"] * 255).astype(np.uint8), "y": arrays["y"]}, None
    arrays = np.load(file)
    splits = [(arrays[f"x_{name}"], arrays[f"y_{name}"]) for name in ("train", "test")]
    return [{"x": x.reshape(len(x), -1), "y": y.astype(np.int64)} for x, y in splits]


if __name__ == "__main__":
    began, parser = time.perf_counter(), argparse.ArgumentParser()
    for name, default in (("data", ""), ("trials", 1024), ("epochs", 3), ("folder", "runs/1024")):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    given = parser.parse_args()
    train, val = load(given.data)
    data, part = f"{given.folder}/data", None if val else 0.1
    cerebro.data.from_arrays(data, train, val, shards=4, validation=part)
    space = {"lr": tune.loguniform(1e-3, 1e-1), "weight_decay": tune.loguniform(1e-6, 1e-3)}
    other = {"momentum": tune.choice([0.5, 0.9]), "inputs": train["x"].shape[1]}
    run = {"search": "random", "num_trials": given.trials, "num_epochs": given.epochs}
    run |= {"batch_size": 128, "checkpoint": "epoch", "metric": "val_accuracy", "mode": "max"}
    exp = Experiment(name="mlps", data=data, store=given.folder)
    result = exp.run_fit(Mlp(), {**space, **other}, **run)
    print("\n".join(str(result.leaderboard()).splitlines()[:11]))
    print(f"{len(result.trials)} networks in {time.perf_counter() - began:.1f} s: {result.path}")
