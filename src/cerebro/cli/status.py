"""`cerebro status`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from cerebro.cli.directory import find_driver, is_starting, open_directory
from cerebro.cli.table import format_columns
from cerebro.run.history import RunHistory, TrialHistory, ranking
from cerebro.run.recovery import load_history
from cerebro.run.stacks import describe_stacks
from cerebro.storage.lock import Holder
from cerebro.track.board import FAILED
from cerebro.track.text import clean, show, show_params
from cerebro.types import TrialStatus, trial_id

#: Running and failed trials told one by one.
_TOLD = 20


def show_status(path: Path) -> None:
    """Write where a run stands to standard output; nothing is changed."""
    store = open_directory(path)
    if is_starting(store):
        print(format_columns([("run", store.local_path()), ("state", "starting its workers")]))
        return
    driver = find_driver(store)
    document, history = load_history(store)
    epochs = int(str(document.spec["epochs"]))
    trials = list(history.trials.values())
    # What a dead driver left behind does not run.
    working = "running" if driver is not None else "unfinished"
    print(
        format_columns(
            [
                ("run", f"{clean(str(document.spec['name']))}  {store.local_path()}"),
                ("task", clean(document.task)),
                ("state", _state(history, driver)),
                ("visits", _progress(trials, epochs * history.steps)),
                ("trials", _count(trials, working)),
                *_stacks(history),
                ("best", _best(history)),
            ]
        )
    )
    running = [trial for trial in trials if trial.status is TrialStatus.RUNNING]
    _show_trials(working, [_line(trial, history, epochs) for trial in running])
    failed = [trial for trial in trials if trial.status in FAILED]
    _show_trials("failed", [_failure(trial) for trial in failed])


def _state(history: RunHistory, driver: Holder | None) -> str:
    if history.is_finished:
        return "finished"
    if driver is not None:
        return f"running: pid {driver.pid} on {clean(driver.host)} since {clean(driver.started)}"
    return "stopped: no driver is alive; the command that started it resumes it"


def _progress(trials: Sequence[TrialHistory], visits: int) -> str:
    """A trial that ended early leaves no work behind."""
    total = visits * len(trials)
    done = sum(visits if trial.status.is_final else trial.visits for trial in trials)
    return f"{done} of {total} training visits ({100 * done // max(1, total)} %)"


def _count(trials: Sequence[TrialHistory], working: str) -> str:
    counts = Counter(trial.status for trial in trials)
    words = {status: str(status) for status in TrialStatus} | {TrialStatus.RUNNING: working}
    parts = [f"{counts[status]} {word}" for status, word in words.items() if counts[status]]
    return f"{len(trials)}: {', '.join(parts)}" if parts else "none yet"


def _stacks(history: RunHistory) -> list[tuple[str, str]]:
    sizes = [len(stack.trials) for stack in history.stacks.values() if not stack.is_dissolved]
    return [("stacks", describe_stacks(sizes, len(history.trials)))] if history.stacks else []


def _best(history: RunHistory) -> str:
    ranked = ranking(history)
    best = ranked[0].best_epoch(history.metric, history.mode) if ranked else None
    if best is None or ranked[0].status in FAILED:
        return "none yet"
    value = ranked[0].epochs[best].metrics[history.metric]
    name = trial_id(ranked[0].number)
    params = clean(show_params(ranked[0].params), 120)
    return f"{name}  {clean(history.metric, 40)} {show(value)} in epoch {best + 1}  [{params}]"


def _line(trial: TrialHistory, history: RunHistory, epochs: int) -> list[str]:
    best = trial.best_epoch(history.metric, history.mode)
    value = None if best is None else trial.epochs[best].metrics[history.metric]
    return [
        trial_id(trial.number),
        f"{len(trial.epochs)}/{epochs} epochs",
        f"{trial.visits}/{epochs * history.steps} visits",
        f"{clean(history.metric, 40)} {show(value)}",
        f"[{clean(show_params(trial.params), 120)}]",
    ]


def _failure(trial: TrialHistory) -> list[str]:
    params = clean(show_params(trial.params), 80)
    why = f"{trial.status}: {clean(trial.error or 'unknown')}"
    return [trial_id(trial.number), f"[{params}]", why]


def _show_trials(title: str, rows: Sequence[Sequence[str]]) -> None:
    if not rows:
        return
    print(f"\n{title}:")
    print(format_columns(rows[:_TOLD], indent="  "))
    if len(rows) > _TOLD:
        print(f"  … and {len(rows) - _TOLD} more")
