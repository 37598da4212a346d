"""Estimators without Spark: PyTorch networks on handwritten digits, on the cores of this machine.

A function makes an estimator for each set of params; a search class trains them and picks the best.
"""

from pathlib import Path

import torch
from torch import nn

import cerebro
from cerebro.storage import LocalStore
from cerebro.torch import TorchEstimator
from cerebro.tune import RandomSearch, hp_choice, hp_loguniform

FOLDER = Path("demo/estimators")


def estimator_gen_fn(params):
    model = nn.Sequential(nn.Linear(64, params["width"]), nn.ReLU(), nn.Linear(params["width"], 10))
    return TorchEstimator(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=params["lr"]),
        loss="cross_entropy",
        metrics=["acc"],
        batch_size=64,
    )


if __name__ == "__main__":
    search = RandomSearch(
        backend="local",
        store=LocalStore(FOLDER),
        estimator_gen_fn=estimator_gen_fn,
        search_space={"lr": hp_loguniform(-4, -1), "width": hp_choice([32, 64, 128])},
        num_models=8,
        num_epochs=4,
        evaluation_metric="acc",
        feature_columns=["x"],
        label_columns=["y"],
        stopper="halving",
    )
    digits = cerebro.data.digits()
    result = search.fit(digits)
    print(result.run.leaderboard())
    best = result.get_best_model()
    print(f"best: {best}, val_acc {max(best.get_history()['val_acc']):.4f}")
    scores = result.set_output_columns(["scores"]).transform(digits)["scores"]
    print(f"right on all rows: {(scores.argmax(1) == digits['y']).mean():.4f}")
