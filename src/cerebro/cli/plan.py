"""`cerebro plan`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cerebro.cli.estimate import Measured, estimate_s, measure
from cerebro.cli.located import located
from cerebro.cli.table import format_bytes, format_columns
from cerebro.config.machine import default_workers
from cerebro.config.schema import ExperimentConfig, load_experiment
from cerebro.data import Dataset, open_dataset
from cerebro.errors import CerebroError
from cerebro.run.recovery import load_history
from cerebro.run.request import Request, resolve
from cerebro.run.spec import Checkpointing, RunSpec, read_document, spec_changes
from cerebro.run.stacks import describe_stacks
from cerebro.search import Sampler, Space, make_sampler
from cerebro.storage import Store, layout, open_store
from cerebro.storage.journal import read as read_journal
from cerebro.track.text import clean, show_params, show_seconds
from cerebro.types import Split, trial_id

#: Trials shown.
_SHOWN = 5
#: Up to so many trials each one's cost is looked up; above, all cost the mean.
_LOOKED_UP = 10_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run of an experiment would do."""

    config: ExperimentConfig
    sampler: Sampler
    trials: int
    train_shards: int
    val_shards: int
    train_bytes: int
    val_bytes: int
    workers: int

    @property
    def train_visits(self) -> int:
        return self.trials * self.config.epochs * self.train_shards

    @property
    def eval_visits(self) -> int:
        return self.trials * self.config.epochs * self.val_shards

    @property
    def checkpoints(self) -> int:
        per_epoch = {"visit": self.train_shards, "epoch": 1, "off": 0}
        return self.trials * self.config.epochs * per_epoch[self.config.checkpoint]


def show_plan(path: Path, overrides: Sequence[str]) -> None:
    """Write what would run to standard output; nothing else is written."""
    config = load_experiment(path, overrides)
    with located(config, path, overrides):
        dataset = open_dataset(config.data)
        spec = _specify(config, dataset)
    plan = make_plan(config, dataset)
    store = open_store(config.store).child(config.name)
    measured, source = find_measured(config, dataset)
    rows = [
        ("run", f"{config.name}  {store.local_path()}"),
        ("task", f"{clean(config.task)} (not imported: a plan runs no code of yours)"),
        ("trials", f"{plan.trials} by {config.search} search"),
        *_trials(plan),
        ("visits", _visits(plan)),
        ("stacks", _stacks(plan, store)),
        ("data", _data(plan)),
        ("checkpoints", _checkpoints(plan, measured)),
        ("workers", f"{plan.workers} ({config.backend})"),
        ("time", _time(plan, measured, source)),
        *_earlier(plan, spec, store),
    ]
    print(format_columns(rows))


def make_plan(config: ExperimentConfig, dataset: Dataset) -> Plan:
    """Count what a run would do."""
    sampler = make_sampler(
        config.search, Space(config.space), seed=config.seed, num_trials=config.num_trials
    )
    train, val = dataset.shards(Split.TRAIN), dataset.shards(Split.VAL)
    return Plan(
        config=config,
        sampler=sampler,
        trials=count_trials(sampler),
        train_shards=len(train),
        val_shards=len(val),
        train_bytes=sum(shard.bytes for shard in train),
        val_bytes=sum(shard.bytes for shard in val),
        workers=config.workers or default_workers(config.device, config.threads_per_worker),
    )


def count_trials(sampler: Sampler) -> int:
    """How many trials it proposes, in few questions: a grid may have billions.

    >>> from cerebro.search import parse_space
    >>> count_trials(make_sampler("grid", parse_space({"a": list(range(1000)), "b": [1, 2, 3]})))
    3000
    """
    high = 1
    while sampler.ask(high - 1) is not None:
        high *= 2
    low = high // 2
    # Trial low - 1 exists, trial high - 1 does not.
    while high - low > 1:
        middle = (low + high) // 2
        if sampler.ask(middle - 1) is None:
            high = middle
        else:
            low = middle
    return low


def _trials(plan: Plan) -> list[tuple[str, str]]:
    found = [("", _trial(plan, number)) for number in range(min(_SHOWN, plan.trials))]
    if plan.trials > _SHOWN:
        found.append(("", f"… and {plan.trials - _SHOWN} more"))
    return found


def _trial(plan: Plan, number: int) -> str:
    params = plan.sampler.ask(number) or {}
    return f"{trial_id(number)}  {clean(show_params(params), 120)}"


