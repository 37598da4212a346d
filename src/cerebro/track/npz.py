"""history.npz: the curves of a trial as arrays, under the names that Keras users know."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cerebro.storage import layout
from cerebro.track.pace import HOLD_S, MANY_TRIALS, Pace
from cerebro.track.records import EpochFinished, Record, TrialAdded
from cerebro.track.writing import replace_bytes
from cerebro.types import Metrics, Params

#: Metric -> name in the file; others keep theirs. These are always there.
NAMES = {
    "train_loss": "loss",
    "train_accuracy": "acc",
    "val_loss": "val_loss",
    "val_accuracy": "val_acc",
}

#: The learning rate at the end of an epoch, of a trial with these params that is the n-th repeat
#: of its configuration: both count from 0, and the epoch comes last.
RateAt = Callable[[Params, int, int], float]


class NpzTracker:
    """Writes history.npz of each trial after each of its epochs; of a single trial at the top, too.

    It has one number for each epoch: `loss`, `acc`, `val_loss`, `val_acc`, `lr` (that of the last
    batch), `seconds`, other metrics under their own names, nan where there is none; and `n_ranks`.

    Args:
        root: The run's directory.
        ranks: Workers that train a trial together.
        rate_at: Tells learning rates.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     tracker = NpzTracker(directory, ranks=2, rate_at=lambda params, repeat, epoch: 0.1)
    ...     tracker.record(TrialAdded(trial=0, params={}))
    ...     tracker.record(EpochFinished(trial=0, epoch=0, metrics={"val_loss": 0.5}, seconds=1.5))
    ...     tracker.close()
    ...     with np.load(Path(directory, "history.npz")) as history:
    ...         print(history["val_loss"], history["lr"], history["n_ranks"])
    [0.5] [0.1] 2
    """

    def __init__(self, root: str | os.PathLike[str], *, ranks: int, rate_at: RateAt) -> None:
        self._root = Path(root)
        self._ranks = ranks
        self._rate_at = rate_at
        self._params: dict[int, Params] = {}
        self._repeats: dict[int, int] = {}
        self._epochs: dict[int, dict[int, tuple[float, Metrics]]] = {}
        self._stale: set[int] = set()
        self._pace = Pace(HOLD_S, rest=20.0)

    def record(self, record: Record) -> None:
        match record:
            case TrialAdded():
                self._params[record.trial] = record.params
                self._repeats[record.trial] = record.repeat
                self._epochs[record.trial] = {}
            case EpochFinished():
                epochs = self._epochs.setdefault(record.trial, {})
                epochs[record.epoch] = (record.seconds, record.metrics)
                self._stale.add(record.trial)
                if len(self._params) <= MANY_TRIALS or self._pace.is_due:
                    self._pace.run(self.flush)

    def flush(self) -> None:
        """Write what is held back."""
        while self._stale:
            self._write(self._stale.pop())

    def close(self) -> None:
        self.flush()

    def _write(self, trial: int) -> None:
        content = io.BytesIO()
        np.savez(content, **self._arrays(trial))
        path = self._root / layout.history(trial)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(path, content.getvalue())
        if len(self._params) == 1:
            replace_bytes(self._root / layout.HISTORY, content.getvalue())
        elif len(self._params) == 2:
            (self._root / layout.HISTORY).unlink(missing_ok=True)

    def _arrays(self, trial: int) -> dict[str, Any]:
        epochs, params = self._epochs[trial], self._params.get(trial, {})
        numbers = range(max(epochs) + 1)
        found = [epochs.get(number, (math.nan, {})) for number in numbers]
        names = dict.fromkeys([*NAMES, *(name for _, metrics in found for name in metrics)])
        arrays = {
            NAMES.get(name, name): np.array([metrics.get(name, math.nan) for _, metrics in found])
            for name in names
        }
        repeat = self._repeats.get(trial, 0)
        rates = [self._rate_at(params, repeat, number) for number in numbers]
        return {
            **arrays,
            "lr": np.array(rates),
            "seconds": np.array([seconds for seconds, _ in found]),
            "n_ranks": np.array(self._ranks),
        }
