"""`cerebro run`."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from cerebro.backend.gang.excuse import excused
from cerebro.backend.gang.rendezvous import Kind, Rendezvous, find_lone_launcher
from cerebro.cli.located import located
from cerebro.cli.opening import open_experiment
from cerebro.cli.recipe import open_shell, ready, sampled, tell_best
from cerebro.cli.recipe_options import RecipeWish
from cerebro.cli.table import print_trials
from cerebro.config.files import find_name, is_recipe_file, load_file, show_file
from cerebro.config.recipe import RecipeExperiment
from cerebro.config.schema import ExperimentConfig
from cerebro.errors import CerebroError, DiskFullError, RunInterrupted
from cerebro.experiment import Experiment
from cerebro.results import Result, TrialResult
from cerebro.run.recovery import load_history
from cerebro.search import Space
from cerebro.storage import DirectoryStore, Store, layout, open_store
from cerebro.track.board import FAILED
from cerebro.track.efficiency import Summary
from cerebro.track.plain import closing_lines
from cerebro.track.stderr import StderrHandler
from cerebro.track.text import clean, show_params

#: Failed trials told one by one.
_TOLD = 5
_AS_WRITTEN = RecipeWish()


def run_experiment(
    path: Path,
    overrides: Sequence[str],
    wish: RecipeWish = _AS_WRITTEN,
    *,
    fresh: bool,
    force: bool,
    strict: bool,
    quiet: bool,
    spot: Rendezvous | None = None,
) -> int:
    """Carry the experiment to its end, or to where it is stopped; gives the exit code."""
    chatty = logging.DEBUG if wish.is_verbose else logging.INFO
    tell_on_stderr(logging.WARNING if quiet else chatty)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, _stop_before_start)
    is_leading = spot is None or spot.is_leading
    overrides = [*overrides, *wish.overrides(is_recipe=is_recipe_file(path))]
    if wish.is_shown:
        shown = show_file(load_file(path, overrides), path, overrides)
        print(shown if is_leading else "", end="")
        return 0
    with resumable(path, overrides, spot), excused(spot, find_name(path, overrides)):
        config = load_file(path, overrides)
        with located(config, path, overrides):
            config = ready(config, wish, is_leading=is_leading and not quiet)
        experiment = open_experiment(config, path, spot=spot)
        was_finished = not fresh and _is_finished(experiment.store)
        began = _begun_at(experiment.store)
        is_own = spot is None and find_lone_launcher(os.environ) is None
        if sys.stderr.isatty() and not was_finished and not quiet and is_own:
            _say_start(experiment.count_workers(config.device))
        with located(config, path, overrides), sampled(config, spot, experiment.store, fresh):
            result = fit_experiment(
                experiment, config, progress=not quiet, fresh=fresh, force=force
            )
    if not is_leading:
        return 0
    # One that had failed altogether begins anew with other code.
    was_finished = was_finished and began == _begun_at(experiment.store)
    if was_finished:
        print(f"run {config.name} is finished already; --fresh starts a new one.")
    if was_finished or quiet or not _is_one_output():
        _show_result(result)
    if isinstance(config, RecipeExperiment):
        tell_best(result)
    code = _conclude(result, strict=strict)
    if wish.is_interactive:
        open_shell(result)
    return code


def _say_start(workers: int) -> None:
    """They import the task and its framework first: seconds in which nothing would be seen."""
    print(f"starting {workers} worker{'s' if workers > 1 else ''}", file=sys.stderr)


def _begun_at(store: Store) -> object:
    """Tells one run from another of the same name."""
    if isinstance(store, DirectoryStore):
        path = store.local_path(layout.RUN)
        return os.stat(path).st_mtime_ns if os.path.exists(path) else None
    return store.read(layout.RUN) if store.exists(layout.RUN) else None


def fit_experiment(
    experiment: Experiment,
    config: ExperimentConfig,
    *,
    progress: bool,
    fresh: bool = False,
    force: bool = False,
) -> Result:
    """Train what a file describes."""
    return experiment.run_fit(
        config.task,
        Space(config.space),
        num_epochs=config.epochs,
        metric=config.metric,
        mode=config.mode,
        search=config.search,
        num_trials=config.num_trials,
        batch_size=config.batch_size,
        global_batch_size=config.global_batch_size,
        parallel=config.parallel,
        workers_per_trial=config.workers_per_trial,
        stopper=config.stopper,
        goal=config.goal,
        budget=config.budget,
        concurrent=config.concurrent,
        seeds=config.seeds,
        folds=config.folds,
        constraints=config.constraints,
        warm_start=config.warm_start,
        learn_from=config.learn_from,
        checkpoint=config.checkpoint,
        device=config.device,
        stack=config.stack,
        same_order=config.same_order,
        keep_top=config.keep_top,
        progress=progress,
        fresh=fresh,
        force=force,
    )


def _is_finished(store: Store) -> bool:
    return store.exists(layout.RUN) and load_history(store)[1].is_finished


def _is_one_output() -> bool:
    """Whether progress, which ends with the result, went where the result goes."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):
        return False


