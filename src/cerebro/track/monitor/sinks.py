"""Where samples go: a CSV file, and TensorBoard."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from cerebro.track import events
from cerebro.track.monitor.sampler import COUNTERS, Sample
from cerebro.track.writing import append

#: How often TensorBoard gets a point: the mean of the samples since the last one.
TENSORBOARD_S = 30.0
_HEADER = "time,host,what,value\n"
_STRANGE = re.compile(r"[^\w.-]+")


class Sink(Protocol):
    """Takes samples, one after the other."""

    def write(self, sample: Sample) -> None: ...

    def close(self) -> None:
        """Write what is held back."""
        ...


class CsvSink:
    """A row for each value: wall time in seconds, host, what it is, the value.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sink = CsvSink(Path(folder, "resources.csv"))
    ...     sink.write(Sample(1.5, "here", {"cpu/tree": 50.0}))
    ...     print(Path(folder, "resources.csv").read_text())
    time,host,what,value
    1.500,here,cpu/tree,50
    <BLANKLINE>
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.stat().st_size == 0:
            append(path, _HEADER.encode())

    def write(self, sample: Sample) -> None:
        start = f"{sample.time_s:.3f},{_plain(sample.host)},"
        rows = [f"{start}{what},{value:.12g}\n" for what, value in sample.values.items()]
        # One write: who reads along, or writes another host's rows, sees whole samples.
        append(self._path, "".join(rows).encode())

    def close(self) -> None:
        """Nothing is held back."""


class TensorBoardSink:
    """Scalars `profiler/<host>/…`, in time; counters as bytes a second. Processes are summed up."""

    def __init__(self, directory: Path, *, every_s: float = TENSORBOARD_S) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns():020d}.{os.getpid()}"
        self._path = directory / name
        self._every_s = every_s
        self._began = 0.0
        self._due_s = 0.0
        self._before: Sample | None = None
        self._held: list[Sample] = []
        append(self._path, events.file_version(wall_time=time.time()))

    def write(self, sample: Sample) -> None:
        now_s, every_s = sample.time_s, self._every_s
        if self._before is None:
            self._began, self._before, self._due_s = now_s, sample, now_s + every_s
            return
        passed_s = now_s - (self._held or [self._before])[-1].time_s
        self._held.append(sample)
        # The sample nearest to when a point is due: one that is late does not make the next one so.
        if now_s + passed_s / 2 >= self._due_s:
            self._write_out(self._before)
            self._due_s = every_s + (self._due_s if self._due_s + every_s > now_s else now_s)

    def close(self) -> None:
        if self._held and self._before is not None:
            self._write_out(self._before)

    def _write_out(self, before: Sample) -> None:
        last = self._held[-1]
        step = round(last.time_s - self._began)
        points = summed_up(before, self._held)
        data = [
            events.scalar(f"profiler/{last.host}/{what}", step, value, wall_time=last.time_s)
            for what, value in points.items()
        ]
        append(self._path, b"".join(data))
        self._before, self._held = last, []


def summed_up(before: Sample, samples: Sequence[Sample]) -> dict[str, float]:
    """Means of what was seen since `before`; of counters what a second added. No single processes.

    >>> first = Sample(0.0, "a", {"network/lo/in": 100.0, "cpu/tree": 0.0})
    >>> summed_up(first, [Sample(2.0, "a", {"network/lo/in": 300.0, "cpu/tree": 50.0})])
    {'network/lo/in': 100.0, 'cpu/tree': 50.0}
    """
    passed = max(samples[-1].time_s - before.time_s, 1e-9)
    found: dict[str, float] = {}
    for what in dict.fromkeys(what for sample in samples for what in sample.values):
        seen = [sample.values[what] for sample in samples if what in sample.values]
        if what.startswith(COUNTERS):
            found[what] = (seen[-1] - before.values.get(what, seen[-1])) / passed
        elif not what.startswith("process/"):
            found[what] = sum(seen) / len(seen)
    return found


def _plain(host: str) -> str:
    """A name that needs no quotes in a table."""
    return _STRANGE.sub("-", host)
