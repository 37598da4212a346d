"""Makes visits durable: checkpoint, then journal record, in order, away from the driver's loop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cerebro.backend.base import SaveRequest, StateRef
from cerebro.errors import StateLostError
from cerebro.run.history import Extract
from cerebro.storage import Store, checkpoint, layout
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.storage.journal import Journal
from cerebro.storage.stacked import take_member, taken_out
from cerebro.types import Json

#: How long what was put may take when somebody is in a hurry.
_LEAVE_S = 5.0


class Copy(NamedTuple):
    """A checkpoint, whose state in it is copied, and for whom."""

    ref: CheckpointRef
    source: int
    trial: int


@dataclass(slots=True)
class Commit:
    """One thing to make durable: records, and the state that the last of them refers to."""

    records: list[dict[str, Json]]
    #: Whose it is, if anybody's, and how often that has gone back by then.
    unit: int | None = None
    rewinds: int = 0
    visits: int = 0
    attempt: int = 0
    #: Saved first; its reference goes into the last record of a visit.
    state: StateRef | None = None
    #: States to take out of a stack's checkpoints first; their references go into the last record.
    extracts: list[Extract] = field(default_factory=list)
    #: A state to copy first, for a trial that begins with it; its reference goes into the record.
    copy: Copy | None = None
    #: Checkpoints to remove once the records before them are durable.
    remove: list[CheckpointRef] = field(default_factory=list)

    @property
    def visit(self) -> dict[str, Json]:
        """The record that the state belongs to."""
        return next(record for record in reversed(self.records) if record["type"] == "visit")


@dataclass(frozen=True, slots=True)
class Committed:
    """These are durable now."""

    commits: list[Commit]


@dataclass(frozen=True, slots=True)
class Dropped:
    """The state to save is lost, or that of one before of the same unit: it will not be durable."""

    commit: Commit
    reason: str


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """The store refused; nothing later is durable."""

    error: Exception


class Committer:
    """A queue of commits, worked off by one thread, or at once when `threaded` is false.

    Commits that wait together share one sync of the journal. When a state is lost that was to be
    saved, nothing more of its unit is made durable until that has gone back; others go on.
    """

    def __init__(
        self,
        store: Store,
        journal: Journal,
        save: Callable[[StateRef, SaveRequest], CheckpointRef],
        post: Callable[[Committed | Dropped | CommitFailed], None],
        parents: dict[int, str],
        *,
        threaded: bool,
    ) -> None:
        self._store = store
        self._journal = journal
        self._save = save
        self._post = post
        #: SHA-256 of each unit's last checkpoint.
        self._parents = parents
        #: Units with a lost state: how often they had gone back then, and what was said.
        self._lost: dict[int, tuple[int, str]] = {}
        self._queue: queue.SimpleQueue[Commit | None] = queue.SimpleQueue()
        self._has_failed = False
        self._is_over = False
        self._thread: threading.Thread | None = None
        if threaded:
            self._thread = threading.Thread(target=self._work, name="committer", daemon=True)
            self._thread.start()

    def put(self, commit: Commit) -> None:
        """Make this durable after all that was put before; answered by a Committed."""
        if self._thread is None:
            self._process([commit])
        else:
            self._queue.put(commit)

    def close(self, *, now: bool = False) -> None:
        """Finish what was put, and end; now: as much of it as can be done in a few seconds."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(_LEAVE_S if now else None)
            # If it still waits for a store, nothing comes of that any more.
            self._is_over = True
            self._thread = None

    def _work(self) -> None:
        while True:
            commits: list[Commit] = []
            item = self._queue.get()
            while item is not None:
                commits.append(item)
                if self._queue.empty():
                    break
                item = self._queue.get()
            if commits:
                self._process(commits)
            if item is None:
                return

    def _process(self, commits: list[Commit]) -> None:
        if self._has_failed or self._is_over:
            return
        kept: list[Commit] = []
        dropped: list[Dropped] = []
        try:
            for commit in commits:
                reason = self._prepare(commit)
                if self._is_over:
                    return
                if reason is None:
                    kept.append(commit)
                else:
                    dropped.append(Dropped(commit, reason))
            self._journal.append([record for commit in kept for record in commit.records])
            for ref in (ref for commit in kept for ref in commit.remove):
                # The manifest first: no moment shows a manifest whose data is gone.
                self._store.remove(ref.manifest_path)
                self._store.remove(ref.data_path)
        except Exception as error:
            self._has_failed = True
            self._tell(CommitFailed(error))
            return
        if kept:
            self._tell(Committed(kept))
        for each in dropped:
            self._tell(each)

    def _tell(self, message: Committed | Dropped | CommitFailed) -> None:
        """Unless nobody waits for it any more: another run may listen there."""
        if not self._is_over:
            self._post(message)

    def _prepare(self, commit: Commit) -> str | None:
        """Write what the records refer to; why it cannot be, where a state is lost."""
        if commit.unit in self._lost:
            rewinds, reason = self._lost[commit.unit]
            if commit.rewinds <= rewinds:
                return reason
        if commit.state is not None:
            try:
                self._save_state(commit, commit.state)
            except StateLostError as error:
                return self._lose(commit, str(error))
        if commit.extracts:
            taken = take_out(self._store, commit.extracts, self._parents)
            commit.records[-1]["checkpoints"] = taken
        if commit.copy is not None:
            commit.records[-1]["checkpoint"] = copy_state(self._store, commit.copy, self._parents)
        return None

    def _lose(self, commit: Commit, reason: str) -> str:
        """A state is gone; what may have been written of it goes, too."""
        if commit.unit is not None:
            self._lost[commit.unit] = commit.rewinds, reason
            name = layout.checkpoint_name(commit.visits, commit.attempt)
            self._store.remove(layout.checkpoint_manifest(commit.unit, name))
            self._store.remove(layout.checkpoint_data(commit.unit, name))
        return reason

    def _save_state(self, commit: Commit, state: StateRef) -> None:
        if commit.unit is None:
            raise ValueError("a state must be somebody's.")
        request = SaveRequest(
            store=self._store,
            unit=commit.unit,
            visits=commit.visits,
            attempt=commit.attempt,
            parent=self._parents.get(commit.unit),
        )
        ref = self._save(state, request)
        self._parents[commit.unit] = ref.sha256
        commit.visit["checkpoint"] = ref.to_json()


def copy_state(store: Store, copy: Copy, parents: dict[int, str] | None = None) -> Json:
    """Give a new trial the state of another as its first checkpoint; what the journal says then."""
    found = taken_out(checkpoint.load(store, copy.ref), copy.source)
    own = checkpoint.save(
        store,
        copy.trial,
        visits=copy.ref.visits,
        attempt=0,
        data=found.data,
        meta=found.meta,
        parent=copy.ref.sha256,
    )
    if parents is not None:
        parents[copy.trial] = own.sha256
    return own.to_json()


def take_out(
    store: Store, extracts: Sequence[Extract], parents: dict[int, str] | None = None
) -> list[Json]:
    """Give members of a stack checkpoints of their own, oldest first; what the journal says then.

    They count only once it does.
    """
    taken: list[Json] = []
    for ref, trials in extracts:
        if not trials:
            continue
        found = checkpoint.load(store, ref)
        for trial in trials:
            data, meta = take_member(found.data, found.meta, trial)
            own = checkpoint.save(
                store,
                trial,
                visits=ref.visits,
                attempt=int(ref.name.rpartition("-a")[2]),
                data=data,
                meta=meta,
                parent=ref.sha256,
            )
            if parents is not None:
                parents[trial] = own.sha256
            taken.append(own.to_json())
    return taken
