"""Experiment: what a user describes. It resolves names and hands over to the run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from typing import cast

from cerebro.backend.base import Backend
from cerebro.backend.gang.excuse import excused
from cerebro.backend.gang.rendezvous import Rendezvous, find_rendezvous
from cerebro.config import arguments
from cerebro.config.backends import BackendChoice
from cerebro.config.requirements import install_requirements
from cerebro.config.resolve import check_run_name
from cerebro.data import open_dataset
from cerebro.data.sources.bad_rows import DEFAULT_MAX_BAD, Policy
from cerebro.etl import find_places, prepare
from cerebro.etl_spec import ETLSpec
from cerebro.fitting import FitGround, FitWish, run_fit
from cerebro.results import Result
from cerebro.run.etl import EtlSettings
from cerebro.run.etl_report import EtlReport
from cerebro.run.parallel import parse_parallel
from cerebro.run.recovery import set_aside
from cerebro.run.request import Request
from cerebro.run.spec import Checkpointing
from cerebro.run.stacks import check_setting
from cerebro.scores import PredictResult, TestResult
from cerebro.scoring import Ground, ModelTag, Wish, run_predict, run_test
from cerebro.search.space import Space, parse_space
from cerebro.spec import MiniBatchSpec
from cerebro.storage import layout
from cerebro.storage.opening import check_shared
from cerebro.storage.working import working_directory
from cerebro.task import Task
from cerebro.track.notebook_link import tensorboard_link
from cerebro.track.shown import bar_for
from cerebro.train.spec.task import batch_size_missing
from cerebro.types import Params, Split


class Experiment:
    """A dataset, a store and workers: the ground on which runs take place.

    Args:
        params: Locators of raw data, for `run_etl`: `{train,val,test,predict}_main` and `_dir`,
            `misc`, `etl_dir`, `models_dir`, `output_dir`; see docs/dataset_locators.md.
        name: The run's name: its directory in the store. The same name resumes the same run.
        data: Directory or URL of a prepared dataset, where there are no params.
        store: Directory or URL that holds runs; default `output_dir` of the params, else "runs".
        requirements: A file of packages to install, once, for this process and the workers.
        backend: "local" (processes on this machine), "inline" (this process, for debugging),
            "spark", "ray", "ray:HOST:PORT", or an object such as `RayBackend(...)`.
        workers: How many; default one for each GPU, else for each `threads_per_worker` cores.
        threads_per_worker: Fixed for a run; default 1, on Spark `spark.task.cpus`.
        seed: Decides initial weights, batch orders and random search.
        rendezvous: The place of this process among others; default as torchrun, SLURM or MPI say.

    >>> import tempfile, numpy as np, cerebro
    >>> folder = tempfile.mkdtemp()
    >>> x = np.random.default_rng(0).normal(size=(64, 2)).astype("float32")
    >>> _ = cerebro.data.from_arrays(
    ...     f"{folder}/data", train={"x": x, "y": x.sum(1, keepdims=True)}, shards=2, validation=0.2
    ... )
    >>> class Line(cerebro.Task):
    ...     def model(self, params):
    ...         from torch import nn
    ...         return nn.Linear(2, 1)
    ...     def optimizer(self, model, params):
    ...         from torch import optim
    ...         return optim.SGD(model.parameters(), lr=params["lr"])
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
        name: str = "experiment",
        data: str | os.PathLike[str] | None = None,
        store: str | os.PathLike[str] | None = None,
        backend: str | Backend = "local",
        workers: int | None = None,
        threads_per_worker: int | None = None,
        seed: int = 0,
        requirements: str | os.PathLike[str] | None = None,
        rendezvous: Rendezvous | None = None,
    ) -> None:
        arguments.check_type("name", name, str)
        for argument, value in (("data", data), ("store", store), ("requirements", requirements)):
            if value is not None:
                arguments.check_type(argument, value, str, os.PathLike)
        self.name = check_run_name(name)
        self._runs, self._raw, self.data = find_places(params, data, store, name)
        self.store = self._runs.child(name)
        install_requirements(requirements)
        self._choice = BackendChoice(backend, workers, threads_per_worker, requirements)
        self.threads_per_worker = self._choice.threads
        self.seed = arguments.seed_of(seed)
        self._rendezvous = rendezvous or find_rendezvous(os.environ)

    def run_etl(
        self,
        spec: ETLSpec | None = None,
        fraction: float = 1.0,
        seed: int = 1,
        *,
        shards: int = 8,
        on_bad_row: str = "fail",
        max_bad: float = DEFAULT_MAX_BAD,
        columns: Mapping[str, str] | None = None,
        progress: bool | None = None,
        fresh: bool = False,
    ) -> EtlReport:
        """Prepare what the locators name: shuffle, cut into shards, process on all workers.

        Every row comes out once, in shards that are the same for any number of workers. Killed and
        called again, it goes on with the shards that are missing; what was prepared from the same
        tables by the same code is left as it is.

        Args:
            spec: How a row becomes an input and a label; None: columns are kept as they are.
            fraction: Of the rows of train and val, chosen at random.
            seed: Decides which, and the order of rows.
            shards: Number of training shards; the other splits get shards of about that size.
            on_bad_row: "fail", "skip", or "quarantine": a file beside the data lists them.
            max_bad: How many rows may be bad: a fraction, or a number of rows.
            columns: Types of columns that are not to be guessed, such as `{"zip": "text"}`.
            progress: Show progress; default on a terminal and in a notebook.
            fresh: Prepare everything again.
        """
        return prepare(
            self._raw,
            spec,
            EtlSettings(
                shards=arguments.count("shards", shards),
                fraction=fraction,
                seed=arguments.seed_of(seed),
                policy=Policy.parse(on_bad_row),
                max_bad=max_bad,
            ),
            columns=columns,
            backend=self._make_backend(),
            workers=self.count_workers("cpu"),
            shown=bar_for(progress),
            is_fresh=arguments.flag("fresh", fresh),
        )

    def reset(self) -> None:
        """Forget what was prepared and trained: the next calls begin anew.

        The run is moved aside, not removed. Data prepared by `run_etl` is removed, unless it is in
        an `etl_dir` of your own; so are copies of misc files and models.
        """
        set_aside(self.store)
        if self._raw is not None:
            self._raw.forget()

    def run_fit(
        self,
        task: Task | MiniBatchSpec | str,
        space: Mapping[str, object] | Space,
        num_epochs: int | None = None,
        *,
        metric: str | Sequence[str] | None = None,
        mode: str | Sequence[str] | None = None,
        search: object = "grid",
        num_trials: int | None = None,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        parallel: object = "mop",
        workers_per_trial: int | str | None = None,
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
        logdir: str | os.PathLike[str] | None = None,
        fresh: bool = False,
        force: bool = False,
    ) -> Result:
        """Train configurations and rank them. A run of this name goes on where it stopped.

        Args:
            task: The task or MiniBatchSpec, or `module:Class` for workers to import.
            space: Param name -> domain of `cerebro.tune`; a list means choice, a value itself.
            num_epochs: How often a trial sees every row.
            metric: What ranks trials, e.g. "val_accuracy"; its best epoch counts. Two for a search
                with two objectives, the first ranks. Default the loss: of validation, else train.
            mode: "max" or "min", for each metric; only the default metric needs none.
            search: "grid", "random", "sobol", "tpe" or "nsga2"; with options
                `{"name": "tpe", ...}`; or an object of `optuna.samplers`.
            num_trials: How many trials; a grid tries all.
            batch_size: Here or in the space; of each worker where several train a trial.
            global_batch_size: In its place, of all of them together.
            parallel: "mop" (a trial for each worker), "ddp" (for all), "hybrid" (for some), "auto".
            workers_per_trial: Of hybrid: a number, or "host" for all of a machine.
            stopper: Who is trained how far: "asha", "halving", "hyperband", "median", "patience",
                "pbt"; with options `{"name": "asha", "eta": 4}`; several in a list.
            goal: Ends the run once it is reached: `{"metric": "val_accuracy", "target": 0.97}`,
                perhaps with "max_epochs" in place of `num_epochs`, "devices" and "max_nodes".
            budget: Of all trials: "30m", "200 epochs", or a mapping: time, trials, epochs, visits.
            concurrent: Trials under way at once; default what keeps the workers busy.
            seeds: Trials of each configuration, ranked by their mean.
            folds: The same, each with another part of the train shards held out.
            constraints: Metric -> the largest value it may have; trials above it rank last.
            warm_start: Params to try first.
            learn_from: An earlier run whose trials an adaptive search knows from the beginning.
            checkpoint: When state becomes durable: "visit", "epoch" or "off" (no resume).
            device: "auto", "cpu", "cuda", or another torch device (untested).
            stack: Train trials of one structure as one: "auto" where it pays, False never, a number
                for so many at most in any case; "probe" measures first what pays.
            same_order: All trials see the rows of a shard in the same order: cheaper stacks.
            keep_top: At the end keep the checkpoints of so many best configurations; default all.
            progress: Show progress; default on a terminal and in a notebook.
            logdir: TensorBoard's files go to `<run>/<trial>` in it; default the run's directory.
            fresh: Move a run of this name aside and start anew.
            force: Resume although something changed that changes results; the journal records it.
        """
        with excused(self._rendezvous, self.name):
            if isinstance(task, MiniBatchSpec):
                if not isinstance(space, Mapping | Space) or "batch_size" not in space:
                    raise batch_size_missing(task)
                # Its step is its own: nothing is gained by looking.
                stack = False if stack == "auto" else stack
            task = self._as_task(task)
            arguments.check_type("device", device, str)
            self._choice.check_goal(goal, device, self._rendezvous, getattr(task, "framework", ""))
            dataset = open_dataset(self._prepared(Split.TRAIN))
            has_validation = bool(dataset.shards(Split.VAL))
            metric, mode = arguments.ranked_by(metric, mode, has_validation=has_validation)
            if not isinstance(learn_from, Result | None):
                learn_from = Result.open(learn_from)
            metrics = [metric] if isinstance(metric, str) else list(metric)
            request = Request(
                name=self.name,
                space=parse_space(space),
                search=search,
                num_trials=arguments.optional_count("num_trials", num_trials),
                epochs=arguments.optional_count("num_epochs", num_epochs),
                batch_size=arguments.optional_count("batch_size", batch_size),
                global_batch_size=arguments.optional_count("global_batch_size", global_batch_size),
                parallel=parse_parallel(parallel, workers_per_trial),
                metric=metric,
                mode=mode,
                seed=self.seed,
                threads_per_worker=self.threads_per_worker,
                checkpoint=arguments.one_of("checkpoint", checkpoint, Checkpointing),
                stack=check_setting(stack),
                same_order=arguments.flag("same_order", same_order),
                stopper=stopper,
                goal=goal,
                budget=budget,
                concurrent=arguments.optional_count("concurrent", concurrent),
                seeds=arguments.count("seeds", seeds),
                folds=arguments.optional_count("folds", folds) or 0,
                constraints=constraints or {},
                warm_start=cast("Sequence[Params]", warm_start),
                known=[] if learn_from is None else learn_from.outcomes(metrics),
            )
            wish = FitWish(
                task=task,
                device=device,
                keep_top=arguments.optional_count("keep_top", keep_top),
                progress=progress,
                logdir=logdir,
                fresh=fresh,
                force=force,
            )
            run_fit(self._fit_ground(dataset.path, device), request, wish)
            return Result.open(self.store.where(), task=task if isinstance(task, Task) else None)

    def run_test(
        self,
        task: Task | MiniBatchSpec | str,
        model_tag: ModelTag | Sequence[ModelTag] = "best",
        batch_size: int | None = None,
        *,
        split: str = "test",
        which: str = "best",
        params: Mapping[str, object] | None = None,
        device: str = "auto",
        output: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
        fresh: bool = False,
    ) -> TestResult:
        """Metrics of trained models over the test split: exact means over all its rows.

        Several models are tested in one pass over the data. Asked again, what is known is given
        back at once; killed and asked again, shards that were through are not done again.

        Args:
            task: The task or MiniBatchSpec, or `module:Class` for workers to import.
            model_tag: A trial ("t0003", 3), "best", a `Result` for its best, a file (.safetensors,
                a state_dict as .pt or .pth, of torch.export .pt2, of Keras .keras or .weights.h5),
                or a list of them.
            batch_size: Default `Task.eval_batch_size`, or 256.
            split: Another split to test on.
            which: The state of a trial at its "best" epoch, or its "final" one.
            params: Of models in files that do not carry theirs.
            device: "auto", "cpu", "cuda", or another torch device (untested).
            output: Directory for result.json; default one in the run's.
            progress: Show progress; default on a terminal and in a notebook.
            fresh: Compute all of it again.
        """
        options = split, which, params, output, progress, fresh
        wish = Wish(self._as_task(task), model_tag, batch_size, *options)
        return run_test(self._ground(device, split), wish)

    def run_predict(
        self,
        task: Task | MiniBatchSpec | str,
        model_tag: ModelTag | Sequence[ModelTag] = "best",
        batch_size: int | None = None,
        *,
        split: str = "predict",
        which: str = "best",
        params: Mapping[str, object] | None = None,
        device: str = "auto",
        output: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
        fresh: bool = False,
    ) -> PredictResult:
        """What trained models say about each row of the predict split, as CSV and Parquet.

        Every row comes once, in the order of the input, with its id: the value of a column "id",
        where the data have one, else its number. The arguments are those of `run_test`.
        """
        options = split, which, params, output, progress, fresh
        wish = Wish(self._as_task(task), model_tag, batch_size, *options)
        return run_predict(self._ground(device, split), wish)

    def _fit_ground(self, data: str, device: str) -> FitGround:
        return FitGround(
            data=data,
            runs=self._runs,
            store=self.store,
            workers=self._rendezvous.world if self._rendezvous else self.count_workers(device),
            sole_rank_of=self._choice.find_lone_launcher(self._rendezvous),
            is_inline=self._choice.is_inline,
            host_workers=lambda: self._choice.count_on_host(device),
            has_gangs=self._choice.has_gangs,
            is_here=self._choice.is_here,
            rendezvous=self._rendezvous,
            make_backend=lambda: self._make_backend(is_storing=True),
        )

    def _ground(self, device: str, split: str) -> Ground:
        arguments.check_type("device", device, str)
        return Ground(
            data=self._prepared(split),
            store=self.store,
            backend=self._make_backend(is_storing=True),
            workers=self.count_workers(device),
            threads=self.threads_per_worker,
            device=device,
            models_dir=None if self._raw is None else self._raw.locators.models_dir,
        )

    def _as_task(self, task: Task | MiniBatchSpec | str) -> Task | str:
        if isinstance(task, MiniBatchSpec) and self._raw is not None:
            task.read_misc(self._raw.misc_path())
        return arguments.task_of(task)

    def _repr_html_(self) -> str:
        return f"<div>{escape(self.name)}</div>{tensorboard_link(self.store)}"

    def _prepared(self, split: str) -> str:
        """The directory of the dataset, with this split if locators say what there is."""
        return self.data if self._raw is None else self._raw.dataset(split)

    def _make_backend(self, *, is_storing: bool = False) -> Backend:
        if is_storing and not self._choice.is_inline:
            check_shared(self.store)
        return self._choice.make(working_directory(self.store, layout.LOGS))

    def count_workers(self, device: str) -> int:
        """Workers of a run on this device."""
        return self._choice.count(device)
