"""Makes visits durable: checkpoint, then journal record, in order, away from the driver's loop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from cerebro.backend.base import SaveRequest, StateRef
from cerebro.storage import Store
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.storage.journal import Journal
from cerebro.types import Json


@dataclass(slots=True)
class Commit:
    """One thing to make durable: records, and the state that the last of them refers to."""

    records: list[dict[str, Json]]
    trial: int = -1
    visits: int = 0
    attempt: int = 0
    #: Saved first; its reference goes into the last record.
    state: StateRef | None = None
    #: Checkpoints to remove once the records before them are durable.
    remove: list[CheckpointRef] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Committed:
    """These are durable now."""

    commits: list[Commit]


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """The store refused; nothing later is durable."""

    error: Exception


class Committer:
    """A queue of commits, worked off by one thread, or at once when `threaded` is false.

    Commits that wait together share one sync of the journal.
    """

    def __init__(
        self,
        store: Store,
        journal: Journal,
        save: Callable[[StateRef, SaveRequest], CheckpointRef],
        post: Callable[[Committed | CommitFailed], None],
        parents: dict[int, str],
        *,
        threaded: bool,
    ) -> None:
        self._store = store
        self._journal = journal
        self._save = save
        self._post = post
        #: SHA-256 of each trial's last checkpoint.
        self._parents = parents
        self._queue: queue.SimpleQueue[Commit | None] = queue.SimpleQueue()
        self._has_failed = False
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

    def close(self) -> None:
        """Finish what was put, and end."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
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
        if self._has_failed:
            return
        try:
            for commit in commits:
                if commit.state is not None:
                    self._save_state(commit, commit.state)
            self._journal.append([record for commit in commits for record in commit.records])
            for ref in (ref for commit in commits for ref in commit.remove):
                # The manifest first: no moment shows a manifest whose data is gone.
                self._store.remove(ref.manifest_path)
                self._store.remove(ref.data_path)
        except Exception as error:
            self._has_failed = True
            self._post(CommitFailed(error))
            return
        self._post(Committed(commits))

    def _save_state(self, commit: Commit, state: StateRef) -> None:
        request = SaveRequest(
            store=self._store,
            trial=commit.trial,
            visits=commit.visits,
            attempt=commit.attempt,
            parent=self._parents.get(commit.trial),
        )
        ref = self._save(state, request)
        self._parents[commit.trial] = ref.sha256
        commit.records[-1]["checkpoint"] = ref.to_json()
