"""The experiment file: its keys, their defaults, and what is said about a wrong one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    StringConstraints,
    ValidationError,
)
from pydantic_core import ErrorDetails

from cerebro.config.overrides import apply_overrides
from cerebro.config.resolve import (
    backend_reference,
    check_run_name,
    resolve_path,
    task_reference,
)
from cerebro.config.yaml import Document, KeyPath, Place, load_yaml
from cerebro.errors import ConfigError, UsageError
from cerebro.run.stacks import check_setting
from cerebro.search.domain import Domain
from cerebro.search.sampler import make_sampler
from cerebro.search.space import Space, check_parameter_name, parse_domain
from cerebro.search.wording import show, unknown
from cerebro.types import Mode

Name = Annotated[str, AfterValidator(check_run_name)]
Text = Annotated[str, StringConstraints(min_length=1)]
Count = Annotated[int, Field(ge=1)]

# Missing keys have no line; they are told last.
_LAST = 2 * sys.maxsize


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
    #: Decides initial weights, batch orders and random search.
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    #: How often a trial sees every row.
    epochs: Count
    #: Here or in the space, not both.
    batch_size: Count | None = None
    #: grid or random; or a mapping {name: random, trials: 20}.
    search: Text = "grid"
    #: How many trials random search draws.
    num_trials: Count | None = None
    #: The metric that ranks trials, such as val_accuracy.
    metric: Text
    #: Whether the larger (max) or the smaller (min) metric is better.
    mode: Annotated[Mode, Field(strict=False)]
    #: When a trial's state is made durable; off gives up resume.
    checkpoint: Literal["visit", "epoch", "off"] = "visit"
    #: Train trials of one structure as one: auto, probe, false, or so many at most.
    stack: Annotated[bool | int | str, PlainValidator(check_setting)] = "auto"
    #: All trials see the rows of a shard in the same order.
    same_order: bool = False
    #: At the end keep the checkpoints of so many best trials; all where it is left out.
    keep_top: Count | None = None
    #: auto, cpu, cuda, or another torch device.
    device: Text = "auto"
    #: Parameters: a list is a choice, {loguniform: [low, high]} a domain, anything else a constant.
    space: dict[
        Annotated[str, AfterValidator(check_parameter_name)],
        Annotated[Domain, PlainValidator(parse_domain)],
    ]


class _Problem(NamedTuple):
    """Something wrong; problems sort in reading order."""

    place: Place
    message: str


def load_experiment(path: str | Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Read and check an experiment file with `key.sub=value` overrides; changes nothing on disk.

    Raises ConfigError, one paragraph: file and line, what must hold, what was got.
    """
    document = load_yaml(path)
    if not isinstance(document.tree, dict):
        place = document.place(())
        raise ConfigError(
            f"{place.text}: an experiment file must be a mapping of keys to values, "
            f"but got {_kind(document.tree)}."
        )
    document = apply_overrides(document, overrides, ExperimentConfig.model_fields)
    document = _flatten_search(document)
    try:
        config = ExperimentConfig.model_validate(document.tree)
    except ValidationError as error:
        raise _report([_describe(detail, document) for detail in error.errors()]) from None
    return _resolve(config, document, Path(path).absolute().parent)


def _flatten_search(document: Document) -> Document:
    """`search: {name: random, trials: 20}` is the long form of two keys."""
    tree = document.tree
    search = tree.get("search") if isinstance(tree, dict) else None
    if not isinstance(tree, dict) or not isinstance(search, dict):
        return document
    for key in search:
        if key not in ("name", "trials"):
            place = document.place(("search", key))
            raise ConfigError(f"{place.text}: {unknown('key of search', key, ('name', 'trials'))}")
    if "trials" in search and "num_trials" in tree:
        place = document.place(("search", "trials"))
        raise ConfigError(
            f"{place.text}: `search.trials` and `num_trials` mean the same; keep one."
        )
    flat = {**tree, "search": search.get("name", "grid")}
    places = {**document.places, ("search",): document.place(("search", "name"))}
    if "trials" in search:
        flat["num_trials"] = search["trials"]
        places[("num_trials",)] = document.place(("search", "trials"))
    return Document(source=document.source, tree=flat, places=places)


def _resolve(config: ExperimentConfig, document: Document, directory: Path) -> ExperimentConfig:
    """Check what the types cannot, and make paths absolute."""
    problems: list[_Problem] = []

    def add(message: str, *keys: str) -> None:
        written = [document.place((key,)) for key in keys if (key,) in document.places]
        problems.append(_Problem(written[0] if written else nowhere, message))

    nowhere = Place(_LAST, document.source)

    space = Space(config.space)
    task = config.task
    data = resolve_path(config.data, directory)
    try:
        backend_reference(config.backend)
    except UsageError as error:
        add(str(error), "backend")
    try:
        task = str(task_reference(config.task, directory))
    except UsageError as error:
        add(str(error), "task")
    try:
        make_sampler(config.search, space, seed=config.seed, num_trials=config.num_trials)
    except UsageError as error:
        add(str(error), "search", "space")
    if "://" not in data and not os.path.isdir(data):
        add(f"the dataset directory {data!r} does not exist.", "data")
    store = resolve_path(config.store, directory)
    if "://" not in store and os.path.exists(store) and not os.path.isdir(store):
        add(f"the store must be a directory, but {store!r} is a file.", "store")
    if ("batch_size" in space) == (config.batch_size is not None):
        both = "both" if "batch_size" in space else "neither"
        add(f"`batch_size` must be a key or in the space, but is in {both}.", "batch_size")
    if problems:
        raise _report(problems)
    return config.model_copy(update={"task": task, "data": data, "store": store})


def _describe(detail: ErrorDetails, document: Document) -> _Problem:
    """One of pydantic's findings in our words."""
    path: KeyPath = tuple(part for part in detail["loc"] if part != "[key]")
    key = ".".join(str(part) for part in path)
    kind = detail["type"]
    if kind == "missing":
        return _Problem(Place(_LAST, document.source), f"the key {key!r} is missing.")
    place = document.place(path)
    if kind == "extra_forbidden":
        return _Problem(place, unknown("key", key, ExperimentConfig.model_fields))
    if kind == "value_error":
        return _Problem(place, f"`{key}`: {detail['ctx']['error']}")
    return _Problem(place, f"`{key}` {_expectation(detail)}, but got {_got(detail['input'])}.")


def _expectation(detail: ErrorDetails) -> str:
    if detail["type"] == "string_too_short":
        return "must not be empty"
    words = {"dict_type": "must be a mapping", "int_type": "must be an integer"}
    text = words.get(detail["type"], detail["msg"])
    return text.replace("Input should be", "must be").replace("a valid ", "a ")


def _got(value: object) -> str:
    return f"{show(value)} ({_kind(value)})" if value is not None else "nothing"


def _kind(value: object) -> str:
    names: Mapping[type, str] = {
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "a mapping",
    }
    return names.get(type(value), "nothing")


def _report(problems: Sequence[_Problem]) -> ConfigError:
    first, *others = sorted(problems, key=lambda problem: problem.place.line)
    count = len(others)
    more = f" ({count} more problem{'s' if count > 1 else ''}.)" if count else ""
    return ConfigError(f"{first.place.text}: {first.message}{more}")
