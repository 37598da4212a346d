"""TensorBoard logs: one directory a trial, the same tags in each, so curves share one graph."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cerebro.storage import layout
from cerebro.track import events
from cerebro.track.pace import HOLD_S, MANY_TRIALS, Pace
from cerebro.track.records import (
    EpochFinished,
    MemberVisit,
    Record,
    RunStarted,
    TrialAdded,
    TrialFinished,
    VisitFinished,
)
from cerebro.track.writing import append
from cerebro.types import Params, TrialStatus, trial_id

#: As many points of a curve as TensorBoard shows; more are kept only where there are few trials.
CURVE_POINTS = 1000
#: Of these, at most so many come from one visit.
VISIT_POINTS = 16


class TensorBoardTracker:
    """Writes ``tensorboard/<trial>/events.out.tfevents…`` below a run directory, or into ``logs``.

    ``train/loss`` is indexed by the trial's global step, ``epoch/<metric>`` by epoch; params and
    outcome go to the HParams tab, the first trial's model to the Graphs tab. A resumed run adds new
    files that carry on where the old ones ended.

    Up to 64 trials, every step is kept, and written out at once: a killed run loses nothing it
    reported. With more, the losses of a visit are thinned by their position (``kept_steps``), and
    records are written about once a second, so that a kill costs the curves what came after.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     tracker = TensorBoardTracker(directory)
    ...     tracker.record(TrialAdded(trial=0, params={"lr": 0.1}))
    ...     tracker.record(EpochFinished(trial=0, epoch=0, metrics={"val_loss": 0.5}, seconds=1.0))
    ...     tracker.close()
    ...     [path.name[:19] for path in Path(directory, "tensorboard/t0000").iterdir()]
    ['events.out.tfevents']
    """

    def __init__(
        self,
        run_directory: str | os.PathLike[str],
        *,
        logs: str | os.PathLike[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = Path(run_directory, layout.TENSORBOARD) if logs is None else Path(logs)
        self._params: dict[int, Params] = {}
        self._files: dict[int, str] = {}
        self._planned = 0
        self._visits = 1
        self._resumed = False
        self._restarted: set[int] = set()
        self._pace = Pace(HOLD_S, rest=20.0, clock=clock)
        self._held: dict[int, list[bytes]] = {}
        self._epochs: list[EpochFinished] = []
        # TensorBoard reads files in the order of their names: time first.
        self._name = f"events.out.tfevents.{time.time_ns():020d}.{socket.gethostname()}"

    def record(self, record: Record) -> None:
        match record:
            case VisitFinished():
                self._visit(record)
            case EpochFinished(replayed=False):
                self._epochs.append(record)
            case TrialAdded():
                self._params[record.trial] = record.params
                return
            case TrialFinished(replayed=False):
                succeeded = record.status in (TrialStatus.FINISHED, TrialStatus.STOPPED)
                end = events.hparams_end(succeeded=succeeded, wall_time=time.time())
                self._hold(record.trial, end)
            case RunStarted():
                self._planned, self._resumed = record.trials, record.resumed
                self._visits = max(1, record.epochs * record.train_shards)
        if not (self._held or self._epochs):
            return
        if not self._is_crowded:
            self.flush()
        elif self._pace.is_due:
            self._pace.run(self.flush)

    def flush(self) -> None:
        """Write what is held back."""
        now = time.time()
        if self._epochs:
            self._encode_epochs(now)
        while self._held:
            trial, parts = self._held.popitem()
            self._append(trial, parts, now)

    def close(self) -> None:
        """Write what is held back."""
        self.flush()

    @property
    def _is_crowded(self) -> bool:
        return max(self._planned, len(self._params)) > MANY_TRIALS

    def _hold(self, trial: int, data: bytes) -> None:
        self._held.setdefault(trial, []).append(data)

    def _visit(self, record: VisitFinished) -> None:
        now = time.time()
        if record.graph:
            self._hold(record.trials[0], events.graph(record.graph, wall_time=now))
        alike: dict[int, list[tuple[int, MemberVisit]]] = {}
        for trial, member in zip(record.trials, record.members, strict=True):
            if len(member.losses) == 0:
                continue
            alike.setdefault(len(member.losses), []).append((trial, member))
            if self._resumed and trial not in self._restarted:
                # The killed process may have logged steps of a visit that is done again now.
                self._restarted.add(trial)
                self._hold(trial, events.session_restart(member.first_step, wall_time=now))
        limit = max(1, min(VISIT_POINTS, CURVE_POINTS // self._visits))
        for count, members in alike.items():
            kept = kept_steps(count, limit if self._is_crowded else count)
            first = np.array([[member.first_step] for _, member in members])
            losses = np.array([member.losses for _, member in members])
            values = losses if len(kept) == count else losses[:, kept]
            data = events.scalars("train/loss", first + kept, values, wall_time=now)
            self._share_out(data, [trial for trial, _ in members])

    def _encode_epochs(self, now: float) -> None:
        ended, self._epochs = self._epochs, []
        for name in dict.fromkeys(name for record in ended for name in record.metrics):
            mine = [record for record in ended if name in record.metrics]
            if len(mine) == 1:
                (one,) = mine
                value = one.metrics[name]
                self._hold(
                    one.trial, events.scalar(f"epoch/{name}", one.epoch, value, wall_time=now)
                )
                continue
            steps = [record.epoch for record in mine]
            values = [record.metrics[name] for record in mine]
            data = events.scalars(f"epoch/{name}", steps, values, wall_time=now)
            self._share_out(data, [record.trial for record in mine])

    def _share_out(self, data: bytes, trials: Sequence[int]) -> None:
        """Hold for each trial its part of ``data``: they follow each other and are equally long."""
        size = len(data) // len(trials)
        for at, trial in enumerate(trials):
            self._hold(trial, data[at * size : (at + 1) * size])

    def _append(self, trial: int, parts: list[bytes], now: float) -> None:
        path = self._files.get(trial)
        if path is None:
            directory = self._root / trial_id(trial)
            directory.mkdir(parents=True, exist_ok=True)
            path = self._files[trial] = str(directory / self._name)
            params = events.hparams_start(self._params.get(trial, {}), wall_time=now)
            parts = [events.file_version(wall_time=now), params, *parts]
        append(path, b"".join(parts))


@cache
def kept_steps(count: int, limit: int) -> npt.NDArray[np.int64]:
    """Which of a visit's steps are kept: at most ``limit``, evenly spaced, the last among them.

    In a run of many trials the limit is such that a curve has about ``CURVE_POINTS`` points in the
    end, but at least one and at most ``VISIT_POINTS`` a visit.

    >>> kept_steps(10, 4), kept_steps(3, 4)
    (array([1, 4, 6, 9]), array([0, 1, 2]))
    """
    if count <= limit:
        return np.arange(count)
    return np.arange(1, limit + 1) * count // limit - 1
