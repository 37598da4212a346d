"""The cases of the Ray benchmark, and their data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import Pair
from benchmarks.ray_work import Work
from benchmarks.workload import SEED, BareLoop, prepare, trials_of
from cerebro.mop.order import shard_at
from cerebro.train.seeds import derive_seed

SHARDS = 4
WORKERS = 2
RATES = [0.002, 0.003, 0.005, 0.007, 0.01, 0.014, 0.02, 0.028]
DECAYS = [0.0, 1e-5, 1e-4, 1e-3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Trials of one length."""

    name: str
    #: How long a visit shall take.
    visit_s: float
    trials: int
    epochs: int
    hidden: int
    batch: int

    @property
    def space(self) -> dict[str, Any]:
        """A grid of trials of the same cost."""
        rates = RATES[: min(len(RATES), self.trials)]
        return {
            "lr": rates,
            "weight_decay": DECAYS[: -(-self.trials // len(rates))],
            "hidden": self.hidden,
        }

    @property
    def trial_s(self) -> float:
        return self.visit_s * SHARDS * self.epochs

    def shortened(self) -> Case:
        """For a look at whether everything works."""
        return replace(self, trials=4, epochs=1, visit_s=0.05)


SHORT = Case(name="1s", visit_s=0.25, trials=32, epochs=1, hidden=128, batch=128)
LONG = Case(name="30s", visit_s=1.0, trials=8, epochs=7, hidden=512, batch=32)
#: States of 6.5 MB, and of 51 kB.
BIG = Case(name="big", visit_s=0.1, trials=8, epochs=2, hidden=1024, batch=128)
SMALL = replace(BIG, name="small", visit_s=0.02, hidden=8)


def make_work(case: Case, pair: Pair, pictures: tuple, folder: Path) -> Work:
    """Rows so many that visits take about as long as the case wants; the same for all sides."""
    home = folder / case.name
    params = [{**each, "batch_size": case.batch} for each in trials_of(case.space)]
    assert len(params) == case.trials
    sample, data = str(home / "sample"), str(home / "data")
    prepare(sample, pictures, shards=SHARDS, rows=20 * case.batch)
    pair.call("load", sample)
    steps = max(2, round(case.visit_s / pair.seconds_per_step((0, params[0]))))
    prepare(data, pictures, shards=SHARDS, rows=steps * case.batch)
    loop = BareLoop(data)
    arrays = {name: np.concatenate([shard[name] for shard in loop.shards]) for name in ("x", "y")}
    arrays["orders"] = np.stack([rows_of(loop, trial, case) for trial in range(case.trials)])
    for name, array in arrays.items():
        np.save(home / f"{name}.npy", array, allow_pickle=False)
    return Work(
        arrays=str(home),
        data=data,
        space=case.space,
        params=params,
        seeds=[derive_seed("model", SEED, trial) for trial in range(case.trials)],
        epochs=case.epochs,
        batch_size=case.batch,
        workers=WORKERS,
        weights="",
    )


def rows_of(loop: BareLoop, trial: int, case: Case) -> np.ndarray:
    """All rows that a trial sees, in our order, of all shards put one after another."""
    starts = np.concatenate([[0], np.cumsum(loop.rows)])
    parts = []
    for epoch in range(case.epochs):
        for step in range(SHARDS):
            shard = shard_at(trial % SHARDS, epoch, step, SHARDS)
            parts.append(starts[shard] + loop.order(shard, case.batch, trial, epoch))
    return np.concatenate(parts)
