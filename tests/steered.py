"""A run written by hand, and a driver that answers as it is told: steering without training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from cerebro.run.spec import RunDocument
from cerebro.search import parse_space
from cerebro.storage import DirectoryStore, inbox
from cerebro.storage.bell import Bell
from cerebro.storage.inbox import Command
from cerebro.storage.journal import Journal
from cerebro.storage.lock import RunLock

SPACE: dict[str, object] = {"lr": [0.1, 0.01], "width": {"randint": [8, 64]}, "kind": "mlp"}
SPEC: dict[str, Any] = {
    "name": "toy",
    "train_shards": 1,
    "val_shards": 0,
    "epochs": 2,
    "metric": "train_loss",
    "mode": "min",
}
#: What each trial is; see `write_run`.
FINISHED, RUNNING, PAUSED, FAILED, PENDING = range(5)

Record = dict[str, Any]


def write_run(root: Path, *, is_finished: bool = False, **changes: object) -> Path:
    """A run with a trial of each kind: finished, running, paused, failed, pending."""
    store = DirectoryStore(root)
    spec = {**SPEC, "space": parse_space(SPACE).to_json(), **changes}
    RunDocument(
        spec=spec,
        task="tasks:Toy",
        task_digest="0" * 64,
        task_has_state=False,
        environment={},
        created="2026-08-01T12:00:00+00:00",
    ).write(store)
    params = {"lr": 0.1, "width": 16, "kind": "mlp"}
    records: list[Record] = [{"type": "driver"}]
    records += [{"type": "trial", "trial": n, "params": params, "start": 0} for n in range(5)]
    records += epoch(FINISHED, 0) + epoch(FINISHED, 1) + epoch(RUNNING, 0) + epoch(FAILED, 0)
    records += [
        {"type": "trial_end", "trial": FINISHED, "status": "finished"},
        {"type": "trial_end", "trial": FAILED, "status": "failed", "error": "oh"},
        {"type": "decision", "what": "pause", "trials": [PAUSED], "reason": "by hand"},
    ]
    if is_finished:
        records.append({"type": "done", "summary": {}})
    journal = Journal.open(store)
    journal.append(records)
    journal.close()
    return root


def epoch(trial: int, number: int) -> list[Record]:
    """The records of an epoch of one visit."""
    visit = {"type": "visit", "trial": trial, "epoch": number, "step": 0, "sums": {}}
    metrics = {"train_loss": 1.0}
    return [visit, {"type": "epoch", "trial": trial, "epoch": number, "metrics": metrics}]


def answer(command: Command, *, refused: str | None = None) -> Record:
    """The record that a driver writes of a command."""
    told = command.to_json()
    del told["format"], told["time"]
    return {"type": "command", **told, "refused": refused}


class FakeDriver:
    """Holds a run's lock and writes what `reply` makes of each command into its journal."""

    def __init__(self, root: Path, reply: Callable[[Command], list[Record]]) -> None:
        self._store = DirectoryStore(root)
        self._lock = RunLock(self._store)
        self._reply = reply

    def __enter__(self) -> FakeDriver:
        self._lock.acquire()
        self._journal = Journal.open(self._store)
        self._bell = Bell(self._store, self._look)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bell.close()
        self._journal.close()
        self._lock.release()

    def leave(self) -> list[Record]:
        """Give the run up without a word."""
        self._lock.release()
        return []

    def _look(self) -> None:
        for name, command in inbox.pending(self._store):
            assert isinstance(command, Command)
            self._journal.append(self._reply(command))
            inbox.remove(self._store, name)
