"""What `cerebro run` does for recipes: prepares their data, tells of their model and their end."""

from __future__ import annotations

import code
import contextlib
import importlib
import logging
import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from cerebro.backend.gang.rendezvous import Rendezvous
from cerebro.cli.recipe_options import RecipeWish
from cerebro.config.files import show_recipe
from cerebro.config.recipe import RecipeExperiment
from cerebro.config.schema import ExperimentConfig
from cerebro.data import open_dataset
from cerebro.errors import UsageError
from cerebro.results import Result
from cerebro.run.recovery import set_aside
from cerebro.search.allowance import allowance_of
from cerebro.storage import Store
from cerebro.track.monitor.profile import Profile, profiling
from cerebro.types import trial_id
from cerebro.zoo.params import section

logger = logging.getLogger("cerebro.cli")

_TOP_K = "val_top_k_categorical_accuracy"


def ready(config: ExperimentConfig, wish: RecipeWish, *, is_leading: bool) -> ExperimentConfig:
    """The same with its data ready; those of a recipe are prepared now, unless they are there."""
    allowance_of(config.goal).check_nodes(wish.nodes or 1, "-n")
    if not isinstance(config, RecipeExperiment):
        return config
    say = logger.info if is_leading else logger.debug
    if config.recipe.description:
        say("%s", config.recipe.description)
    say("output: %s/%s", config.store.rstrip("/"), config.name)
    if config.recipe.device.inter_threads is not None:
        say("device.inter_threads is read for old files: PyTorch's own number is kept.")
    found = config.prepare(lambda text: say("%s", text))
    check_pictures(found)
    if wish.is_verbose and is_leading:
        logger.debug("%s\n%s", show_recipe(found), describe_model(found))
    return found


def sampled(
    config: ExperimentConfig, spot: Rendezvous | None, store: Store, is_fresh: bool
) -> contextlib.AbstractContextManager[object]:
    """What a recipe's `profile` asks for, while it is run: once on each machine."""
    if not isinstance(config, RecipeExperiment) or (spot is not None and spot.position > 0):
        return contextlib.nullcontext()
    profile = Profile.parse(config.recipe.profile)
    if profile is not None and is_fresh and (spot is None or spot.is_leading):
        # Samples go to the run's directory, and must stay when an earlier run leaves it.
        set_aside(store)
    if spot is None:
        return profiling(profile, store.where())
    # A launcher that has started several ranks on this machine has all of them below it. Systems
    # may hide processes of others.
    launcher = os.getppid() if spot.here > spot.local else 0
    pid = launcher if os.path.exists(f"/proc/{launcher}/stat") else None
    if launcher != 0 and pid is None:
        logger.warning("of the ranks of this machine only the first is sampled: it sees no others.")
    return profiling(profile, store.where(), node=spot.first, pid=pid)


def check_pictures(config: RecipeExperiment) -> None:
    """Raise UsageError unless the model takes the pictures that there are."""
    height, width, channels = config.recipe.model.input_shape
    shape = open_dataset(config.data).schema["x"].shape
    if shape != (channels, height, width):
        there = [*shape[1:], shape[0]]
        raise UsageError(
            f"input_shape of the model must be that of the pictures, {there}, but is "
            f"{config.recipe.model.input_shape}."
        )


def describe_model(config: RecipeExperiment) -> str:
    """The layers of a recipe's model and how many parameters it has; PyTorch is loaded for it."""
    from cerebro import zoo

    first = {name: domain.nth(0) for name, domain in config.space.items() if domain.num_listed()}
    model = zoo.build(**section(first, "model"))
    count = sum(parameter.numel() for parameter in model.parameters())
    return f"{model}\n{count:,} parameters"


def tell_best(result: Result) -> None:
    """Write the best validation accuracy, and top 5 if asked for, and what an epoch took."""
    curves = {trial.number: result.history(trial.number) for trial in result.trials}
    asked = {"val_accuracy": "best validation accuracy", _TOP_K: "best top-5 accuracy"}
    for name, words in asked.items():
        found = [
            (float(row[name]), number, epoch)
            for number, rows in curves.items()
            for epoch, row in enumerate(rows)
            if name in row
        ]
        if found:
            best, number, epoch = max(found, key=lambda each: (each[0], -each[1], -each[2]))
            print(f"{words}: {best:.4f} ({trial_id(number)}, epoch {epoch + 1})")
    seconds = [each for trial in result.trials for each in result.seconds(trial.number)]
    if seconds:
        mean = sum(seconds) / len(seconds)
        print(f"mean time of an epoch (its visits one after the other): {mean:.3g} s")


def open_shell(result: Result) -> None:
    """A Python shell with the result: IPython's, where that is installed."""
    names: Mapping[str, Any] = {"result": result}
    hello = "`result` is what was found: result.best, result.leaderboard(), result.load(0)"
    if find_spec("IPython"):
        importlib.import_module("IPython").embed(
            header=hello, user_ns=dict(names), colors="neutral"
        )
    else:
        code.interact(banner=hello, local=dict(names), exitmsg="")
