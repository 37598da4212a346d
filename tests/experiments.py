"""Small experiments that several suites run, kill, break and compare."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from cerebro.backend import Backend, InlineBackend
from cerebro.backend.base import Done, Event
from cerebro.data import Dataset, from_arrays, open_dataset
from cerebro.errors import CerebroError, StoreError
from cerebro.results import Result
from cerebro.run.fit import Settings, fit
from cerebro.run.recovery import load_history, open_run
from cerebro.run.spec import Checkpointing, RunSpec
from cerebro.search import Space, make_sampler, parse_space
from cerebro.search.stopper import Stopper
from cerebro.search.stoppers import make_stopper
from cerebro.storage import DirectoryStore, Store
from cerebro.storage.disk import Buffer, Disk
from cerebro.testing.toy import ToyTask
from cerebro.track.tracker import Tracker
from cerebro.types import Mode, trial_id

SPACE: Mapping[str, object] = {"lr": [0.5, 0.05]}
#: How trials are stacked where a test does not say: false, auto, or a number. For tests alone.
STACK: bool | int | str = yaml.safe_load(os.environ.get("CEREBRO_TEST_STACK", "false"))


@contextlib.contextmanager
def fast_folder() -> Iterator[Path]:
    """A folder in memory where there is one: tests that sync a thousand times need no disk."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="test-", dir=memory) as folder:
        yield Path(folder)


def make_toy_data(path: Path, *, shards: int = 2, rows: int = 96, seed: int = 0) -> Dataset:
    """Three overlapping clouds of points, a quarter of them for validation (at least a shard)."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, rows)
    x = (rng.normal(size=(rows, 4)) + 0.7 * y[:, None] * [1, -1, 0.5, 0]).astype(np.float32)
    return from_arrays(path, train={"x": x, "y": y}, shards=shards, validation=0.25)


def toy_spec(data: Path, space: Mapping[str, object] = SPACE, **changes: Any) -> RunSpec:
    """What an experiment on toy data asks for."""
    dataset = open_dataset(data)
    fields: dict[str, Any] = {
        "name": "toy",
        "data": str(data),
        "data_digest": dataset.digest,
        "train_shards": len(dataset.shards("train")),
        "val_shards": len(dataset.shards("val")),
        "space": parse_space(space).to_json(),
        "search": "grid",
        "num_trials": None,
        "epochs": 2,
        "batch_size": 16,
        "metric": "val_loss",
        "mode": Mode.MIN,
        "seed": 0,
        "threads_per_worker": 1,
        "checkpoint": Checkpointing.VISIT,
        "stack": STACK,
    }
    return RunSpec(**{**fields, **changes})


def fit_toy(
    root: Path | str,
    spec: RunSpec,
    *,
    disk: Disk | None = None,
    store: Store | None = None,
    backend: Backend | None = None,
    trackers: Sequence[Tracker] = (),
    **settings: Any,
) -> None:
    """Carry a toy run to its end on the inline backend, on this disk."""
    chosen = {"task": ToyTask(), "workers": 1, "threaded": False, **settings}
    space = parse_space(spec.space)
    fit(
        spec,
        Settings(**chosen),
        store=store or DirectoryStore(root, disk),
        backend=backend or InlineBackend(),
        sampler=make_sampler(
            {"name": spec.search, **spec.search_options},
            space,
            seed=spec.seed,
            num_trials=spec.num_trials,
            modes=[spec.mode],
        ),
        trackers=trackers,
        stopper=toy_stopper(spec, space),
    )


def toy_stopper(spec: RunSpec, space: Space) -> Stopper | None:
    """What the spec says about how far trials are trained."""
    given = [dict(each) for each in (spec.goal, spec.stopper) if each]
    return make_stopper(
        given or None,
        metric=spec.metric,
        mode=spec.mode,
        epochs=spec.epochs,
        num_trials=spec.num_trials,
        seed=spec.seed,
        space=space,
    )


class Outcome(NamedTuple):
    """All that two equal runs have in common."""

    digest: str
    leaderboard: list[dict[str, Any]]


def outcome(root: Path | str) -> Outcome:
    result = Result.open(root)
    assert result.is_finished, f"{root} is not finished"
    return Outcome(result.digest(), list(result.leaderboard()))


def learnt(root: Path) -> dict[int, tuple[object, ...]]:
    """For each trial what it was, how it ended, its metrics and its checkpoints."""
    _, history = load_history(DirectoryStore(root))
    return {
        number: (
            dict(trial.params),
            trial.status,
            [epoch.metrics for epoch in trial.epochs],
            Result.open(root).states(number),
        )
        for number, trial in history.trials.items()
    }


def trial_files(root: Path, trial: int) -> list[str]:
    """The names in a trial's folder of checkpoints."""
    folder = root / "trials" / trial_id(trial) / "checkpoints"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def refusal(work: Callable[[], object]) -> CerebroError | None:
    """The error that ends it; None if nothing does."""
    try:
        work()
    except CerebroError as error:
        return error
    return None


def in_child(work: Callable[[], object]) -> int:
    """Do it in a forked process; its wait status (0: done; 99 as exit code: it raised)."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(99)
    return os.waitpid(pid, 0)[1]


def stop_after(root: Path, spec: RunSpec, *, visits: int) -> None:
    """Make a run that stopped in order after so many durable visits; nothing is left over.

    A visit of a stack is as far as one of each of its trials.
    """
    if isinstance(spec.stack, int) and spec.stack > 1:
        visits = max(1, visits // 2)
    with contextlib.suppress(StoreError):
        fit_toy(root, spec, disk=_JournalLimit(visits))
    # Opening a run repairs it.
    with open_run(DirectoryStore(root), spec, fresh=False, force=False) as run:
        alone = sum(trial.visits for trial in run.history.trials.values() if trial.stack is None)
        found = alone + sum(stack.visits for stack in run.history.stacks.values())
    assert found == visits, f"{found} visits are durable, not {visits}"


class _JournalLimit(Disk):
    """A disk whose journal takes so many visits and fails at the next."""

    def __init__(self, visits: int) -> None:
        super().__init__()
        self._left = visits

    def append(self, path: str, data: Buffer) -> None:
        self._left -= bytes(data).count(b'"type":"visit"')
        if self._left < 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().append(path, data)


def content(folder: Path) -> dict[str, str]:
    """Everything in a folder: path -> digest, or "directory"."""
    return {
        str(path.relative_to(folder)): "directory"
        if path.is_dir()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
    }


def copy_run(root: Path, target: Path) -> Path:
    """A copy of a run that may be broken."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(root, target)
    return target


class StoppedAfter(InlineBackend):
    """A signal arrives once so many train visits are done."""

    def __init__(self, count: int, number: int = signal.SIGINT) -> None:
        super().__init__()
        self.left = count
        self.number = number

    def events(self) -> list[Event]:
        found = super().events()
        for event in found:
            if isinstance(event, Done) and event.call.is_training:
                self.left -= 1
                if self.left == 0:
                    os.kill(os.getpid(), self.number)
        return found
