"""`cerebro status`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

from cerebro.cli.directory import is_starting, open_directory
from cerebro.cli.table import format_columns
from cerebro.run.history import RunHistory, TrialHistory
from cerebro.run.ranking import aim_of, criteria_of, ending_of, rank_trials
from cerebro.run.recovery import load_history
from cerebro.run.stacks import describe_stacks
from cerebro.steering import find_driver
from cerebro.storage import Store, layout
from cerebro.storage.journal import read as read_journal
from cerebro.storage.lock import Holder
from cerebro.track.standings import show_status as show_word
from cerebro.track.text import clean, show, show_params, show_seconds
from cerebro.types import Json, TrialStatus, trial_id

#: Running and failed trials told one by one; commands.
_TOLD = 20
_COMMANDS = 5


def show_status(path: str) -> None:
    """Write where a run stands to standard output; nothing is changed."""
    store = open_directory(path)
    if is_starting(store):
        print(format_columns([("run", store.where()), ("state", "starting its workers")]))
        return
    driver = find_driver(store)
    document, history = load_history(store)
    spec = cast("Mapping[str, Any]", document.spec)
    trials = list(history.trials.values())
    # What a dead driver left behind does not run.
    working = "running" if driver is not None else "unfinished"
    print(
        format_columns(
            [
                ("run", f"{clean(str(spec['name']))}  {store.where()}"),
                ("task", clean(document.task)),
                ("state", _state(history, driver)),
                *_ending(history, spec),
                ("search", _search(spec)),
                ("visits", _progress(trials, history)),
                *_budget(history, spec),
                ("trials", _count(trials, working)),
                *_stacks(history),
                ("best", _best(history, spec)),
            ]
        )
    )
    running = [trial for trial in trials if trial.status is TrialStatus.RUNNING]
    _show_trials(working, [_line(trial, history) for trial in running])
    _show_waiting(trials, history)
    failed = [trial for trial in trials if trial.status.is_failure]
    _show_trials("failed", [_failure(trial) for trial in failed])
    _show_commands(store)


def _state(history: RunHistory, driver: Holder | None) -> str:
    if history.is_finished:
        return "finished"
    if driver is not None:
        return f"running: pid {driver.pid} on {clean(driver.host)} since {clean(driver.started)}"
    return "stopped: no driver is alive; the command that started it resumes it"


def _ending(history: RunHistory, spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    ending = ending_of(history, spec)
    return [] if ending is None else [("ending", str(ending))]


def _search(spec: Mapping[str, Any]) -> str:
    """What is tried, how far, and until when: `tpe + asha (eta 3), until val_accuracy >= 0.97`."""
    stopper = spec["stopper"]
    several = stopper.get("stoppers", [stopper]) if stopper else []
    parts = [_named(spec["search"], spec["search_options"])]
    parts += [
        _named(each["name"], {k: v for k, v in each.items() if k != "name"}) for each in several
    ]
    text = " + ".join(parts)
    if spec["goal"]:
        text += f", until {aim_of(spec['goal'])}"
    for name, count in (("seeds", spec["seeds"]), ("folds", spec["folds"])):
        text += f", {count} {name} each" if count > 1 else ""
    return text


#: Options that the run's own lines tell.
_TOLD_ELSEWHERE = ("metric", "mode", "epochs", "max_epochs", "seed", "num_trials")


def _named(name: str, options: Mapping[str, Json]) -> str:
    told = [
        f"{clean(key, 40)} {show(value)}"
        for key, value in options.items()
        if key not in _TOLD_ELSEWHERE and isinstance(value, str | int | float)
    ]
    return f"{clean(name, 40)} ({', '.join(told)})" if told else clean(name, 40)


def _budget(history: RunHistory, spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was used of what the run may take."""
    budget = spec["budget"]
    trials = history.trials.values()
    own = sum(not epoch.is_inherited for trial in trials for epoch in trial.epochs)
    visits = sum(trial.visits - trial.parent_visits for trial in trials)
    used = {"trials": len(history.trials), "epochs": own, "visits": visits}
    parts = [f"{used[kind]} of {budget[kind]} {kind}" for kind in used if kind in budget]
    if "seconds" in budget:
        spent_s, most_s = history.spent_s + history.driver_s, budget["seconds"]
        left = show_seconds(max(0.0, most_s - spent_s))
        parts.append(f"{show_seconds(spent_s)} of {show_seconds(most_s)}, {left} left")
    return [("budget", f"{', '.join(parts)} used")] if parts else []


