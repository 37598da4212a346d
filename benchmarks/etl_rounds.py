"""Sides that take turns: started, told to begin, timed, and asked what they have written."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.environment import ROOT
from benchmarks.etl_side import digest
from benchmarks.report import Report, speedup


@dataclass(frozen=True, slots=True)
class Side:
    """Who takes part: one process, or one for each of `works`."""

    name: str
    #: The generator that does the work, `module:function`.
    does: str
    python: Path = Path(sys.executable)
    #: What its processes are told besides what all are.
    works: Sequence[Mapping[str, Any]] = field(default_factory=lambda: [{}])
    #: That libraries may use, Arrow among them.
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Measured:
    """One turn of a side."""

    #: From the start of its processes until they, and workers of theirs, could begin.
    start_s: float
    work_s: float
    found: Sequence[Mapping[str, Any]]

    @property
    def whole_s(self) -> float:
        return self.start_s + self.work_s


class Program:
    """A process that takes one step at a time."""

    def __init__(self, side: Side, work: Mapping[str, Any]) -> None:
        self._name = side.name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        command = [str(side.python), "-W", "ignore", "-m", "benchmarks.etl_side"]
        self._process = subprocess.Popen(
            [*command, side.does, json.dumps(work)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": str(side.threads)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def hear(self) -> Any:
        """What it says next."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            told = self._errors.read().decode(errors="replace")
            self.end()
            raise SystemExit(f"{self._name} failed:\n{told[-3000:]}")
        return json.loads(line)

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Let it end by itself: it is told that nobody listens any more."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()
        self._errors.close()


def measure(side: Side, work: Mapping[str, Any], folder: Path) -> Measured:
    """One turn, with an empty folder for what is written; that is checked, and removed."""
    out = Path(tempfile.mkdtemp(prefix=f"{side.name}-", dir=folder))
    began = time.perf_counter()
    programs = [Program(side, {**work, **own, "out": str(out)}) for own in side.works]
    try:
        for program in programs:
            program.hear()
        ready = time.perf_counter()
        for program in programs:
            program.go_on()
        said = [program.hear() for program in programs]
        done = time.perf_counter()
        for program in programs:
            program.go_on()
        found = [program.hear() for program in programs]
    finally:
        for program in programs:
            program.end()
    workers_s = max(each.get("workers_s", 0.0) for each in said)
    for each in said:
        check_digests(side, each.get("digests", {}))
    shutil.rmtree(out)
    # Nobody is to wait for what another left to be written.
    os.sync()
    return Measured(ready - began + workers_s, done - ready - workers_s, found)


def check_digests(side: Side, digests: Mapping[str, str]) -> None:
    """What was digested must be what was written."""
    for path, told in digests.items():
        if digest(path) != told:
            raise SystemExit(f"{side.name}: {path} is not what its digest says")


def compete(
    sides: Sequence[Side],
    work: Mapping[str, Any],
    rounds: int,
    folder: Path,
    expected: Mapping[str, Any],
) -> dict[str, list[Measured]]:
    """All sides, round by round; nobody is always the first, and all must find what is expected."""
    found: dict[str, list[Measured]] = {side.name: [] for side in sides}
    for number in range(rounds):
        first = number % len(sides)
        for side in [*sides[first:], *sides[:first]]:
            turn = measure(side, work, folder)
            check_same(side, turn, expected)
            found[side.name].append(turn)
    return found


def tell(
    case: str,
    found: Mapping[str, Sequence[Measured]],
    *,
    ours: str,
    rows: int,
    size_bytes: int,
    report: Report,
) -> None:
    """A table of medians; a ratio is how many times longer than ours another side took."""
    print(f"\n{case:<14}{'work s':>9}{'(least)':>9}{'start s':>9}{'rows/s':>11}{'MB/s':>8}", end="")
    print(f"{'times ours':>12}{'with start':>12}   load {os.getloadavg()[0]:.1f}")
    own = [each.work_s for each in found[ours]]
    own_whole = [each.whole_s for each in found[ours]]
    for name, turns in found.items():
        work = [each.work_s for each in turns]
        whole = [each.whole_s for each in turns]
        median, start = statistics.median(work), statistics.median(t.start_s for t in turns)
        ratio = median / statistics.median(own)
        ratio_whole = statistics.median(whole) / statistics.median(own_whole)
        print(f"{name:<14}{median:>9.2f}{min(work):>9.2f}{start:>9.2f}", end="")
        print(f"{rows / median:>11.0f}{size_bytes / median / 1e6:>8.1f}", end="")
        print(f"{ratio:>11.2f}x{ratio_whole:>11.2f}x", flush=True)
        report.add(f"{case}_{name}_s", median)
        report.add(f"{case}_{name}_whole_s", statistics.median(whole))
        report.add(f"{case}_{name}_rows_per_s", round(rows / median))
        if name != ours:
            report.add(f"{case}_{name}_vs_{ours}", ratio)
            report.add(f"{case}_{name}_vs_{ours}_whole", ratio_whole)


def gain(found: Mapping[str, Sequence[Measured]], other: str, ours: str) -> float:
    """How many times faster than another side ours is, without starts, in the worse view."""
    return speedup([each.work_s for each in found[other]], [each.work_s for each in found[ours]])


def check_same(side: Side, turn: Measured, expected: Mapping[str, Any]) -> None:
    """What a side has written must be this."""
    for key, value in expected.items():
        seen = [each[key] for each in turn.found]
        if not is_same(seen, value):
            raise SystemExit(f"{side.name} wrote {key} {seen}, but must write {value}")


def is_same(seen: Sequence[Any], value: Any) -> bool:
    """Whether what processes found adds up to a value.

    >>> is_same([[1, 2], [3, 4]], [4, 6]), is_same([3], 3), is_same([True], True)
    (True, True, True)
    """
    if len(seen) == 1:
        return bool(seen[0] == value)
    if isinstance(value, list):
        return [sum(each) for each in zip(*seen, strict=True)] == value
    return bool(sum(seen) == value)
