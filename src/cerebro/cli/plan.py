"""`cerebro plan`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from cerebro.cli.located import located
from cerebro.cli.measuring import measure_now
from cerebro.cli.recipe import ready
from cerebro.cli.recipe_options import RecipeWish
from cerebro.cli.rehearsal import describe_rehearsal
from cerebro.cli.table import format_bytes, format_columns
from cerebro.config.files import load_file
from cerebro.config.machine import default_workers
from cerebro.config.schema import ExperimentConfig
from cerebro.data import open_dataset
from cerebro.results import Result
from cerebro.run.earlier import Place, find_measured
from cerebro.run.estimate import Measured
from cerebro.run.outlook import Plan, predict_s
from cerebro.run.recovery import load_history
from cerebro.run.rehearsal import MOST_VISITS, rehearse
from cerebro.run.request import resolve
from cerebro.run.spec import RunSpec, spec_changes
from cerebro.run.stacks import describe_stacks
from cerebro.search.budget import written_duration
from cerebro.storage import Store, layout, open_store
from cerebro.track.text import clean, show_count, show_params, show_seconds
from cerebro.types import Json, Mode, trial_id

#: Trials shown.
_SHOWN = 5


def show_plan(
    path: Path, overrides: Sequence[str], *, is_measured: bool = False, is_simulated: bool = False
) -> None:
    """Write what would run to standard output.

    Nothing else is written, but for the data of a recipe, which are prepared unless they are there;
    and nothing trained, unless it `is_measured`: then a few visits are trained for real, in a place
    that is removed again. Where it `is_simulated`, the search is played through on a simulated
    clock.
    """
    config = load_file(path, overrides)
    with located(config, path, overrides):
        config = ready(config, RecipeWish(), is_leading=False)
        plan = make_plan(config)
        if is_measured:
            measured, source = measure_now(config, path, plan.sampler)
        else:
            measured, source = find_measured(plan.place, plan.dataset)
    store = open_store(config.store).child(config.name)
    imported = "" if is_measured else " (not imported: a plan runs no code of yours)"
    rows = [
        ("run", f"{config.name}  {store.where()}"),
        ("task", f"{clean(config.task)}{imported}"),
        ("trials", f"{plan.trials} by {plan.spec.search} search{_repeats(plan)}"),
        *_trials(plan),
        *_limits(plan.spec),
        ("visits", _visits(plan)),
        ("stacks", _stacks(plan, store)),
        ("data", _data(plan)),
        ("checkpoints", _checkpoints(plan, measured)),
        ("workers", f"{plan.workers} ({config.backend})"),
        ("time", _time(plan, measured, source)),
        *(_search(plan, measured) if is_simulated else []),
        *_earlier(plan, store),
    ]
    print(format_columns(rows))


def make_plan(config: ExperimentConfig) -> Plan:
    """What a run would do; UsageError where it cannot be carried out."""
    dataset = open_dataset(config.data)
    request = config.to_request()
    if config.learn_from is not None:
        known = Result.open(config.learn_from).outcomes(config.metric)
        request = dataclasses.replace(request, known=known)
    workers = config.workers or default_workers(config.device, config.threads_per_worker)
    spec, sampler, _ = resolve(request, dataset, workers=workers)
    place = Place(open_store(config.store), config.name, config.task)
    return Plan(request, dataset, place, spec, sampler, workers)


def _search(plan: Plan, measured: Measured | None) -> list[tuple[str, str]]:
    if plan.train_visits + plan.eval_visits > MOST_VISITS:
        return [("search", f"not simulated: it may have more than {MOST_VISITS} visits")]
    where = plan.dataset, plan.place
    found = rehearse(plan.request, *where, workers=plan.workers, measured=measured)
    return describe_rehearsal(*found, measured)


def _repeats(plan: Plan) -> str:
    if plan.repeats == 1:
        return ""
    what = "folds" if plan.spec.folds else "seeds"
    return f": {plan.sampler.num_trials} configurations x {plan.repeats} {what}"


def _trials(plan: Plan) -> list[tuple[str, str]]:
    # What an adaptive search proposes costs, and depends on results.
    shown = 1 if plan.sampler.is_adaptive else _SHOWN
    proposals = plan.sampler.num_trials or 0
    found = [("", _trial(plan, number)) for number in range(min(shown, proposals))]
    if proposals > shown:
        why = ", which depend on results" if plan.sampler.is_adaptive else ""
        found.append(("", f"… and {proposals - shown} more{why}"))
    return found


def _trial(plan: Plan, number: int) -> str:
    params = plan.sampler.ask(number) or {}
    return f"{trial_id(number * plan.repeats)}  {clean(show_params(params), 120)}"


def _limits(spec: RunSpec) -> list[tuple[str, str]]:
    """What ends trials, or the run, early."""
    rows: list[tuple[str, str]] = []
    if spec.stopper:
        rows.append(("stopper", describe_stopper(spec.stopper, spec.metric)))
    if spec.goal:
        sign = ">=" if spec.goal["mode"] == Mode.MAX else "<="
        reached = f"{clean(str(spec.goal['metric']))} {sign} {spec.goal['target']}"
        rows.append(("goal", f"{reached} ends the run"))
    if spec.budget:
        parts = [
            written_duration(amount) if kind == "seconds" else f"{amount:.0f} {kind}"
            for kind, amount in spec.budget.items()
        ]
        rows.append(("budget", " and ".join(parts)))
    return rows


def describe_stopper(stopper: Mapping[str, Json], metric: str) -> str:
    """A stopper and its options, in one line.

    >>> describe_stopper({"name": "asha", "metric": "loss", "mode": "min", "eta": 4}, "loss")
    'asha (eta 4)'
    """
    inner = stopper.get("stoppers")
    if isinstance(inner, list):
        return " and ".join(describe_stopper(each, metric) for each in inner)  # type: ignore[arg-type]
    own = {key: value for key, value in stopper.items() if key != "name" and value is not None}
    if own.get("metric") == metric:
        own = {key: value for key, value in own.items() if key not in ("metric", "mode")}
    options = ", ".join(f"{key} {value}" for key, value in own.items())
    return clean(f"{stopper['name']}{f' ({options})' if options else ''}", 120)


def _visits(plan: Plan) -> str:
    total, spec = plan.train_visits + plan.eval_visits, plan.spec
    train = show_count(spec.train_shards, "train shard")
    val = show_count(spec.val_shards, "val shard")
    return (
        f"{'at most ' if plan.is_open else ''}{total}: {plan.train_visits} train + "
        f"{plan.eval_visits} eval ({show_count(spec.epochs, 'epoch')} x {train}, {val})"
    )


def _stacks(plan: Plan, store: Store) -> str:
    setting = plan.spec.stack
    if setting is False:
        return "none: every trial is trained alone"
    if store.exists(layout.RUN):
        document, history = load_history(store)
        is_decided = any(trial.is_placed for trial in history.trials.values())
        if document.spec.get("stack") == setting and is_decided:
            sizes = [len(stack.trials) for stack in history.stacks.values()]
            return describe_stacks(sizes, len(history.trials))
    limit = f", {setting} trials each at most" if isinstance(setting, int) else ""
    return f"{'as asked' if limit else setting}{limit}: put together when the run begins"


def _data(plan: Plan) -> str:
    once = plan.epoch_bytes
    read = plan.epochs * once
    return f"{format_bytes(once)} on disk, {format_bytes(read)} read by all visits together"


def _checkpoints(plan: Plan, measured: Measured | None) -> str:
    if not plan.checkpoints:
        return "none: a run that is stopped starts its unfinished trials over"
    size = "of a size that is unknown until a visit has been trained"
    if measured is not None and measured.state_bytes is not None:
        total = format_bytes(plan.checkpoints * measured.state_bytes)
        size = f"of {format_bytes(measured.state_bytes)}, {total} in all"
    return f"{plan.checkpoints} writes {size}"


def _time(plan: Plan, measured: Measured | None, source: str) -> str:
    share = -(-(plan.train_visits + plan.eval_visits) // plan.workers)
    if measured is None:
        return (
            f"unknown until a run of this store has trained a visit on this data: plan with "
            f"--measure, or again when it has; {share} visits per worker"
        )
    makespan_s = predict_s(plan, measured)
    long = "under 1 s" if makespan_s < 1 else f"about {show_seconds(makespan_s)}"
    most = ", if no trial ends early," if plan.is_open else ""
    return (
        f"{long}{most} from the first visit to the last, at "
        f"{1000 * measured.mean_s:.3g} ms a training visit in {source}; "
        f"{share} visits per worker"
    )


def _earlier(plan: Plan, store: Store) -> list[tuple[str, str]]:
    """What is there already, and what `cerebro run` makes of it."""
    if not store.exists(layout.RUN):
        return []
    document, history = load_history(store)
    changed = spec_changes(document.spec, plan.spec)
    if changed:
        text = f"a run of this name differs in {', '.join(changed)}: `cerebro run` refuses"
        return [("earlier", f"{text} without --fresh or --force")]
    if history.is_finished:
        return [("earlier", "a run of this name is finished: `cerebro run` returns at once")]
    done = sum(trial.visits for trial in history.trials.values())
    text = f"a run of this name has {done} of {plan.train_visits} training visits"
    return [("earlier", f"{text}: `cerebro run` resumes it")]