def _progress(trials: Sequence[TrialHistory], history: RunHistory) -> str:
    """A trial that ended early leaves no work behind."""
    visits = history.epochs * history.steps
    total = visits * len(trials)
    done = sum(visits if trial.status.is_final else trial.visits for trial in trials)
    return f"{done} of {total} training visits ({100 * done // max(1, total)} %)"


def _count(trials: Sequence[TrialHistory], working: str) -> str:
    counts = Counter(_word(trial, working) for trial in trials)
    words = [
        show_word(status, is_held=is_held) for status in TrialStatus for is_held in (False, True)
    ]
    order = dict.fromkeys(working if word == "running" else word for word in words)
    parts = [f"{counts[word]} {word}" for word in order if counts[word]]
    return f"{len(trials)}: {', '.join(parts)}" if parts else "none yet"


def _word(trial: TrialHistory, working: str) -> str:
    is_running = trial.status is TrialStatus.RUNNING
    return working if is_running else show_word(trial.status, is_held=trial.is_held)


def _stacks(history: RunHistory) -> list[tuple[str, str]]:
    sizes = [len(stack.trials) for stack in history.stacks.values() if not stack.is_dissolved]
    return [("stacks", describe_stacks(sizes, len(history.trials)))] if history.stacks else []


def _best(history: RunHistory, spec: Mapping[str, Any]) -> str:
    best = rank_trials(history, criteria_of(spec)).best
    if best is None or best.best_epoch is None:
        return "none yet"
    params = clean(show_params(best.params), 120)
    value = f"{clean(history.metric, 40)} {show(best.metric)} in epoch {best.best_epoch + 1}"
    return f"{trial_id(best.trial)}  {value}  [{params}]"


def _line(trial: TrialHistory, history: RunHistory) -> list[str]:
    best = trial.best_epoch(history.metric, history.mode)
    value = None if best is None else trial.epochs[best].metrics[history.metric]
    target = trial.target or history.epochs
    return [
        trial_id(trial.number),
        f"{len(trial.epochs)}/{target} epochs",
        f"{trial.visits}/{target * history.steps} visits",
        f"{clean(history.metric, 40)} {show(value)}",
        f"[{clean(show_params(trial.params), 120)}]",
    ]


def _show_waiting(trials: Sequence[TrialHistory], history: RunHistory) -> None:
    """Those that a person paused one by one; those that wait for a promotion by epoch."""
    paused = [trial for trial in trials if trial.status is TrialStatus.PAUSED]
    held = [_line(trial, history) for trial in paused if trial.is_held]
    _show_trials("paused", held)
    rungs = Counter(len(trial.epochs) for trial in paused if not trial.is_held)
    lines = [
        [f"{count} trial{'s' if count > 1 else ''}", f"after epoch {epochs} of {history.epochs}"]
        for epochs, count in sorted(rungs.items())
    ]
    _show_trials("waiting for a promotion", lines)


def _failure(trial: TrialHistory) -> list[str]:
    params = clean(show_params(trial.params), 80)
    why = f"{show_word(trial.status)}: {clean(trial.error or 'unknown')}"
    return [trial_id(trial.number), f"[{params}]", why]


def _show_commands(store: Store) -> None:
    """The last ones that people sent, and what became of them."""
    records = read_journal(store).records if store.exists(layout.JOURNAL) else []
    commands = [record for record in records if record["type"] == "command"]
    _show_trials("last commands", [_command(each) for each in commands[-_COMMANDS:]])


def _command(record: Mapping[str, Json]) -> list[str]:
    words = [clean(str(record["command"] or "unreadable"), 20)]
    if record["trial"] is not None:
        words.append(trial_id(cast(int, record["trial"])))
    if record["params"]:
        words.append(clean(show_params(cast("dict[str, Json]", record["params"])), 80))
    if record["epochs"] is not None:
        words.append(f"epochs={record['epochs']}")
    refused = record["refused"]
    outcome = "taken" if refused is None else f"refused: {clean(str(refused))}"
    return [" ".join(words), f"by {clean(str(record['by']), 40)}", outcome]


def _show_trials(title: str, rows: Sequence[Sequence[str]]) -> None:
    if not rows:
        return
    print(f"\n{title}:")
    print(format_columns(rows[:_TOLD], indent="  "))
    if len(rows) > _TOLD:
        print(f"  … and {len(rows) - _TOLD} more")
