"""Runs that are killed at operations on the disk, and what must hold when they are resumed.

What a kill leaves depends on the disk alone. So there are two ways to look at every operation: to
kill a process at each (`assert_exact_after_every_kill`), and to keep what one process had on the
disk after each change and amid each write (`assert_exact_from_every_state`), which is quicker, and
leaves out nothing but operations that change nothing.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from cerebro.run.spec import RunSpec
from cerebro.storage import DirectoryStore
from cerebro.storage.disk import Buffer, Disk
from cerebro.storage.journal import read
from cerebro.storage.objects import Objects
from cerebro.testing.faults import CountOnly, FaultyDisk, FaultyObjects, Rule
from cerebro.testing.history import check
from cerebro.testing.toy import ToyTask
from tests.experiments import Outcome, fit_toy, in_child, outcome

Visits = set[tuple[int, ...]]


def run_until_killed(root: Path, spec: RunSpec, rule: Rule, **settings: Any) -> int | None:
    """The number of operations of a run that ended in spite of the rule; None if it was killed."""
    disk = FaultyDisk(Disk(), rule)
    count = root.with_suffix(".count")

    def work() -> None:
        fit_toy(root, spec, disk=disk, **settings)
        count.write_text(str(len(disk.operations)))

    status = in_child(work)
    if status == 0:
        return int(count.read_text())
    assert os.WIFSIGNALED(status), f"the run failed instead of being killed: {rule}"
    assert os.WTERMSIG(status) == signal.SIGKILL
    return None


def durable_visits(root: Path) -> Visits:
    """(trial, epoch, step) of the visits up to each trial's last checkpoint in the journal."""
    if not (root / "journal.jsonl").exists():
        return set()
    found: list[Any] = [r for r in read(DirectoryStore(root)).records if r["type"] == "visit"]
    records = [(trial, r) for r in found for trial in r.get("trials") or [r["trial"]]]
    saved = {trial: (r["epoch"], r["step"]) for trial, r in records if r.get("checkpoint")}
    visits = {(trial, r["epoch"], r["step"]) for trial, r in records}
    return {visit for visit in visits if visit[1:] <= saved.get(visit[0], (-1, -1))}


def started_visits(log: Path) -> Visits:
    """(trial, epoch, step) of what was trained; the log goes."""
    if not log.exists():
        return set()
    lines = log.read_text().splitlines()
    log.unlink()
    return {tuple(map(int, line.split()[:3])) for line in lines}


def assert_exact_after_every_kill(
    folder: Path,
    spec: RunSpec,
    kill: Callable[[int], Rule],
    *,
    first: int = 1,
    stride: int = 1,
    **settings: Any,
) -> int:
    """SQLite's loop: n = 1, 2, 3 ... until a run has fewer operations. The number of kills."""
    fit_toy(folder / "whole", spec, **settings)
    expected = outcome(folder / "whole")
    kills = 0
    for n in itertools.count(first, stride):
        root = folder / f"run{n}"
        # One task for both: a finished run of failures begins anew with another.
        task = ToyTask(log=str(root.with_suffix(".visits")))
        operations = run_until_killed(root, spec, kill(n), task=task, **settings)
        if operations is not None and n > operations:
            return kills
        # An operation that fails has no "after": a look at a file that is not there.
        kills += operations is None
        assert_resumes_exactly(root, spec, task, expected, f"{kill(n)}", **settings)
    raise AssertionError("unreachable")


def assert_exact_from_every_state(
    folder: Path,
    spec: RunSpec,
    *,
    first: int = 0,
    stride: int = 1,
    start: Path | None = None,
    work: Callable[..., None] = fit_toy,
    **settings: Any,
) -> int:
    """Whatever a kill could have left of a run is resumed exactly. The number of such states.

    Args:
        first: The first state to resume, and every `stride`th after it.
        start: A run to go on with, instead of a new one.
        work: What is done to it, called like `fit_toy`.
    """
    if not (folder / "whole").exists():
        fit_toy(folder / "whole", spec, **settings)
    expected = outcome(folder / "whole")
    task = ToyTask(log=str(folder / "visits"))
    root = folder / "run"
    if start is not None:
        shutil.copytree(start, root)
    states = states_of(root, spec, work=work, task=task, **settings)
    for state in states[first::stride]:
        assert_resumes_exactly(state, spec, task, expected, state.name, **settings)
    for path in (root, states[0].parent):
        shutil.rmtree(path)
    return len(states)


