"""The experiment that a file describes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cerebro.backend.gang.rendezvous import Rendezvous
from cerebro.config.schema import ExperimentConfig
from cerebro.experiment import Experiment


def open_experiment(
    config: ExperimentConfig,
    path: Path,
    *,
    store: str | None = None,
    spot: Rendezvous | None = None,
) -> Experiment:
    """Its experiment, perhaps in another store; its task can be imported from now on."""
    experiment = Experiment(
        name=config.name,
        data=config.data,
        store=config.store if store is None else store,
        backend=config.backend,
        workers=config.workers,
        threads_per_worker=config.threads_per_worker,
        seed=config.seed,
        rendezvous=spot,
    )
    # As late as this: a module of the user's must not hide one of ours.
    sys.path[:0] = dict.fromkeys([os.getcwd(), os.path.dirname(os.path.abspath(path))])
    return experiment
