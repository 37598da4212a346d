"""Checks a run directory against what every run promises, from its files alone.

It shares no code with the driver: what the journal says is judged anew.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Mapping
from typing import Any, NoReturn

from cerebro.errors import CerebroError, CheckpointCorruptError
from cerebro.mop import shard_at
from cerebro.storage import Store, layout, open_store
from cerebro.storage.checkpoint import CheckpointRef, load
from cerebro.storage.journal import read
from cerebro.storage.stacked import members_of
from cerebro.testing.history_stacks import Stack, StackJudge, Trial
from cerebro.types import Mode, TrialStatus, stack_unit, unit_id

#: Times in the journal are rounded to microseconds.
_ROUNDING_S = 2e-6
_DECISIONS = ("halt", "pause", "promote", "stop")


class HistoryError(AssertionError):
    """A run directory breaks a promise; the message says which, and where."""


def check(run_dir: str | os.PathLike[str], *, is_settled: bool = True) -> None:
    """Raise `HistoryError` unless the run in `run_dir` kept every promise.

    Visits of a trial happened once each, in rotation order, one at a time; no worker had two at
    once; epochs follow from committed visits; checkpoints form a chain, and those that must exist
    do and are intact; no driver wrote after a later one.

    Args:
        is_settled: The run was finished or stopped in order, so that nothing may be left over. Say
            False between a kill and the next resume.

    >>> check("no/such/run")
    Traceback (most recent call last):
    cerebro.testing.history.HistoryError: no/such/run: it must have a run.json
    """
    _Checker(os.fspath(run_dir), is_settled).check()


class _Checker:
    def __init__(self, root: str, is_settled: bool) -> None:
        self._root = root
        self._is_settled = is_settled
        self._trials: dict[int, Trial] = {}
        self._drivers = 0
        self._commands: set[str] = set()
        self._is_done = False
        self._is_halted = False
        self._line = 0
        #: (start, end, record number) of the current driver's visits, by ("unit" or "worker", n).
        self._busy: dict[tuple[str, int], list[tuple[float, float, int]]] = {}

    def check(self) -> None:
        store = open_store(self._root)
        if not store.exists(layout.RUN):
            if self._is_settled:
                raise HistoryError(f"{self._root}: it must have a {layout.RUN}")
            return
        document = json.loads(store.read(layout.RUN))
        self._spec: dict[str, Any] = document["spec"]
        self._decided: dict[str, Any] = document.get("stacks") or {}
        self._steps = int(self._spec["train_shards"])
        self._judge = StackJudge(
            self._trials, self._steps, self._require, self._best_epoch, self._epoch
        )
        try:
            replay = read(store) if store.exists(layout.JOURNAL) else None
        except CerebroError as error:
            raise HistoryError(f"{self._root}: {error}") from error
        for record in replay.records if replay else []:
            self._line += 1
            self._apply(record)
        self._check_times()
        self._line = 0
        if self._is_settled and replay is not None and replay.is_torn:
            self._refuse("the journal must not end in the middle of a record")
        if self._is_done:
            self._check_done()
        for trial in self._trials.values():
            self._check_files(store, trial.number, trial.refs)
        for stack in self._judge.stacks.values():
            self._check_files(store, stack.unit, stack.refs)
            self._check_members(store, stack)
        if self._is_settled:
            self._check_strays()

    def _refuse(self, what: str, trial: int | None = None) -> NoReturn:
        where = f"{self._root}/{layout.JOURNAL} record {self._line}" if self._line else self._root
        raise HistoryError(f"{where}{'' if trial is None else f', {unit_id(trial)}'}: {what}")

    def _require(self, holds: bool, what: str, trial: int | None = None) -> None:
        if not holds:
            self._refuse(what, trial)

    # Records

    def _apply(self, record: Mapping[str, Any]) -> None:
        kind = record["type"]
        if kind == "driver":
            self._require(record["number"] == self._drivers, "driver numbers must count up")
            self._drivers += 1
            self._is_done = self._is_halted = False
            self._check_times()
        elif kind == "done":
            self._is_done = True
        elif kind == "stacks":
            self._check_decided(record)
            self._judge.compose(record)
        elif kind == "decision":
            self._decide(record)
        elif kind == "command":
            self._require(record["id"] not in self._commands, "a command must be taken once")
            self._commands.add(record["id"])
        elif "stack" in record:
            self._judge.retain(self._judge.apply(kind, record))
            if kind == "visit":
                self._note_times(stack_unit(record["stack"]), record)
        elif kind != "forced":
            self._apply_trial(kind, record)

    def _check_decided(self, record: Mapping[str, Any]) -> None:
        """What run.json says is what became of the first trials."""
        if self._judge.stacks or any(trial.is_placed for trial in self._trials.values()):
            return
        groups = self._decided.get("groups", [])
        sizes = [len(stack["trials"]) for stack in record["stacks"]]
        found = (len(record["trials"]), len(sizes), max(sizes, default=0))
        told = (
            sum(group["trials"] for group in groups),
            sum(group["stacks"] for group in groups),
            max((group["members"] for group in groups), default=0),
        )
        self._require(
            found == told,
            f"(trials, stacks, members of the largest) must be {told}, as {layout.RUN} says, but "
            f"are {found}",
        )

    def _apply_trial(self, kind: str, record: Mapping[str, Any]) -> None:
        number = record["trial"]
        if kind == "trial":
            self._require(number == len(self._trials), "trials must be added in order", number)
            trial = Trial(number, record["start"], target=record.get("epochs"))
            trial.repeat = record.get("repeat", 0)
            self._add(trial, record)
            return
        self._require(number in self._trials, "a trial must be added before it is named", number)
        trial = self._trials[number]
        if kind == "visit":
            self._visit(trial, record)
        elif kind == "epoch":
            self._epoch(trial, record)
        elif kind == "trial_end":
            told = trial.status if trial.is_ending else None
            # It may have been stopped while its last visit was on its way.
            known = (None, told, TrialStatus.STOPPED)
            self._require(trial.status in known, "a trial must end once", number)
            is_short = len(trial.metrics) < (trial.target or int(self._spec["epochs"]))
            is_early = record["status"] == "finished" and trial.is_held and is_short
            if trial.status is not TrialStatus.STOPPED and not is_early:
                trial.end(TrialStatus(record["status"]))
        elif kind == "dropped":
            trial.is_dropped = True
        elif kind == "left":
            self._judge.leave(trial, record)
        elif kind == "micro_batch":
            self._require(record["rows"] >= 1, "a batch must be split into rows", number)
        elif kind == "rollback":
            self._roll_back(trial, record["visits"])
        else:
            self._refuse(f"record type {kind!r} must be known")
        self._retain(trial)

    def _add(self, trial: Trial, record: Mapping[str, Any]) -> None:
        self._trials[trial.number] = trial
        if record.get("parent") is not None:
            parent = self._trials[record["parent"]]
            trial.visits = record["visits"]
            trial.inherited = min(trial.visits // self._steps, len(parent.metrics))
            trial.metrics = list(parent.metrics[: trial.inherited])
            trial.sums = {n: sums for n, sums in parent.sums.items() if n < trial.visits}
            self._require(
                trial.start == parent.start and trial.visits <= parent.visits,
                "a copy must go on where the other was",
                trial.number,
            )
        if record.get("checkpoint") is not None:
            ref = CheckpointRef.from_json(record["checkpoint"])
            self._require(ref.visits == trial.visits, "a copy must have its state", trial.number)
            trial.refs.append(ref)
        if record.get("replaces") is not None:
            self._stop(self._trials[record["replaces"]])
        if self._is_halted and record.get("command") is None:
            self._stop(trial)

    def _decide(self, record: Mapping[str, Any]) -> None:
        what = record["what"]
        self._is_halted = self._is_halted or what == "halt"
        trials = record.get("trials", list(self._trials))
        for trial in (self._trials[number] for number in trials):
            if what in ("stop", "halt"):
                self._stop(trial)
            elif what == "pause" and not trial.is_final:
                trial.held_by, trial.was_held = record["by"], True
            elif what == "promote":
                trial.promote(record)
            self._require(what in _DECISIONS, f"decision {what!r} must be known")
            self._retain(trial)

    def _stop(self, trial: Trial) -> None:
        if not trial.is_final:
            trial.end(TrialStatus.STOPPED)
        self._retain(trial)

    def _retain(self, trial: Trial) -> None:
        if trial.stack is not None:
            self._judge.retain(self._judge.stacks[trial.stack])
        else:
            trial.refs = self._retained(trial)

    def _visit(self, trial: Trial, record: Mapping[str, Any]) -> None:
        number = trial.number
        self._require(trial.stack is None, "a trial in a stack must have no visits alone", number)
        # One that is stopped may have had a visit under way.
        has_ended = trial.is_final and trial.status is not TrialStatus.STOPPED
        self._require(not has_ended, "an ended trial must have no more visits", number)
        epoch, step = divmod(trial.visits, self._steps)
        found = (record["epoch"], record["step"])
        self._require(
            found == (epoch, step), f"visit {(epoch, step)} must come next, not {found}", number
        )
        self._require(
            len(trial.metrics) == epoch, f"epoch {epoch} must begin after the one before", number
        )
        shard = shard_at(trial.start, epoch, step, self._steps)
        if self._spec.get("folds") and shard >= trial.repeat * self._spec["val_shards"]:
            shard += self._spec["val_shards"]
        self._require(
            record["shard"] == shard, f"shard {shard} must come, not {record['shard']}", number
        )
        self._note_times(number, record)
        trial.train(record["sums"], record)
        if record.get("checkpoint") is not None:
            self._checkpoint(trial, CheckpointRef.from_json(record["checkpoint"]), record)

    def _note_times(self, unit: int, record: Mapping[str, Any]) -> None:
        self._require(self._drivers > 0, "a visit must belong to a driver", unit)
        start, end = record["start_s"], record["end_s"]
        self._require(start <= end, "a visit must end after it starts", unit)
        for key in (("unit", unit), ("worker", record["worker"])):
            self._busy.setdefault(key, []).append((start, end, self._line))

    def _check_times(self) -> None:
        """No two visits of one unit, or on one worker, at once in the time of one driver."""
        for (kind, number), visits in self._busy.items():
            visits.sort()
            for (_, end, line), (start, _, other) in itertools.pairwise(visits):
                self._require(
                    start >= end - _ROUNDING_S,
                    f"a {kind} must have one visit at a time, but {kind} {number} has the visits "
                    f"of records {line} and {other} at once",
                )
        self._busy.clear()

    def _checkpoint(self, trial: Trial, ref: CheckpointRef, record: Mapping[str, Any]) -> None:
        parent = trial.refs[-1].sha256 if trial.refs else None
        name = layout.checkpoint_name(trial.visits, record["attempt"])
        self._require(
            (ref.unit, ref.visits, ref.name) == (trial.number, trial.visits, name),
            f"the visit's checkpoint must be {name}, not {ref.name} of {unit_id(ref.unit)}",
            trial.number,
        )
        self._require(
            ref.parent == parent,
            f"checkpoint {name} must follow {parent}, but follows {ref.parent}",
            trial.number,
        )
        trial.refs.append(ref)

    def _epoch(self, trial: Trial, record: Mapping[str, Any]) -> None:
        epoch, number = record["epoch"], trial.number
        self._require(epoch == len(trial.metrics), "epochs must come in order", number)
        self._require(
            trial.visits == (epoch + 1) * self._steps,
            f"epoch {epoch} must be recorded after its {self._steps} visits and before others, "
            f"but {trial.visits} visits are done",
            number,
        )
        sums = [trial.sums[epoch * self._steps + step] for step in range(self._steps)]
        for name in sums[0]:
            pairs = [each[name] for each in sums if name in each]
            mean = math.fsum(pair[0] for pair in pairs) / math.fsum(pair[1] for pair in pairs)
            found = record["metrics"].get(f"train_{name}", math.nan)
            self._require(
                math.isclose(found, mean, rel_tol=1e-9),
                f"train_{name} of epoch {epoch} must be the mean of its visits, {mean}, but is "
                f"{found}",
                number,
            )
        trial.metrics.append(record["metrics"])

    def _roll_back(self, trial: Trial, visits: int) -> None:
        self._require(visits <= trial.visits, "a trial must not be rolled forward", trial.number)
        trial.go_back(visits)
        self._require(
            visits == (trial.refs[-1].visits if trial.refs else 0),
            f"a trial must go back to a checkpoint, but there is none of visit {visits}",
            trial.number,
        )
        trial.metrics = trial.metrics[: visits // self._steps]
        trial.is_dropped = False
        if trial.status is not TrialStatus.STOPPED:
            trial.status = None

    # The end, and files

    def _check_done(self) -> None:
        epochs = int(self._spec["epochs"])
        for trial in self._trials.values():
            self._require(trial.is_final, "a finished run must have ended trials", trial.number)
            if trial.status is TrialStatus.FINISHED:
                most = trial.target or epochs
                self._require(
                    (trial.visits, len(trial.metrics)) == (most * self._steps, most),
                    f"a finished trial must have {most} epochs of {self._steps} visits, but has "
                    f"{len(trial.metrics)} and {trial.visits} visits",
                    trial.number,
                )

    def _check_files(self, store: Store, unit: int, refs: list[CheckpointRef]) -> None:
        for ref in refs:
            try:
                load(store, ref)
            except CheckpointCorruptError as error:
                self._refuse(f"a checkpoint that counts must be intact: {error}", unit)
        if self._is_settled:
            found = set(store.list(layout.checkpoints(unit)))
            expected = {f"{ref.name}{end}" for ref in refs for end in (".json", ".safetensors")}
            self._require(
                found == expected,
                f"its checkpoints must be {sorted(expected)}, but are {sorted(found)}",
                unit,
            )

    def _check_members(self, store: Store, stack: Stack) -> None:
        for ref in stack.refs:
            found, expected = members_of(load(store, ref).meta), stack.members[ref.visits - 1]
            self._require(
                tuple(found) == expected,
                f"{ref.name} must have the trials {expected}, but has {found}",
                stack.unit,
            )
        if self._is_done:
            limit = 0 if any(self._trials[n].is_dropped for n in stack.trials) else 6
            self._require(
                len(stack.refs) <= limit,
                f"at most {limit} checkpoints of a stack must be left, but {len(stack.refs)} are",
                stack.unit,
            )

    def _retained(self, trial: Trial) -> list[CheckpointRef]:
        """The last two (after the end: the last one), that of the best epoch, and before a stop."""
        if trial.is_dropped:
            return []
        last = trial.refs[-1:] if trial.is_final else trial.refs[-2:]
        best = self._best_epoch(trial)
        visits = {trial.before_stop, None if best is None else (best + 1) * self._steps}
        return [ref for ref in trial.refs if ref in last or ref.visits in visits]

    def _best_epoch(self, trial: Trial) -> int | None:
        sign = 1.0 if self._spec["mode"] == Mode.MAX else -1.0
        values = [sign * m.get(self._spec["metric"], -sign * math.inf) for m in trial.metrics]
        values[: trial.inherited] = [-math.inf] * trial.inherited
        return values.index(max(values)) if values and max(values) > -math.inf else None

    def _check_strays(self) -> None:
        for directory, folders, names in os.walk(self._root):
            # What a killed sender of a command leaves there is its own.
            folders[:] = [name for name in folders if name != layout.INBOX]
            for name in names:
                path = os.path.join(directory, name)
                self._require(not name.startswith(".tmp-"), f"{path} must not be left over")
