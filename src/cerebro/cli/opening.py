"""The experiment that a file describes."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from cerebro.backend.gang.rendezvous import Kind, Rendezvous
from cerebro.config.machine import available_cores
from cerebro.config.recipe import RecipeExperiment
from cerebro.config.schema import ExperimentConfig
from cerebro.experiment import Experiment

logger = logging.getLogger(__name__)


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
        threads_per_worker=_threads(config, spot),
        seed=config.seed,
        rendezvous=spot,
    )
    # As late as this: a module of the user's must not hide one of ours.
    sys.path[:0] = dict.fromkeys([os.getcwd(), os.path.dirname(os.path.abspath(path))])
    return experiment


def _threads(config: ExperimentConfig, spot: Rendezvous | None) -> int:
    """Of each worker: as many as were asked for; of a recipe no more than each rank has cores."""
    asked = config.threads_per_worker
    if spot is None or not isinstance(config, RecipeExperiment):
        return asked
    cores = available_cores()
    # SLURM and MPI may have given each process cores of its own.
    is_bound = spot.kind in (Kind.SLURM, Kind.MPI) and cores < (os.cpu_count() or 1)
    ranks = spot.local if is_bound else max(spot.local, spot.here)
    share = max(1, cores // ranks)
    if share < asked:
        logger.info("%d ranks share %d cores: threads of each: %d.", ranks, cores, share)
    return min(asked, share)
