"""The experiment file: its keys, their defaults, and what is said about a wrong one."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StringConstraints,
    ValidationError,
)

from cerebro.config.allowed import beyond_goal
from cerebro.config.launching import wrong_keys
from cerebro.config.overrides import apply_overrides
from cerebro.config.problems import describe, kind_of, problem_at, report
from cerebro.config.resolve import (
    backend_reference,
    check_run_name,
    resolve_path,
    task_reference,
)
from cerebro.config.yaml import Document, load_yaml
from cerebro.errors import ConfigError, UsageError
from cerebro.run.parallel import parse_parallel
from cerebro.run.request import BATCH_SIZES, Request, choose, wrong_batch_sizes
from cerebro.run.spec import Checkpointing
from cerebro.run.stacks import check_setting
from cerebro.search.budget import parse_budget
from cerebro.search.domain import Domain
from cerebro.search.sampler import SAMPLERS
from cerebro.search.space import Space, check_parameter_name, parse_domain
from cerebro.search.wording import unknown
from cerebro.storage import layout
from cerebro.types import Json, Mode


def _listed(value: object) -> object:
    """One value stands for a list of one."""
    return value if isinstance(value, list) else [value]


def _check_budget(value: object) -> object:
    parse_budget(value)
    return value


def _check_parallel(value: object) -> object:
    parse_parallel(value)
    return value


def _check_workers_per_trial(value: object) -> object:
    parse_parallel("hybrid", value)
    return value


Name = Annotated[str, AfterValidator(check_run_name)]
Text = Annotated[str, StringConstraints(min_length=1)]
Count = Annotated[int, Field(ge=1)]
Bound = Annotated[float, Field(allow_inf_nan=False)]
WorkersPerTrial = Annotated[Any, PlainValidator(_check_workers_per_trial)]

#: What is wrong, and the keys that it may be said of: the first that the file has.
_Objection: TypeAlias = tuple[str, Sequence[str]]

#: Parts of a request that may be left out, with what they are then.
_PARTS: Mapping[str, Mapping[str, object]] = {
    "warm_start": {"warm_start": ()},
    "stopper": {"stopper": None},
    "folds": {"folds": 0},
    "goal": {"goal": None, "epochs": 1, "stopper": None},
}


class ExperimentConfig(BaseModel):
    """An experiment, checked: names are known, files exist, paths are absolute."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True
    )

    #: The run's directory below the store.
    name: Name
    #: `module:Class`, or `file.py:Class` relative to the experiment file.
    task: Text
    #: The dataset directory, relative to the experiment file.
    data: Text
    #: Where runs are kept, relative to the experiment file.
    store: Text = "runs"
    #: Where workers live: inline or local.
    backend: Text = "local"
    #: How many workers; as many as fit the machine where it is left out.
    workers: Count | None = None
    #: Fixed for a run, because it decides the last bits of sums.
    threads_per_worker: Count = 1
    #: Decides initial weights, batch orders and what a search draws.
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    #: How often a trial sees every row; here, or as max_epochs of the goal.
    epochs: Count | None = None
    #: Here or in the space; of each worker where several train a trial.
    batch_size: Count | None = None
    #: In its place: of all workers of a trial together.
    global_batch_size: Count | None = None
    #: mop, ddp, hybrid or auto; or a mapping {mode: hybrid, workers_per_trial: 2}.
    parallel: Annotated[Any, PlainValidator(_check_parallel)] = "mop"
    #: Workers that train a trial together: a number, or host for all of a machine.
    workers_per_trial: WorkersPerTrial = None
    #: What to try: a name, or a mapping with a name and options, {name: random, trials: 20}.
    search: Any = "grid"
    #: How many trials; a grid tries all.
    num_trials: Count | None = None
    #: The metrics that rank trials, such as val_accuracy: one, or two to be weighed.
    metric: Annotated[list[Text], BeforeValidator(_listed)]
    #: For each whether the larger (max) or the smaller (min) is better.
    mode: Annotated[list[Annotated[Mode, Field(strict=False)]], BeforeValidator(_listed)]
    #: Who is trained how far: a name, a mapping {name: asha, eta: 4}, or a list of these.
    stopper: Any = None
    #: Ends the run once it is reached, and says what may be used: {target: 0.97, max_nodes: 3}.
    goal: dict[str, Any] | None = None
    #: What all trials together may take: "30m", "200 epochs", or a mapping of several.
    budget: Annotated[Any, PlainValidator(_check_budget)] = None
    #: Trials under way at once; what keeps the workers busy where it is left out.
    concurrent: Count | None = None
    #: Trials of each configuration.
    seeds: Count = 1
    #: Trials of each configuration, each holding out another part of the train shards.
    folds: Annotated[int, Field(ge=2)] | None = None
    #: The largest value that a metric may have; trials above it rank last.
    constraints: dict[Text, Bound] = {}
    #: Params to try first.
    warm_start: list[dict[str, Any]] = []
    #: The directory of an earlier run that an adaptive search learns from.
    learn_from: Text | None = None
    #: When a trial's state is made durable; off gives up resume.
    checkpoint: Literal["visit", "epoch", "off"] = "visit"
    #: Train trials of one structure as one: auto, probe, false, or so many at most.
    stack: Annotated[bool | int | str, PlainValidator(check_setting)] = "auto"
    #: All trials see the rows of a shard in the same order.
    same_order: bool = False
    #: At the end keep the checkpoints of so many best configurations; all where it is left out.
    keep_top: Count | None = None
    #: auto, cpu, cuda, or another torch device.
    device: Text = "auto"
    #: What `cerebro launch` asks of a batch system: {nodes: 8, time: "1:00:00"}.
    launch: dict[str, Any] = {}
    #: Parameters: a list is a choice, {loguniform: [low, high]} a domain, anything else a constant.
    space: dict[
        Annotated[str, AfterValidator(check_parameter_name)],
        Annotated[Domain, PlainValidator(parse_domain)],
    ]

    def to_request(self) -> Request:
        """What the file asks for, less what an earlier run has shown."""
        return Request(
            name=self.name,
            space=Space(self.space),
            search=self.search,
            num_trials=self.num_trials,
            epochs=self.epochs,
            batch_size=self.batch_size,
            global_batch_size=self.global_batch_size,
            parallel=parse_parallel(self.parallel, self.workers_per_trial),
            metric=self.metric,
            mode=self.mode,
            seed=self.seed,
            threads_per_worker=self.threads_per_worker,
            checkpoint=Checkpointing(self.checkpoint),
            stack=self.stack,
            same_order=self.same_order,
            stopper=self.stopper,
            goal=self.goal,
            budget=self.budget,
            concurrent=self.concurrent,
            seeds=self.seeds,
            folds=self.folds or 0,
            constraints=self.constraints,
            warm_start=self.warm_start,
        )


