"""Drivers in processes of their own: started, watched and killed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import psutil

from cerebro.storage import DirectoryStore
from cerebro.storage.journal import read

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 100.0


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Return when the condition holds; fail the test if it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.005)


class DriverProcess:
    """One driver, its output and the run it works on.

    Args:
        module: What it runs.
        prefix: A command that runs a command elsewhere and becomes it.
        environment: Variables beside ours; None for one that it shall not have.
        folder: Where it is started; default here, where it finds the tests.
    """

    def __init__(
        self,
        options: dict[str, Any],
        output: Path,
        *,
        module: str = "tests.driver",
        prefix: Sequence[str] = (),
        environment: Mapping[str, str | None] | None = None,
        folder: Path = ROOT,
    ) -> None:
        experiment = options["experiment"]
        self.root = Path(experiment["store"]) / experiment["name"]
        self.output = output
        given = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
        with output.open("ab") as file:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", module, json.dumps(options)],
                cwd=folder,
                env={name: value for name, value in given.items() if value is not None},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.pid = self.process.pid
        self._seen: set[psutil.Process] = set()

    def workers(self) -> list[psutil.Process]:
        """Its live workers; they and what they have started are remembered for `survivors`."""
        found: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            driver = psutil.Process(self.pid)
            self._seen.update(driver.children(recursive=True))
            found = driver.children()
        return found

    def survivors(self) -> list[psutil.Process]:
        """Those of the workers seen so far that still run."""
        return [worker for worker in self._seen if is_alive(worker)]

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Its exit code."""
        return self.process.wait(timeout_s)

    def wait_for_visits(self, count: int, timeout_s: float = PATIENCE_S) -> None:
        """Until its journal has so many visits, or it has ended."""
        wait_for(
            lambda: self.has_ended() or count_visits(self.root) >= count,
            f"{count} visits in {self.root}; it said:\n{self.said()}",
            timeout_s,
        )

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def signal(self, number: int) -> None:
        """Send a signal as a terminal would: to its whole process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """SIGKILL it, and make sure that its workers end with it."""
        self.workers()
        self.process.kill()
        self.process.wait()
        wait_for(lambda: not self.survivors(), "workers gone after their driver")


@contextlib.contextmanager
def driving(options: dict[str, Any], output: Path, **how: Any) -> Iterator[DriverProcess]:
    """A driver that is dead in the end, however the test goes."""
    driver = DriverProcess(options, output, **how)
    try:
        yield driver
    finally:
        if not driver.has_ended():
            driver.process.kill()
            driver.process.wait()


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def hold(folder: Path, epoch: int) -> Path:
    """A file: while it is there, a task that is told to wait for such does not go on in this epoch.

    `ToyTask(hold=f"{folder}/hold")` is one.
    """
    path = folder / f"hold{epoch}"
    path.touch()
    return path


def count_lines(path: Path) -> int:
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def count_visits(root: Path) -> int:
    """Durable training visits of all trials, those that were rolled back included."""
    if not (root / "journal.jsonl").exists():
        return 0
    visits = [record for record in read(DirectoryStore(root)).records if record["type"] == "visit"]
    return sum(len(cast("list[int]", visit.get("trials", [0]))) for visit in visits)


#: Processes that are kept for all tests: Python's own, and that of tests/warm.py.
_KEPT = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "-m tests.warm ")


def started_by_tests() -> list[psutil.Process]:
    """Processes below this one, less those that are kept for all tests."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            command = " ".join(child.cmdline())
            if not any(kept in command for kept in _KEPT):
                found.append(child)
    return found
