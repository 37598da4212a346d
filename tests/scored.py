"""Small tests and predictions that several suites run, kill and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cerebro.backend import InlineBackend
from cerebro.data import Dataset, from_arrays
from cerebro.results import Result
from cerebro.run.score import Scored, ScoreRequest, score
from cerebro.storage import DirectoryStore
from cerebro.storage.disk import Disk
from cerebro.testing.toy import ToyTask
from cerebro.train.score.calls import ScoreMode
from cerebro.types import Split
from tests.experiments import fit_toy, toy_spec


def make_scored_data(path: Path, *, rows: int = 53, shards: int = 2) -> Dataset:
    """Clouds of points to train on; to test, and without labels to predict, with ids."""
    rng = np.random.default_rng(0)

    def points(count: int, first: int) -> dict[str, Any]:
        y = rng.integers(0, 3, count)
        x = rng.normal(size=(count, 4)) + 0.7 * y[:, None] * [1, -1, 0.5, 0]
        return {"x": x.astype(np.float32), "y": y, "id": [f"r{first + n}" for n in range(count)]}

    predict = points(rows, 2000)
    del predict["y"]
    return from_arrays(
        path, points(32, 0), points(16, 500), points(rows, 1000), predict=predict, shards=shards
    )


def trained_run(folder: Path) -> Path:
    """A finished toy run with two trials on such data, in `folder`."""
    make_scored_data(folder / "data")
    fit_toy(folder / "run", toy_spec(folder / "data"))
    return folder / "run"


def ask(root: Path, mode: ScoreMode = ScoreMode.PREDICT, **changes: Any) -> ScoreRequest:
    """A request for both trials of such a run."""
    result = Result.open(root)
    fields: dict[str, Any] = {
        "mode": mode,
        "task": ToyTask(),
        "members": tuple(result.member(trial) for trial in (0, 1)),
        "data": str(root.parent / "data"),
        "split": Split(str(mode)),
        "batch_size": 7,
        "workers": 1,
    }
    return ScoreRequest(**{**fields, **changes})


def answer(request: ScoreRequest, out: Path, disk: Disk | None = None, **options: Any) -> Scored:
    """Carry it out on the inline backend, on this disk."""
    backend = options.pop("backend", None) or InlineBackend()
    return score(request, store=DirectoryStore(out, disk), backend=backend, **options)


def files(out: Path) -> dict[str, bytes]:
    """What a request leaves, less the lock."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.name != "lock"
    }
