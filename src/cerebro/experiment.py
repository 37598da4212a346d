"""Experiment: what a user describes. It resolves names and hands over to the run."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Mapping, Sequence
from typing import SupportsIndex, TypeVar, cast

from cerebro.config.machine import default_workers
from cerebro.config.resolve import backend_reference, check_run_name, load_reference
from cerebro.data import open_dataset
from cerebro.errors import UsageError
from cerebro.results import Result
from cerebro.run.fit import Settings, fit
from cerebro.run.request import Request, resolve
from cerebro.run.spec import Checkpointing
from cerebro.run.stacks import check_setting
from cerebro.search.decision import Outcome
from cerebro.search.space import Space, parse_space
from cerebro.search.wording import show
from cerebro.storage import layout, open_store
from cerebro.task import Task
from cerebro.track.console import console_tracker
from cerebro.track.files import FileTracker
from cerebro.track.tensorboard import TensorBoardTracker
from cerebro.track.tracker import Tracker
from cerebro.types import Mode, Params


class Experiment:
    """A dataset, a store and workers: the ground on which runs take place.

    Args:
        params: Locators of raw data; not there yet: prepare data with `cerebro.data` first.
        name: The run's name: its directory in the store. The same name resumes the same run.
        data: Directory of a prepared dataset.
        store: Directory that holds runs.
        backend: "local" (processes on this machine) or "inline" (this process, for debugging).
        workers: How many; default one for each GPU, else for each `threads_per_worker` cores.
        threads_per_worker: Fixed for the run, because it decides the last bits of sums.
        seed: Decides initial weights, batch orders and random search.

    >>> import tempfile, numpy as np, cerebro
    >>> folder = tempfile.mkdtemp()
    >>> x = np.random.default_rng(0).normal(size=(64, 2)).astype("float32")
    >>> _ = cerebro.data.from_arrays(
    ...     f"{folder}/data", train={"x": x, "y": x.sum(1, keepdims=True)}, shards=2, validation=0.2
    ... )
    >>> class Line(cerebro.Task):
    ...     def model(self, params):
    ...         import torch
    ...         return torch.nn.Linear(2, 1)
    ...     def optimizer(self, model, params):
    ...         import torch
    ...         return torch.optim.SGD(model.parameters(), lr=params["lr"])
    ...     def loss(self, model, batch, params):
    ...         return ((model(batch["x"]) - batch["y"]) ** 2).mean()
    >>> exp = Experiment(
    ...     name="line", data=f"{folder}/data", store=f"{folder}/runs", backend="inline", workers=1
    ... )
    >>> result = exp.run_fit(
    ...     Line(), {"lr": [0.3, 0.0]}, num_epochs=3, batch_size=8, metric="val_loss", mode="min"
    ... )
    >>> result.best.params
    {'lr': 0.3}
    """

    def __init__(
        self,
        params: Mapping[str, object] | None = None,
        *,
        name: str,
        data: str | os.PathLike[str],
        store: str | os.PathLike[str] = "runs",
        backend: str = "local",
        workers: int | None = None,
        threads_per_worker: int = 1,
        seed: int = 0,
    ) -> None:
        if params is not None:
            raise UsageError(
                "`params` (locators of raw data) are not supported yet: prepare the data with "
                "cerebro.data.from_arrays, from_csv, from_parquet or from_torch and pass data=."
            )
        _check_type("name", name, str)
        _check_type("data", data, str, os.PathLike)
        _check_type("store", store, str, os.PathLike)
        _check_type("backend", backend, str)
        if isinstance(seed, bool) or not isinstance(seed, SupportsIndex):
            raise UsageError(f"`seed` must be an integer, but got {show(seed)}.")
        if not 0 <= operator.index(seed) < 2**63:
            raise UsageError(f"`0 <= seed < 2**63` must hold, but got seed={seed}.")
        self.name = check_run_name(name)
        self.data = open_store(data).local_path()
        self.store = open_store(store).child(name)
        self.backend = load_reference(backend_reference(backend))
        self.backend_name = backend
        self.threads_per_worker = _count("threads_per_worker", threads_per_worker)
        self.workers = _optional_count("workers", workers)
        self.seed = operator.index(seed)

    def run_fit(
        self,
        task: Task | str,
        space: Mapping[str, object] | Space,
        *,
        num_epochs: int | None = None,
        metric: str | Sequence[str],
        mode: str | Sequence[str],
        search: object = "grid",
        num_trials: int | None = None,
        batch_size: int | None = None,
        stopper: object = None,
        goal: Mapping[str, object] | None = None,
        budget: object = None,
        concurrent: int | None = None,
        seeds: int = 1,
        folds: int | None = None,
        constraints: Mapping[str, float] | None = None,
        warm_start: Sequence[Mapping[str, object]] = (),
        learn_from: str | os.PathLike[str] | Result | None = None,
        checkpoint: str = "visit",
        device: str = "auto",
        stack: bool | int | str = "auto",
        same_order: bool = False,
        keep_top: int | None = None,
        progress: bool | None = None,
        fresh: bool = False,
        force: bool = False,
    ) -> Result:
        """Train configurations and rank them. A run of this name goes on where it stopped.

        Args:
            task: The task, or `module:Class` for workers to import.
            space: Param name -> domain of `cerebro.tune`; a list means choice, a value itself.
            num_epochs: How often a trial sees every row.
            metric: What ranks trials, e.g. "val_accuracy"; its best epoch counts. Two for a search
                with two objectives; the first one ranks.
            mode: "max" or "min", for each metric.
            search: "grid", "random", "sobol", "tpe" or "nsga2"; with options
                `{"name": "tpe", ...}`; or an object of `optuna.samplers`.
            num_trials: How many trials; a grid tries all.
            batch_size: Here or in the space.
            stopper: Who is trained how far: "asha", "halving", "hyperband", "median", "patience",
                "pbt"; with options `{"name": "asha", "eta": 4}`; several in a list.
            goal: Ends the run once it is reached: `{"metric": "val_accuracy", "target": 0.97}`,
                perhaps with "max_epochs" in place of `num_epochs`.
            budget: What all trials together may take: "30m", "200 epochs", or a mapping of time,
                trials, epochs, visits.
            concurrent: Trials under way at once; default what keeps the workers busy.
            seeds: Trials of each configuration, ranked by their mean.
            folds: The same, each holding out another part of the train shards.
            constraints: Metric -> the largest value it may have; trials above it rank last.
            warm_start: Params to try first.
            learn_from: An earlier run whose trials an adaptive search knows from the beginning.
            checkpoint: When state becomes durable: "visit", "epoch" or "off" (no resume).
            device: "auto", "cpu", "cuda", or another torch device (untested).
            stack: Train trials of one structure as one: "auto" where it pays, False never, a number
                for so many at most in any case; "probe" measures first what pays.
            same_order: All trials see the rows of a shard in the same order: cheaper stacks.
            keep_top: At the end keep the checkpoints of so many best configurations; default all.
            progress: Show progress on standard error; default where that is a terminal.
            fresh: Move a run of this name aside and start anew.
            force: Resume although something changed that changes results; the journal records it.
        """
        if not isinstance(task, Task | str):
            hint = f" Make one: {task.__name__}()." if isinstance(task, type) else ""
            raise UsageError(
                "the task must be an object of a subclass of cerebro.Task, or named as "
                f"`module:Class`, but got {show(task)}.{hint}"
            )
        _check_type("device", device, str)
        for name, value in (("metric", metric), ("mode", mode)):
            for each in value if isinstance(value, list | tuple) else [value]:
                _check_type(name, each, str)
        request = Request(
            name=self.name,
            space=parse_space(space),
            search=search,
            num_trials=_optional_count("num_trials", num_trials),
            epochs=_optional_count("num_epochs", num_epochs),
            batch_size=_optional_count("batch_size", batch_size),
            metric=metric,
            mode=mode,
            seed=self.seed,
            threads_per_worker=self.threads_per_worker,
            checkpoint=_one_of("checkpoint", checkpoint, Checkpointing),
            stack=check_setting(stack),
            same_order=_flag("same_order", same_order),
            stopper=stopper,
            goal=goal,
            budget=budget,
            concurrent=_optional_count("concurrent", concurrent),
            seeds=_count("seeds", seeds),
            folds=_optional_count("folds", folds) or 0,
            constraints=constraints or {},
            warm_start=cast("Sequence[Params]", warm_start),
            known=_known(learn_from, metric),
        )
        workers = self.count_workers(device)
        spec, sampler, chosen = resolve(request, open_dataset(self.data), workers=workers)
        settings = Settings(
            task=task,
            workers=workers,
            device=device,
            keep_top=_optional_count("keep_top", keep_top),
            fresh=fresh,
            force=force,
            threaded=self.backend_name != "inline",
        )
        root = self.store.local_path()
        backend = self.backend(log_dir=os.path.join(root, layout.LOGS))  # type: ignore[operator]
        fit(
            spec,
            settings,
            store=self.store,
            backend=backend,
            sampler=sampler,
            stopper=chosen,
            trackers=_trackers(root, progress),
        )
        return Result.open(root, task=task if isinstance(task, Task) else None)

    def count_workers(self, device: str) -> int:
        """Workers of a run on this device."""
        return self.workers or default_workers(device, self.threads_per_worker)


def _known(
    source: str | os.PathLike[str] | Result | None, metric: str | Sequence[str]
) -> list[tuple[Params, Outcome]]:
    """What the trials of an earlier run came to."""
    if source is None:
        return []
    found = source if isinstance(source, Result) else Result.open(source)
    return found.outcomes([metric] if isinstance(metric, str) else list(metric))


def _trackers(root: str, progress: bool | None) -> list[Tracker]:
    found: list[Tracker] = [FileTracker(root), TensorBoardTracker(root)]
    if progress or (progress is None and sys.stderr.isatty()):
        found.append(console_tracker())
    return found


def _count(name: str, value: object) -> int:
    """A plain number of at least 1; NumPy's integers are taken as well."""
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        count = operator.index(value)
        if count >= 1:
            return count
    raise UsageError(f"`{name} >= 1` must hold, but got {name}={show(value)}.")


def _flag(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise UsageError(f"`{name}` must be True or False, but got {show(value)}.")


def _optional_count(name: str, value: object) -> int | None:
    return None if value is None else _count(name, value)


_KINDS: Mapping[type, str] = {str: "a string", os.PathLike: "a path"}


def _check_type(name: str, value: object, *kinds: type) -> None:
    # A boolean is an int to Python, not to a person.
    if isinstance(value, bool) or not isinstance(value, kinds):
        wanted = " or ".join(_KINDS[kind] for kind in kinds)
        raise UsageError(f"`{name}` must be {wanted}, but got {show(value)}.")


_Choice = TypeVar("_Choice", Mode, Checkpointing)


def _one_of(name: str, value: str, kind: type[_Choice]) -> _Choice:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise UsageError(f"{name} must be one of {known}, but got {value!r}.") from None
