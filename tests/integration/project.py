"""A user's folder with data, tasks and an experiment file, and the `cerebro` command in it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

import numpy as np

import cerebro
from cerebro.storage import DirectoryStore
from cerebro.storage.journal import read
from tests.processes import hold
from tests.warm import warm_command

EXPERIMENT = """\
name: toy
task: tasks:Toy
data: data
workers: 2
epochs: 2
batch_size: 32
metric: val_accuracy
mode: max
space:
  lr: [0.1, 0.01]
"""
TASKS = """\
from cerebro.testing.toy import ToyTask


class Toy(ToyTask):
    version = 1
"""
CONTROL_CODE = re.compile("[\x00-\x08\x0b-\x1f\x7f\x9b]")
DEADLINE_S = 60.0


class Project:
    """Its commands run as a user's would: in processes of their own, output not on a terminal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_directory = folder / "runs" / "toy"

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.folder / name).read_text(encoding="utf-8")
        assert old in text
        self.write(name, text.replace(old, new))

    def hold(self, epoch: int) -> Path:
        """A file: while it is there, no trial goes on in this epoch."""
        begin = (
            f"    def __init__(self):\n        super().__init__(hold={str(self.folder / 'hold')!r})"
        )
        self.edit("tasks.py", "version = 1", f"version = 1\n\n{begin}")
        return hold(self.folder, epoch)

    def cerebro(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return warm_command().run(arguments, self.folder, environment(), DEADLINE_S)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command; the caller ends it."""
        return subprocess.Popen(
            [sys.executable, "-m", "cerebro", *arguments],
            cwd=self.folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @contextlib.contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A run in the background that takes minutes; interrupted in the end.

        Both of its trials have visits. Not longer: a trial may wait for another until that is
        behind by 2 % of what is left.
        """
        self.edit("experiment.yaml", "space:", "space:\n  visit_s: 0.05")
        with self.start("run", "experiment.yaml", "epochs=2000", *arguments) as process:
            try:
                wait_until(lambda: self.visited() >= {0, 1})
                yield process
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=DEADLINE_S)
            finally:
                process.kill()

    def terminal(
        self, *arguments: str, columns: int = 80, into: IO[str] | None = None, **variables: str
    ) -> tuple[int, str]:
        """Run a command in a terminal of its own; its exit code and all that was on the screen.

        Its standard output may go into a file instead, as with `>`.
        """
        ours, theirs = pty.openpty()
        try:
            termios.tcsetwinsize(theirs, (24, columns))
            with subprocess.Popen(
                [sys.executable, "-m", "cerebro", *arguments],
                cwd=self.folder,
                env={**environment(), "TERM": "xterm", **variables},
                stdin=subprocess.DEVNULL,
                stdout=theirs if into is None else into,
                stderr=theirs,
            ) as process:
                os.close(theirs)
                screen = b"".join(iter(lambda: _read(ours), b""))
            return process.returncode, screen.decode().replace("\r\n", "\n")
        finally:
            os.close(ours)

    def refuse(self, *arguments: str) -> str:
        """Run a command that must be refused in one paragraph; what it says."""
        before = self.content()
        done = self.cerebro(*arguments)
        assert done.returncode == 2, done.stdout + done.stderr
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1, "one paragraph"
        assert self.content() == before
        return done.stderr

    def content(self) -> dict[str, str]:
        """Everything in the folder: path -> digest, or "directory"."""
        return {
            str(path.relative_to(self.folder)): "directory"
            if path.is_dir()
            else hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.folder.rglob("*"))
        }

    def has_visits(self) -> bool:
        return bool(self.visited())

    def visited(self) -> set[int]:
        """Trials that have a visit in the journal."""
        if not (self.run_directory / "journal.jsonl").exists():
            return set()
        found = read(DirectoryStore(self.run_directory)).records
        visits = [record for record in found if record["type"] == "visit"]
        numbers = [each.get("trials") or [each["trial"]] for each in visits]
        return {number for each in numbers for number in cast("list[int]", each)}


def _read(terminal: int) -> bytes:
    """What a terminal shows next; nothing at its end, which Linux tells as an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def make_project(folder: Path) -> Project:
    project = Project(folder)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 5))
    y = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0.5)
    cerebro.data.from_arrays(
        folder / "data", train={"x": x, "y": y}, shards=3, validation=0.2, seed=0
    )
    project.write("experiment.yaml", EXPERIMENT)
    project.write("tasks.py", TASKS)
    return project


def environment() -> dict[str, str]:
    """No compiled files beside the user's modules: they would count as changes.

    And no size of a terminal that is not the command's own.
    """
    foreign = {"PYTHONPATH", "COLUMNS", "LINES"}
    kept = {key: value for key, value in os.environ.items() if key not in foreign}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1"}


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def interrupt(project: Project, number: signal.Signals, *flags: str) -> tuple[int, str]:
    """Start the run, signal it after a visit, before its last epoch; its exit code, last words."""
    held = project.hold(1)
    process = project.start("run", "experiment.yaml", *flags)
    with process:
        try:
            wait_until(project.has_visits)
            process.send_signal(number)
            held.unlink()
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    return process.returncode, errors