def _visits(plan: Plan) -> str:
    total = plan.train_visits + plan.eval_visits
    return (
        f"{total}: {plan.train_visits} train + {plan.eval_visits} eval "
        f"({plan.config.epochs} epochs x {plan.train_shards} train shards, "
        f"{plan.val_shards} val shards)"
    )


def _stacks(plan: Plan, store: Store) -> str:
    setting = plan.config.stack
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
    once = plan.train_bytes + plan.val_bytes
    read = plan.trials * plan.config.epochs * once
    return f"{format_bytes(once)} on disk, {format_bytes(read)} read by all visits together"


def _checkpoints(plan: Plan, measured: Measured | None) -> str:
    if not plan.checkpoints:
        return "none: a run that is stopped starts its unfinished trials over"
    size = "of a size that is unknown until a visit has been trained"
    if measured is not None and measured.state_bytes is not None:
        total = format_bytes(plan.checkpoints * measured.state_bytes)
        size = f"of {format_bytes(measured.state_bytes)}, {total} in all"
    return f"{plan.checkpoints} writes {size}"


def find_measured(config: ExperimentConfig, dataset: Dataset) -> tuple[Measured | None, str]:
    """What visits cost: in the run of this name, or in the likest other one of the store."""
    store = open_store(config.store)
    found: list[tuple[bool, bool, str, str]] = []
    for name in store.list():
        # Whatever else is in the store is no concern of a plan.
        with contextlib.suppress(CerebroError):
            document = read_document(store.child(name))
            if document is not None and document.spec.get("data_digest") == dataset.digest:
                alike = (name == config.name, document.task == config.task, document.created)
                found.append((*alike, name))
    for is_same, is_same_task, _, name in sorted(found, reverse=True):
        with contextlib.suppress(CerebroError):
            records = read_journal(store.child(name)).records
            measured = measure(records, len(dataset.shards(Split.VAL)))
            if measured is not None:
                task = "" if is_same_task else ", which has another task"
                return measured, "the run of this name" if is_same else f"run {name}{task}"
    return None, ""


def _time(plan: Plan, measured: Measured | None, source: str) -> str:
    share = -(-(plan.train_visits + plan.eval_visits) // plan.workers)
    if measured is None:
        return (
            f"unknown until a run of this store has trained a visit on this data: start it, then "
            f"plan again; {share} visits per worker"
        )
    if plan.trials <= _LOOKED_UP:
        params = (plan.sampler.ask(number) or {} for number in range(plan.trials))
        seconds = [measured.seconds_of(found) for found in params]
        whole = 1.0
    else:
        seconds = [measured.mean_s] * _LOOKED_UP
        whole = plan.trials / _LOOKED_UP
    makespan_s = whole * estimate_s(
        seconds,
        workers=plan.workers,
        epochs=plan.config.epochs,
        train_shards=plan.train_shards,
        val_shards=plan.val_shards,
        eval_share=measured.eval_share,
    )
    long = "under 1 s" if makespan_s < 1 else f"about {show_seconds(makespan_s)}"
    return (
        f"{long} from the first visit to the last, at "
        f"{1000 * measured.mean_s:.3g} ms a training visit in {source}; "
        f"{share} visits per worker"
    )


def _earlier(plan: Plan, spec: RunSpec, store: Store) -> list[tuple[str, str]]:
    """What is there already, and what `cerebro run` makes of it."""
    if not store.exists(layout.RUN):
        return []
    document, history = load_history(store)
    changed = spec_changes(document.spec, spec)
    if changed:
        text = f"a run of this name differs in {', '.join(changed)}: `cerebro run` refuses"
        return [("earlier", f"{text} without --fresh or --force")]
    if history.is_finished:
        return [("earlier", "a run of this name is finished: `cerebro run` returns at once")]
    done = sum(trial.visits for trial in history.trials.values())
    text = f"a run of this name has {done} of {plan.train_visits} training visits"
    return [("earlier", f"{text}: `cerebro run` resumes it")]


def make_request(config: ExperimentConfig) -> Request:
    """What an experiment file asks for."""
    return Request(
        name=config.name,
        space=Space(config.space),
        search=config.search,
        num_trials=config.num_trials,
        epochs=config.epochs,
        batch_size=config.batch_size,
        metric=config.metric,
        mode=config.mode,
        seed=config.seed,
        threads_per_worker=config.threads_per_worker,
        checkpoint=Checkpointing(config.checkpoint),
        stack=config.stack,
        same_order=config.same_order,
    )


def _specify(config: ExperimentConfig, dataset: Dataset) -> RunSpec:
    workers = config.workers or default_workers(config.device, config.threads_per_worker)
    return resolve(make_request(config), dataset, workers=workers).spec
