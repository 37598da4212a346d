"""Opening a run: lock it, replay its journal, verify its checkpoints, sweep what is left over."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cerebro.errors import (
    CheckpointCorruptError,
    ResumeMismatchError,
    RunCorruptError,
    StoreError,
    UsageError,
)
from cerebro.run.history import Record, RunHistory, StackHistory, TrialHistory
from cerebro.run.spec import RunDocument, RunSpec, read_document, refuse_changes, spec_changes
from cerebro.storage import DirectoryStore, Store, checkpoint, layout
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.storage.journal import Journal
from cerebro.storage.journal import read as read_journal
from cerebro.storage.lock import RunLock
from cerebro.storage.remote_store import RemoteStore
from cerebro.types import Json, Mode, TrialStatus, stack_unit, unit_id


@dataclass(slots=True)
class OpenRun:
    """A run whose lock this process holds."""

    store: Store
    #: None until a new run begins.
    journal: Journal | None
    history: RunHistory
    #: None for a new run.
    document: RunDocument | None
    #: What was repaired, for people.
    notices: list[str] = field(default_factory=list)
    #: What was journaled since it was opened.
    appended: list[Record] = field(default_factory=list)
    #: Where the run of this name was moved to, if it had to make room.
    archived: str | None = None

    def begin(self, document: RunDocument) -> None:
        """Write run.json of a new run and open its journal."""
        document.write(self.store)
        self.document = document
        self.journal = Journal.open(self.store)

    def append(self, *records: dict[str, Json]) -> None:
        """Journal records at once and take them into the history."""
        self.opened.append(records)
        self.appended += records
        self.history.apply(*records)

    def commit(self, *records: dict[str, Json]) -> None:
        """The same, and remove the checkpoints that they make superfluous."""
        self.opened.append(records)
        for ref in self.history.apply(*records):
            self.store.remove(ref.manifest_path)
            self.store.remove(ref.data_path)

    def rewrite(self, document: RunDocument) -> None:
        """Write run.json anew, with more than it said before."""
        document.write(self.store)
        self.document = document

    def force(self, changes: Mapping[str, tuple[Json, Json]], document: RunDocument) -> None:
        """Go on with what changed, and record it."""
        self.append(
            *(
                {"type": "forced", "field": k, "old": old, "new": new}
                for k, (old, new) in changes.items()
            )
        )
        self.rewrite(document)

    @property
    def opened(self) -> Journal:
        if self.journal is None:
            raise StoreError("the run has not begun: begin() comes first.")
        return self.journal


@contextlib.contextmanager
def open_run(store: Store, spec: RunSpec, *, fresh: bool, force: bool) -> Iterator[OpenRun]:
    """Open or create the run in `store`; a new directory goes again if its run cannot begin."""
    archived = _archive(store) if fresh and _has_begun(store) else None
    missing = _missing_directories(store)
    # Only under the lock is what was made here ours to remove: another driver may be as new.
    with RunLock(store):
        is_new = not _has_begun(store)
        run = None
        try:
            run = _open(store, spec, force=force)
            run.archived = archived
            yield run
        except BaseException as error:
            is_refused = isinstance(error, UsageError) or not store.exists(layout.RUN)
            # Nothing that was trained is ever removed.
            if is_new and is_refused and not (run and run.history.has_trained):
                _undo(store, missing, archived)
            raise
        finally:
            store.close()


def _has_begun(store: Store) -> bool:
    """Whether there is a run; its run.json comes before its journal's records, and goes after."""
    if store.exists(layout.RUN):
        return True
    return store.exists(layout.JOURNAL) and store.size(layout.JOURNAL) > 0


def _undo(store: Store, missing: list[str], archived: str | None) -> None:
    """A run that cannot begin leaves everything as it was."""
    with contextlib.suppress(StoreError):
        store.remove(layout.JOURNAL)
        store.remove(layout.RUN)
    if not missing:
        # The directory was there before, and may hold what is not ours.
        return
    shutil.rmtree(missing[0], ignore_errors=True)
    for directory in missing[1:]:
        with contextlib.suppress(OSError):
            os.rmdir(directory)
    if archived is not None:
        os.rename(archived, store.where())


def _open(store: Store, spec: RunSpec, *, force: bool) -> OpenRun:
    checkpoint.sweep(store)
    document = read_document(store)
    if document is None:
        if _has_begun(store):
            raise RunCorruptError(
                f"{store.where(layout.RUN)} is missing, but there is a {layout.JOURNAL} "
                "beside it. Restore it from a copy, or start the run afresh."
            )
        store.remove(layout.JOURNAL)
        return OpenRun(store, None, _new_history(spec), None)
    changes = spec_changes(document.spec, spec)
    if not force or "train_shards" in changes:
        refuse_changes(changes, store.url)
    journal = Journal.open(store)
    history = _replay(document, journal.records)
    run = OpenRun(store, journal, history, document)
    if journal.repaired:
        run.notices.append("the last journal record was cut short and has been dropped")
    if changes and history.is_finished:
        raise ResumeMismatchError(
            f"only a run with something left to train can go on with changes, but {store.url} is "
            "finished. Give the run another name, or start it afresh with --fresh (fresh=True)."
        )
    if changes:
        run.force(changes, replace(document, spec=spec.to_json()))
    if not history.is_finished:
        _repair(run)
    return run


def _new_history(spec: RunSpec) -> RunHistory:
    return RunHistory(spec.train_shards, spec.epochs, spec.metric, spec.mode)