def load_experiment(path: str | Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Read and check an experiment file with `key.sub=value` overrides; changes nothing on disk.

    Raises ConfigError, one paragraph: file and line, what must hold, what was got.
    """
    document = load_yaml(path)
    if not isinstance(document.tree, dict):
        place = document.place(())
        raise ConfigError(
            f"{place.text}: an experiment file must be a mapping of keys to values, "
            f"but got {kind_of(document.tree)}."
        )
    document = apply_overrides(document, overrides, ExperimentConfig.model_fields)
    document = _flatten_search(document)
    try:
        config = ExperimentConfig.model_validate(document.tree)
    except ValidationError as error:
        known = ExperimentConfig.model_fields
        raise report([describe(each, document, known) for each in error.errors()]) from None
    return _resolve(config, document, Path(path).absolute().parent)


def _flatten_search(document: Document) -> Document:
    """`search: {name: random, trials: 20}` is the long form of two keys."""
    tree = document.tree
    search = tree.get("search") if isinstance(tree, dict) else None
    if not isinstance(tree, dict) or not isinstance(search, dict):
        return document
    options = {"name": "grid", **search}
    kind = SAMPLERS.get(str(options["name"]))
    known = ("name", "trials", *(kind.options if kind else search))
    for key in search:
        if key not in known:
            place = document.place(("search", key))
            raise ConfigError(f"{place.text}: {unknown('key of search', key, known)}")
    if "trials" in search and "num_trials" in tree:
        place = document.place(("search", "trials"))
        raise ConfigError(
            f"{place.text}: `search.trials` and `num_trials` mean the same; keep one."
        )
    trials = options.pop("trials", None)
    flat: dict[str, Json] = {**tree, "search": options if len(options) > 1 else options["name"]}
    places = dict(document.places)
    if len(options) == 1:
        places[("search",)] = document.place(("search", "name"))
    if "trials" in search:
        flat["num_trials"] = trials
        places[("num_trials",)] = document.place(("search", "trials"))
    return Document(source=document.source, tree=flat, places=places)


def _resolve(config: ExperimentConfig, document: Document, directory: Path) -> ExperimentConfig:
    """Check what the types cannot, and make paths absolute."""
    learn_from = config.learn_from and resolve_path(config.learn_from, directory)
    found = {
        "data": resolve_path(config.data, directory),
        "store": resolve_path(config.store, directory),
        "learn_from": learn_from,
    }
    resolved = config.model_copy(update=found)
    problems = [*_wrong_names(config, directory), *_wrong_paths(resolved), *_misfits(config)]
    if problems:
        raise report([problem_at(document, keys, message) for message, keys in problems])
    task = str(task_reference(config.task, directory))
    return resolved.model_copy(update={"task": task})


def _wrong_names(config: ExperimentConfig, directory: Path) -> Iterator[_Objection]:
    try:
        backend_reference(config.backend)
    except UsageError as error:
        yield str(error), ("backend",)
    try:
        task_reference(config.task, directory)
    except UsageError as error:
        yield str(error), ("task",)


def _wrong_paths(config: ExperimentConfig) -> Iterator[_Objection]:
    data, store, earlier = config.data, config.store, config.learn_from
    if "://" not in data and not os.path.isdir(data):
        yield f"the dataset directory {data!r} does not exist.", ("data",)
    if "://" not in store and os.path.exists(store) and not os.path.isdir(store):
        yield f"the store must be a directory, but {store!r} is a file.", ("store",)
    if earlier and not os.path.isfile(os.path.join(earlier, layout.RUN)):
        message = f"a run to learn from must have a {layout.RUN}, but {earlier!r} has none."
        yield message, ("learn_from",)


def _misfits(config: ExperimentConfig) -> Iterator[_Objection]:
    """What does not fit together."""
    for _, message in wrong_keys(config.launch):
        yield message, ("launch",)
    try:
        parse_parallel(config.parallel, config.workers_per_trial)
    except UsageError as error:
        yield str(error), ("workers_per_trial",)
        return
    objection = wrong_batch_sizes(config.to_request())
    if objection is not None:
        yield objection, BATCH_SIZES
    if config.epochs is None and "max_epochs" not in (config.goal or {}):
        yield "the key 'epochs' is missing.", ("epochs",)
        return
    request = config.to_request()
    objection = _objection(request)
    if objection is not None:
        yield objection, _blame(request, objection)
        return
    beyond = beyond_goal(
        config.goal, device=config.device, device_key=("device",), launch=config.launch
    )
    for path, message in beyond:
        yield message, (str(path[0]),)


def _blame(request: Request, objection: str) -> Sequence[str]:
    """The keys that may be to blame, likeliest first."""
    if len(request.metric) != len(request.mode):
        return ("mode",)
    for key, without in _PARTS.items():
        # Without the part that is to blame something else is wrong, or nothing.
        if _objection(dataclasses.replace(request, **without)) != objection:  # type: ignore[arg-type]
            return (key,)
    return ("search", "space")


def _objection(request: Request) -> str | None:
    try:
        choose(request)
    except UsageError as error:
        return str(error)
    return None