def _show_result(result: Result) -> None:
    print_trials(result)
    if result.summary:
        for line in closing_lines(Summary(**result.summary), result.is_resumed):
            print(line)


def _conclude(result: Result, *, strict: bool) -> int:
    """Tell of failures and where everything is; gives the exit code."""
    trials = result.trials
    failed = [trial for trial in trials if trial.status in FAILED]
    _tell_failures(failed, len(trials), result.path)
    store = open_store(result.path)
    for label, name in (
        ("report", layout.REPORT),
        ("trace", layout.TRACE),
        ("tensorboard", layout.TENSORBOARD),
    ):
        where = f"{result.path}/{name}"
        if store.exists(name):
            print(f"{label + ':':13}{_viewer(where) if name == layout.TENSORBOARD else where}")
    print(f"{'results:':13}cerebro results {shlex.quote(result.path)}")
    if len(failed) == len(trials):
        raise CerebroError(f"all {len(trials)} trials failed.")
    return 1 if failed and strict else 0


def _viewer(where: str) -> str:
    hint = "" if find_spec("tensorboard") else "  (pip install 'cerebro[tensorboard]' first)"
    return f"tensorboard --logdir {shlex.quote(where)}{hint}"


def _tell_failures(failed: Sequence[TrialResult], trials: int, path: str) -> None:
    if not failed:
        return
    print(f"{len(failed)} of {trials} trials failed:")
    for trial in failed[:_TOLD]:
        params = clean(show_params(trial.params), 80)
        print(f"  {trial.id} [{params}] {trial.status}: {clean(trial.error or 'unknown')}")
    if len(failed) > _TOLD:
        print(f"  … and {len(failed) - _TOLD} more")
    print(f"  more about one: cerebro results {shlex.quote(path)} --trial {failed[0].id}")


@contextlib.contextmanager
def resumable(path: Path, overrides: Sequence[str], spot: Rendezvous | None) -> Iterator[None]:
    """What stops a run gets the command that resumes it: the same, but never `--fresh`."""
    try:
        yield
    except (RunInterrupted, DiskFullError) as error:
        if spot is not None and spot.kind is not Kind.FLAGS:
            # Its launcher's command does, which is not known here.
            raise
        flags = [] if spot is None else spot.flags()
        command = shlex.join(["cerebro", "run", str(path), *overrides, *flags])
        told = type(error)(f"{error} To resume: {command}")
        told.exit_code = error.exit_code
        raise told from error


def tell_on_stderr(level: int) -> None:
    """Show what is told from this level on, each line once."""
    logger = logging.getLogger("cerebro")
    for handler in list(logger.handlers):
        if isinstance(handler, StderrHandler):
            logger.removeHandler(handler)
    logger.addHandler(StderrHandler(level))
    logger.setLevel(level)
    logger.propagate = False


def _stop_before_start(number: int, frame: FrameType | None) -> None:
    """Batch systems restart what exits with this code; a run has handlers of its own."""
    raise SystemExit(DiskFullError.exit_code)
