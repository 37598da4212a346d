"""Recipes: trainings described by names and numbers alone, made into experiments."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from cerebro.config.allowed import beyond_goal
from cerebro.config.launching import wrong_keys
from cerebro.config.machine import available_cores
from cerebro.config.problems import Problem, describe, report
from cerebro.config.recipe_data import DataSource, find_source
from cerebro.config.recipe_keys import check_option, wrong_options
from cerebro.config.recipe_overrides import apply_recipe_overrides
from cerebro.config.recipe_paths import find_path, split_output
from cerebro.config.recipe_schema import GoalSection, Recipe, SearchSection, section_keys
from cerebro.config.recipe_space import RENAMED, Objection, make_space
from cerebro.config.resolve import backend_reference
from cerebro.config.schema import ExperimentConfig
from cerebro.config.yaml import Document, KeyPath
from cerebro.data.named import DATASETS
from cerebro.errors import UsageError
from cerebro.run.parallel import parse_parallel
from cerebro.run.request import choose, wrong_batch_sizes
from cerebro.search.domain import Constant, Domain
from cerebro.types import Json, Mode

logger = logging.getLogger("cerebro.config")

#: What trains a recipe, without and with changes of training pictures.
TASK = "cerebro.zoo.recipe:RecipeTask"
AUGMENTED_TASK = "cerebro.zoo.recipe:AugmentedTask"

#: No file with a task has them.
_SECTIONS = frozenset(("model", "optimizer", "training"))

#: Words of an objection to a request -> the key that it is about.
_REQUEST_SIGNS: Sequence[tuple[str, KeyPath]] = (
    ("unknown search", ("search", "name")),
    ("stopper 'goal'", ("goal", "metric")),
    ("stopper", ("search", "stopper")),
    ("warm_start", ("search", "warm_start")),
    ("target", ("goal", "target")),
    ("goal", ("goal",)),
    ("grid search", ("search", "space")),
    ("num_trials belongs", ("search", "trials")),
    ("needs num_trials", ("search", "name")),
)


class RecipeExperiment(ExperimentConfig):
    """The experiment that a recipe describes: its data are prepared when it is run."""

    recipe: Recipe
    source: DataSource

    def prepare(self, say: Callable[[str], None]) -> RecipeExperiment:
        """The same with its data ready: they are prepared now, unless they are there."""
        return self.model_copy(update={"data": self.source.prepare(say)})


def is_recipe(tree: Json) -> bool:
    """Whether a file is a recipe: it says what to train by name. One of its sections is enough.

    >>> is_recipe({"model": {}, "trainin": {}}), is_recipe({"task": "tasks:Digits"})
    (True, False)
    """
    return isinstance(tree, Mapping) and "task" not in tree and bool(_SECTIONS & {*tree})


def load_recipe(document: Document, path: Path, overrides: Sequence[str] = ()) -> RecipeExperiment:
    """Check a recipe and make an experiment of it; changes nothing on disk.

    Raises ConfigError, one paragraph: file and line, what must hold, what was got.
    """
    document = apply_recipe_overrides(document, overrides)
    try:
        recipe = Recipe.model_validate(document.tree)
    except ValidationError as error:
        wrong = [Problem(document.place(path), told) for path, told in wrong_options(document.tree)]
        raise report([*wrong, *(_describe(each, document) for each in error.errors())]) from None
    made = _Translation(recipe, path)
    if made.objections:
        raise report([Problem(document.place(o.path), o.message) for o in made.objections])
    return made.experiment


def _describe(detail: ErrorDetails, document: Document) -> Problem:
    """In a section the keys that exist are those of the section."""
    top, *below = (str(part) for part in detail["loc"])
    fields: Mapping[str, Any] = Recipe.model_fields
    known = list(fields)
    if below and top in fields:
        known = [f"{top}.{key}" for key in section_keys(top)] or known
    return describe(detail, document, known)


class _Translation:
    """A recipe as an experiment, or what is in the way."""

    def __init__(self, recipe: Recipe, path: Path) -> None:
        self.objections: list[Objection] = []
        self._recipe = recipe
        self._path = path
        place = self._try(("output_dir",), split_output, recipe.output_dir, path)
        source = self._try(("data",), find_source, recipe.data, recipe, path)
        earlier = recipe.search.learn_from
        if earlier is not None:
            earlier = self._try(("search", "learn_from"), find_path, earlier, path)
        space, wrong = make_space(recipe)
        self.objections += [*wrong, *self._misfits()]
        if self.objections:
            return
        self.experiment = self._make(place, source, space, earlier)
        self._check_request(self.experiment)

    def _try(self, path: KeyPath, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except UsageError as error:
            self.objections.append(Objection(_blamed(path, str(error)), str(error)))
            return None

    def _make(
        self,
        place: tuple[str, str],
        source: DataSource,
        space: dict[str, Domain],
        earlier: str | None,
    ) -> RecipeExperiment:
        store, name = place
        recipe, search = self._recipe, self._recipe.search
        metric, mode = ranked_by(recipe)
        return RecipeExperiment(
            name=name,
            task=AUGMENTED_TASK if "data.augment" in space else TASK,
            data=source.name,
            store=store,
            backend=recipe.backend,
            workers=recipe.workers,
            threads_per_worker=self._threads(),
            seed=recipe.seed,
            epochs=recipe.training.n_epochs,
            search=_search(search),
            num_trials=search.trials,
            metric=[metric],
            mode=[Mode(mode)],
            stopper=search.stopper,
            goal=_goal(recipe.goal),
            budget=recipe.budget,
            concurrent=search.concurrent,
            seeds=search.seeds,
            warm_start=_warm_start(search, space),
            learn_from=earlier,
            checkpoint=recipe.checkpoint,
            stack=recipe.stack,
            same_order=recipe.same_order,
            keep_top=recipe.keep_top,
            device=device_of(recipe),
            parallel=recipe.parallel,
            workers_per_trial=recipe.workers_per_trial,
            launch=recipe.launch,
            space=space,
            recipe=recipe,
            source=source,
        )

    def _threads(self) -> int:
        asked, cores = self._recipe.device.intra_threads, available_cores()
        workers = self._recipe.workers or 1
        share = max(1, cores // workers)
        if asked > share:
            logger.info(
                "device.intra_threads is %d, but there are %d cores for each of %d workers: %d "
                "threads. A run goes on with as many as it began with.",
                *(asked, share, workers, share),
            )
        return min(asked, share)

    def _misfits(self) -> Iterator[Objection]:
        recipe, training, goal = self._recipe, self._recipe.training, self._recipe.goal
        given = [key for key in ("batch_size", "global_batch_size") if getattr(training, key)]
        given += [
            key
            for key in ("training.batch_size", "training.global_batch_size")
            if key in recipe.search.space and key.partition(".")[2] not in given
        ]
        if len(given) != 1:
            both = " and ".join(given) or "neither"
            todo = " Set the one you do not want to null." if len(given) == 2 else ""
            yield Objection(
                ("training", "global_batch_size" if given else "batch_size"),
                "batch_size (rows of each worker of a trial) or global_batch_size (of all of them "
                f"together) must be given, one of the two, but got {both}.{todo}",
            )
        classes = DATASETS[recipe.data.name].n_classes if recipe.data.name in DATASETS else None
        # One logit tells two classes apart.
        least = 1 if classes is None or classes <= 2 else classes
        if recipe.model.n_classes < least:
            yield Objection(
                ("model", "n_classes"),
                f"`n_classes >= {least}` must hold for {recipe.data.name}, but got "
                f"n_classes={recipe.model.n_classes}.",
            )
        for key in recipe.search.options:
            try:
                check_option("search", recipe.search.name, key)
            except UsageError as error:
                yield Objection(("search", key), str(error))
        if recipe.search.metric is not None and recipe.search.mode is None:
            yield Objection(
                ("search", "metric"), "a metric needs a mode, max or min: search.mode is missing."
            )
        try:
            backend_reference(recipe.backend)
        except UsageError as error:
            yield Objection(("backend",), str(error))
        try:
            parse_parallel(recipe.parallel, recipe.workers_per_trial)
        except UsageError as error:
            yield Objection(("workers_per_trial",), str(error))
        for path, message in wrong_keys(recipe.launch):
            yield Objection(path, message)
        if goal is not None:
            yield from _broken_constraints(recipe, goal)

    def _check_request(self, experiment: RecipeExperiment) -> None:
        request = experiment.to_request()
        objection = wrong_batch_sizes(request)
        try:
            choose(request)
        except UsageError as error:
            objection = objection or str(error)
        if objection is not None:
            options = ((f"`{key}` of", ("search", key)) for key in self._recipe.search.options)
            signs = (*options, *_REQUEST_SIGNS)
            paths = (path for words, path in signs if words in objection)
            self.objections.append(Objection(next(paths, ("search",)), objection))


def _blamed(path: KeyPath, message: str) -> KeyPath:
    """The key of `data` that a message speaks of."""
    if path != ("data",):
        return path
    if message.startswith("unknown data set"):
        return "data", "name"
    quoted = re.search(r"option '(.+?)'|`(\w+) |^(\w+) must", message)
    return path if quoted is None else ("data", next(filter(None, quoted.groups())))


def _broken_constraints(recipe: Recipe, goal: GoalSection) -> Iterator[Objection]:
    epochs, most = recipe.training.n_epochs, goal.max_epochs
    if most is not None and epochs > most:
        yield Objection(
            ("training", "n_epochs"),
            f"`n_epochs <= goal.max_epochs` must hold, but got n_epochs={epochs} and "
            f"max_epochs={most}.",
        )
    beyond = beyond_goal(
        _goal(goal),
        device=device_of(recipe),
        device_key=("device", "gpu"),
        launch=recipe.launch,
    )
    yield from (Objection(path, message) for path, message in beyond)


def device_of(recipe: Recipe) -> str:
    """The device that workers use: what the file says, within what the goal allows."""
    gpu, goal = recipe.device.gpu, recipe.goal
    if gpu is None:
        return "auto" if goal is None or goal.devices is None else goal.devices
    if isinstance(gpu, bool):
        return "cuda" if gpu else "cpu"
    return f"cuda:{gpu}"


def ranked_by(recipe: Recipe) -> tuple[str, str]:
    """What ranks trials, and which way: as asked for, else accuracy where it is measured."""
    search, goal = recipe.search, recipe.goal
    if search.metric is not None:
        return search.metric, search.mode or "max"
    if goal is not None and goal.metric is not None and goal.mode is not None:
        return goal.metric, goal.mode
    return ("val_accuracy", "max") if "accuracy" in recipe.training.metrics else ("val_loss", "min")


def _search(search: SearchSection) -> object:
    return {"name": search.name, **search.options} if search.options else search.name


def _goal(goal: GoalSection | None) -> dict[str, Any] | None:
    if goal is None:
        return None
    return goal.model_dump(exclude_none=True)


def _warm_start(search: SearchSection, space: Mapping[str, Domain]) -> list[dict[str, Any]]:
    """Constants need not be repeated."""
    fixed = {name: each.value for name, each in space.items() if isinstance(each, Constant)}
    return [
        {**fixed, **{RENAMED.get(name, name): value for name, value in params.items()}}
        for params in search.warm_start
    ]