def states_of(
    root: Path, spec: RunSpec, *, work: Callable[..., None] = fit_toy, **settings: Any
) -> list[Path]:
    """What a kill at any operation could leave of a run, each in a folder of its own; in order."""
    return keep_states(
        root, lambda states: work(root, spec, disk=RecordingDisk(states), **settings)
    )


def keep_states(root: Path, work: Callable[[States], object]) -> list[Path]:
    """What a kill at any operation could leave of a folder that something is written to."""
    kept = root.with_name(f"{root.name}-states")
    states = States(root, kept)
    # In a process of its own, which is gone when others find its files.
    assert in_child(lambda: work(states)) == 0
    return sorted(kept.iterdir())


def assert_resumes_exactly(
    root: Path, spec: RunSpec, task: ToyTask, expected: Outcome, what: str, **settings: Any
) -> None:
    """A run that was killed ends as if it had not been, and nothing durable is done again."""
    log = Path(str(task.log))
    check(root, is_settled=False)
    durable = durable_visits(root)
    log.unlink(missing_ok=True)
    fit_toy(root, spec, task=task, **settings)
    assert outcome(root) == expected, f"another result after {what}"
    check(root)
    assert not durable & started_visits(log), f"a durable visit again after {what}"
    shutil.rmtree(root)


class States:
    """Copies of a folder as it is before anything is done to it, and whenever it is asked to."""

    def __init__(self, root: Path, kept: Path) -> None:
        self.root = root
        self._kept = kept
        self._numbers = itertools.count()
        kept.mkdir()
        self.keep("nothing")

    def keep(self, name: str, path: str = "") -> Path:
        target = self._kept / f"{next(self._numbers):04d}-{name}-{os.path.basename(path)}"
        if self.root.exists():
            shutil.copytree(self.root, target)
        else:
            target.mkdir()
        return target


class RecordingDisk(Disk):
    """A disk that has copies made of a folder after each change of it, and amid each write.

    That is what a process killed before, after or amid an operation leaves behind. Operations that
    change nothing (reading, syncing) add no copy: what is there was kept after the last change.
    Half of a write is all of it that is there, as with `Tear`.
    """

    def __init__(self, states: States) -> None:
        super().__init__()
        self._states = states

    def create(self, path: str, chunks: Iterable[Buffer]) -> None:
        chunks = list(chunks)
        self._keep_torn("create", path, chunks)
        super().create(path, chunks)
        self._states.keep("create", path)

    def append(self, path: str, data: Buffer) -> None:
        self._keep_torn("append", path, [data])
        super().append(path, data)
        self._states.keep("append", path)

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self._states.keep("rename", target)

    def link(self, source: str, target: str) -> None:
        super().link(source, target)
        self._states.keep("link", target)

    def remove(self, path: str) -> None:
        super().remove(path)
        self._states.keep("remove", path)

    def truncate(self, path: str, size: int) -> None:
        super().truncate(path, size)
        self._states.keep("truncate", path)

    def make_dir(self, path: str) -> None:
        super().make_dir(path)
        self._states.keep("make_dir", path)

    def _keep_torn(self, name: str, path: str, chunks: Sequence[Buffer]) -> None:
        data = b"".join(chunks)
        state = self._states.keep(f"half-{name}", path)
        with (state / os.path.relpath(path, self._states.root)).open("ab") as file:
            file.write(data[: len(data) // 2])


class RecordingObjects(FaultyObjects):
    """Remote objects in a local folder (see `bucket`) with copies made of it after each change."""

    def __init__(self, inner: Objects, states: States) -> None:
        super().__init__(inner, CountOnly())
        self._states = states

    def put(self, path: str, chunks: Iterable[Buffer]) -> None:
        super().put(path, chunks)
        self._states.keep("put", path)

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        self._states.keep("create", path)

    def remove(self, path: str) -> None:
        super().remove(path)
        self._states.keep("remove", path)

    def copy(self, source: str, target: str) -> None:
        super().copy(source, target)
        self._states.keep("copy", target)