def _repair(run: OpenRun) -> None:
    for stack in run.history.stacks.values():
        if not stack.is_dissolved:
            _verify_stack(run, stack)
        checkpoint.collect(run.store, stack.unit, {ref.name for ref in stack.checkpoints})
    for trial in run.history.trials.values():
        if trial.stack is None:
            _verify(run, trial)
        checkpoint.collect(run.store, trial.number, {ref.name for ref in trial.checkpoints})
    for name in run.store.list(layout.TRIALS):
        # A state may have been copied for a trial that was never journaled.
        number = name.removeprefix("t")
        if number.isdecimal() and int(number) not in run.history.trials:
            checkpoint.collect(run.store, int(number), ())


def _verify(run: OpenRun, trial: TrialHistory) -> None:
    """Go back to the last state before the first damaged checkpoint, if there is one."""
    if trial.status.is_final and not trial.checkpoints:
        return
    good = _sound_visits(run, trial.checkpoints, trial.checkpoints, [trial], trial.number)
    if good is None:
        if trial.status.is_final:
            return
        good = _last_visits(trial.checkpoints)
    if good < trial.parent_visits:
        if trial.status is TrialStatus.FAILED:
            return
        run.append(
            {
                "type": "trial_end",
                "trial": trial.number,
                "status": str(TrialStatus.FAILED),
                "error": f"its copy of the state of {unit_id(trial.parent or 0)} is damaged",
                "traceback": None,
            }
        )
    elif good != trial.visits:
        run.append({"type": "rollback", "trial": trial.number, "visits": good})


def _verify_stack(run: OpenRun, stack: StackHistory) -> None:
    """The same for a stack; what was taken out of it can be had again only from all of it."""
    history = run.history
    trials = [history.trials[n] for n in stack.trials if history.trials[n].stack == stack.unit]
    taken = [ref for trial in trials for ref in trial.checkpoints]
    refs = sorted([*stack.checkpoints, *taken], key=lambda ref: ref.visits)
    if history.is_over(stack) and not refs:
        return
    good = _sound_visits(run, refs, stack.checkpoints, trials, stack.unit)
    if good is None:
        if history.is_over(stack):
            return
        good = _last_visits(stack.checkpoints)
    if good != stack.visits:
        number = stack_unit(stack.unit)
        run.append({"type": "rollback", "stack": number, "visits": good})


def _sound_visits(
    run: OpenRun,
    refs: Sequence[CheckpointRef],
    states: Sequence[CheckpointRef],
    trials: Sequence[TrialHistory],
    unit: int,
) -> int | None:
    """Visits behind the last of `states` before the first of `refs` that is damaged.

    None if none is damaged.
    """
    for ref in refs:
        try:
            checkpoint.load(run.store, ref, into=bytearray)
        except CheckpointCorruptError as error:
            before = [state for state in states if state.visits < ref.visits]
            steps = run.history.steps
            good = _last_visits([state for state in before if _can_go_on(trials, state, steps)])
            run.notices.append(f"{error} {unit_id(unit)} goes back to visit {good}.")
            return good
    return None


def _last_visits(states: Sequence[CheckpointRef]) -> int:
    return max((ref.visits for ref in states), default=0)


def _can_go_on(trials: Sequence[TrialHistory], state: CheckpointRef, steps: int) -> bool:
    """Whether those that come back with a state have the sums of the epoch it lies in.

    Sums are kept for two epochs, but an old checkpoint as long as anybody wants it.
    """
    for trial in trials:
        if trial.visits >= state.visits:
            evaluated = sum(epoch.visits <= state.visits for epoch in trial.epochs)
            if any(visit not in trial.sums for visit in range(evaluated * steps, state.visits)):
                return False
    return True


def _missing_directories(store: Store) -> list[str]:
    """The directory and those above it that do not exist, innermost first."""
    if not isinstance(store, DirectoryStore):
        return []
    found, path = [], store.root
    while not os.path.isdir(path):
        found.append(path)
        path = os.path.dirname(path)
    return found


def set_aside(store: Store) -> str | None:
    """Move the run in `store` aside, if there is one, so that the next begins anew; where to."""
    return _archive(store) if _has_begun(store) else None


def _archive_remote(store: RemoteStore) -> str:
    """Copy a run, then remove it: killed in between, it is there twice, and whole."""
    with RunLock(store):
        places = (RemoteStore(f"{store.url}.{number}") for number in range(1, 10_000))
        aside = next(place for place in places if not place.list())
        copied = store.copy_to(aside, lambda name: name.startswith(f"{layout.LOCK}."))
        # run.json last, for it says that there is a run.
        for name in sorted(copied, key=lambda name: name == layout.RUN):
            store.remove_object(name)
    return aside.url


def _archive(store: Store) -> str:
    """Move the run of this name aside; nothing is deleted."""
    if isinstance(store, RemoteStore):
        return _archive_remote(store)
    path = store.where()
    with RunLock(store):
        number = next(n for n in range(1, 10_000) if not os.path.exists(f"{path}.{n}"))
        try:
            os.rename(path, f"{path}.{number}")
        except OSError as error:
            raise StoreError(f"cannot move {path} aside: {error.strerror}.") from error
    return f"{path}.{number}"


def load_history(store: Store) -> tuple[RunDocument, RunHistory]:
    """Read a run without touching it; safe while a driver writes it."""
    document = read_document(store)
    if document is None:
        raise StoreError(f"{store.where()} must be a run directory, but has no {layout.RUN}.")
    records = read_journal(store).records if store.exists(layout.JOURNAL) else []
    return document, _replay(document, records)


def _replay(document: RunDocument, records: Sequence[Record]) -> RunHistory:
    spec = document.spec
    return RunHistory.replay(
        records,
        steps=int(str(spec["train_shards"])),
        epochs=int(str(spec["epochs"])),
        metric=str(spec["metric"]),
        mode=Mode(str(spec["mode"])),
    )
