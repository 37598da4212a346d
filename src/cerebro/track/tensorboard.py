"""TensorBoard logs: one directory a trial, the same tags in each, so curves share one graph."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from cerebro.storage import layout
from cerebro.track import events
from cerebro.track.records import (
    EpochFinished,
    Record,
    RunStarted,
    TrialAdded,
    TrialFinished,
    VisitFinished,
)
from cerebro.types import Params, TrialStatus


class TensorBoardTracker:
    """Writes ``tensorboard/<trial>/events.out.tfevents…`` below a run directory.

    ``train/loss`` is indexed by the trial's global step, ``epoch/<metric>`` by epoch; params and
    outcome go to the HParams tab. Every record is written out at once, so a killed run loses
    nothing it reported. A resumed run adds new files that carry on where the old ones ended.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     tracker = TensorBoardTracker(directory)
    ...     tracker.record(TrialAdded(trial=0, params={"lr": 0.1}))
    ...     tracker.record(EpochFinished(trial=0, epoch=0, metrics={"val_loss": 0.5}, seconds=1.0))
    ...     tracker.close()
    ...     [path.name[:19] for path in Path(directory, "tensorboard/t0000").iterdir()]
    ['events.out.tfevents']
    """

    def __init__(self, run_directory: str | os.PathLike[str]) -> None:
        self._root = Path(run_directory)
        self._params: dict[int, Params] = {}
        self._files: dict[int, str] = {}
        self._resumed = False
        self._restarted: set[int] = set()
        # TensorBoard reads files in the order of their names: time first.
        self._name = f"events.out.tfevents.{time.time_ns():020d}.{socket.gethostname()}"

    def record(self, record: Record) -> None:
        match record:
            case VisitFinished():
                self._visit(record)
            case EpochFinished(replayed=False):
                self._epoch(record)
            case TrialAdded():
                self._params[record.trial] = record.params
            case TrialFinished(replayed=False):
                now = time.time()
                succeeded = record.status in (TrialStatus.FINISHED, TrialStatus.STOPPED)
                end = events.hparams_end(succeeded=succeeded, wall_time=now)
                self._append(record.trial, end, now)
            case RunStarted():
                self._resumed = record.resumed

    def close(self) -> None:
        """Nothing is held back."""

    def _visit(self, record: VisitFinished) -> None:
        if len(record.losses) == 0:
            return
        now = time.time()
        trial, step = record.trial, record.first_step
        data = events.scalars("train/loss", step, record.losses, wall_time=now)
        if self._resumed and trial not in self._restarted:
            # The killed process may have logged steps of a visit that is done again now.
            self._restarted.add(trial)
            data = events.session_restart(step, wall_time=now) + data
        self._append(trial, data, now)

    def _epoch(self, record: EpochFinished) -> None:
        now = time.time()
        data = b"".join(
            events.scalar(f"epoch/{name}", record.epoch, value, wall_time=now)
            for name, value in record.metrics.items()
        )
        self._append(record.trial, data, now)

    def _append(self, trial: int, data: bytes, now: float) -> None:
        path = self._files.get(trial)
        if path is None:
            directory = self._root / layout.tensorboard(trial)
            directory.mkdir(parents=True, exist_ok=True)
            path = self._files[trial] = str(directory / self._name)
            params = events.hparams_start(self._params.get(trial, {}), wall_time=now)
            data = events.file_version(wall_time=now) + params + data
        # Opened anew each time: a thousand trials must not hold a thousand descriptors.
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
        finally:
            os.close(file)
