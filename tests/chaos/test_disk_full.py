"""R8, R17: a full disk harms nothing committed; with space again the same command goes on."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cerebro.backend import LocalBackend
from cerebro.data import digits, from_arrays
from cerebro.errors import DiskFullError
from cerebro.run.spec import Checkpointing
from cerebro.storage.disk import Disk
from cerebro.storage.store import is_temp
from cerebro.testing.faults import WRITES, CountOnly, Fail, FaultyDisk
from cerebro.testing.history import check
from cerebro.track.files import FileTracker
from cerebro.track.tensorboard import TensorBoardTracker
from tests.experiments import (
    STACK,
    copy_run,
    fit_toy,
    make_toy_data,
    outcome,
    refusal,
    stop_after,
    toy_spec,
)
from tests.processes import count_visits, driving, hold, wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

NUMBERS = r"(\d+) bytes are needed and (\d+) are free"


@pytest.fixture
def spec(folder):
    make_toy_data(folder / "data")
    return toy_spec(folder / "data")


def temporaries(root):
    return [path for path in root.rglob("*") if is_temp(path.name)]


def run_until_full(root, spec, n, *, always, **settings):
    """Run on a disk that is full from its n-th operation on; False if the run needed fewer."""
    rule = Fail(n, errno.ENOSPC, always=always, only=WRITES)
    disk = FaultyDisk(Disk(), rule)
    error = refusal(lambda: fit_toy(root, spec, disk=disk, **settings))
    if error is None:
        assert not disk.has_fired, f"operation {n} failed, and nobody noticed"
    else:
        assert isinstance(error, DiskFullError), error
        assert error.exit_code == 75
        assert re.search(NUMBERS, str(error)), error
        assert "run the same command again" in str(error)
    return n <= len(disk.operations)


def assert_exact_after_every_full_disk(folder, spec, *, always, start=None, **settings):
    """Full at operation 1, 2, 3 … of a run (or of the resumption of `start`)."""
    fit_toy(folder / "whole", spec, **settings)
    expected = outcome(folder / "whole")
    for n in itertools.count(1):
        root = folder / "run"
        if start is not None:
            copy_run(start, root)
        before = count_visits(root)
        if not run_until_full(root, spec, n, always=always, **settings):
            return n
        assert not temporaries(root), f"temporaries left by operation {n}"
        check(root, is_settled=False)
        assert count_visits(root) >= before
        fit_toy(root, spec, **settings)
        assert outcome(root) == expected, f"another result after operation {n}"
        check(root)
        shutil.rmtree(root)
    raise AssertionError("unreachable")


ALWAYS = pytest.mark.parametrize("always", [True, False], ids=["for-good", "for-a-moment"])


@ALWAYS
def test_a_disk_that_is_full_at_any_write_of_a_run_harms_nothing(folder, spec, always):
    assert assert_exact_after_every_full_disk(folder, spec, always=always) > (80 if STACK else 100)


@ALWAYS
def test_nor_at_any_write_of_its_resumption(folder, spec, always):
    stop_after(folder / "half", spec, visits=5)
    start = folder / "half"
    assert assert_exact_after_every_full_disk(folder, spec, always=always, start=start) > (
        30 if STACK else 50
    )


@pytest.mark.parametrize("options", [{"checkpoint": Checkpointing.EPOCH}, {}], ids=["epoch", "top"])
def test_nor_at_any_write_of_other_kinds_of_runs(folder, spec, options):
    settings = {} if options else {"keep_top": 1}
    spec = toy_spec(folder / "data", **options)
    assert assert_exact_after_every_full_disk(folder, spec, always=True, **settings) > 70


def test_a_run_that_cannot_begin_leaves_nothing(folder, spec):
    """Until run.json is there, there is no run."""
    disk = FaultyDisk(Disk(), Fail(1, errno.ENOSPC, always=True, only=WRITES))
    with pytest.raises(DiskFullError):
        fit_toy(folder / "runs" / "run", spec, disk=disk)
    assert not (folder / "runs").exists()


def test_worker_processes_end_when_the_disk_is_full(folder, spec):
    """The checkpoint is written on a thread beside the driver, from memory shared with workers."""
    counting = FaultyDisk(Disk(), CountOnly())
    options = {"workers": 2, "threaded": True}
    fit_toy(folder / "whole", spec, disk=counting, backend=LocalBackend(), **options)
    for n in range(10, len(counting.operations), 40):
        root = folder / f"run{n}"
        run_until_full(root, spec, n, always=True, backend=LocalBackend(), **options)
        assert not temporaries(root)
        check(root, is_settled=False)
        fit_toy(root, spec)
        assert outcome(root) == outcome(folder / "whole")
        check(root)


# A real full disk


@contextlib.contextmanager
def small_disk(mount_point: Path, size: str):
    """A file system of that size; skips the test where none may be mounted."""
    mount_point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(mount_point)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("needs the mount command")
    if done.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {done.stderr.strip()}")
    try:
        yield mount_point
    finally:
        subprocess.run(["umount", "--lazy", str(mount_point)], check=True)


def fill(disk: Path) -> Path:
    """Use up all that is free."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for block in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(b"\1" * block):
                    pass
    return ballast


def options_for(folder, store, task, space, *, backend="local", **task_options):
    return {
        "task": task,
        "task_options": task_options,
        "fit": {
            "space": space,
            "num_epochs": 8,
            "batch_size": 16,
            "metric": "val_loss",
            "mode": "min",
        },
        "experiment": {
            "name": "run",
            "data": str(folder / "data"),
            "store": str(store),
            "backend": backend,
            "workers": 2,
            "seed": 3,
        },
    }


def net_options(folder, store, **options):
    return options_for(folder, store, "net", {"lr": [0.01, 0.001], "width": 32}, **options)


@pytest.fixture
def digits_data(folder):
    from_arrays(folder / "data", train=digits(), shards=4, validation=0.2)


def drive(options, output):
    with driving(options, output) as driver:
        code = driver.wait()
    assert "Traceback" not in driver.said(), driver.said()
    return code, driver


def fill_under(options, disk, output, held):
    """Start a driver, held by a file, and fill its disk until it gives up; its run."""
    with driving(options, output) as driver:
        driver.wait_for_visits(3)
        fill(disk)
        held.unlink()
        # Again and again: checkpoints that were replaced free their space.
        wait_for(lambda: fill(disk) and driver.has_ended(), "the driver gives up")
        assert driver.wait() == 75, driver.said()
        wait_for(lambda: not driver.survivors(), "workers gone")
    assert re.search(NUMBERS, driver.said())
    assert "Traceback" not in driver.said()
    assert not temporaries(driver.root)
    check(driver.root, is_settled=False)
    assert count_visits(driver.root) >= 3
    return driver.root


def assert_goes_on(options, folder, whole):
    """With space again it ends as a run that never lacked any."""
    code, driver = drive(options, folder / "last.txt")
    assert code == 0, driver.said()
    check(driver.root)
    code, other = drive(whole, folder / "whole.txt")
    assert code == 0, other.said()
    assert outcome(driver.root) == outcome(other.root)


def test_a_torch_run_goes_on_after_its_disk_was_full(folder, digits_data):
    held = hold(folder, 1)
    with small_disk(folder / "small", "8m") as disk:
        options = net_options(folder, disk, log=str(folder / "visits"), hold=str(held))
        fill_under(options, disk, folder / "full.txt", held)
        (disk / "ballast").unlink()
        assert_goes_on(options, folder, net_options(folder, folder / "runs", backend="inline"))


def test_a_run_resumed_without_any_space_loses_nothing(folder, spec):
    with small_disk(folder / "small", "1m") as disk:
        held = hold(folder, 2)
        options = options_for(folder, disk, "toy", {"lr": [0.5, 0.05]}, hold=str(folder / "hold"))
        root = fill_under(options, disk, folder / "full.txt", held)
        fill(disk)
        assert shutil.disk_usage(disk).free == 0
        before = (root / "journal.jsonl").read_bytes()
        code, driver = drive(options, folder / "again.txt")
        assert code == 75, driver.said()
        assert (root / "journal.jsonl").read_bytes().startswith(before)
        (disk / "ballast").unlink()
        whole = options_for(folder, folder / "runs", "toy", {"lr": [0.5, 0.05]}, backend="inline")
        assert_goes_on(options, folder, whole)


def test_a_finished_run_is_read_on_a_disk_without_any_space(folder, spec):
    with small_disk(folder / "small", "1m") as disk:
        fit_toy(disk / "run", spec)
        found = outcome(disk / "run")
        fill(disk)
        fit_toy(disk / "run", spec)
        assert outcome(disk / "run") == found


def test_trackers_whose_disk_is_full_cost_one_warning_each(folder, spec, caplog):
    """R17: the run itself is on another disk."""
    fit_toy(folder / "without", spec)
    with small_disk(folder / "small", "1m") as disk:
        fill(disk)
        trackers = [FileTracker(disk / "run"), TensorBoardTracker(disk / "run")]
        with caplog.at_level(logging.WARNING, logger="cerebro"):
            fit_toy(folder / "run", spec, trackers=trackers)
    assert sorted(message.split()[1] for message in caplog.messages) == [
        "FileTracker",
        "TensorBoardTracker",
    ]
    assert all("No space left" in message for message in caplog.messages)
    assert outcome(folder / "run") == outcome(folder / "without")
    check(folder / "run")


def test_a_new_run_on_a_disk_without_any_space_leaves_nothing(folder, spec):
    with small_disk(folder / "small", "1m") as disk:
        fill(disk)
        options = options_for(folder, disk / "runs", "toy", {"lr": [0.5, 0.05]})
        code, driver = drive(options, folder / "output.txt")
        assert code == 75, driver.said()
        assert re.search(NUMBERS, driver.said())
        assert [path.name for path in disk.iterdir()] == ["ballast"]


def test_a_run_whose_checkpoints_cannot_fit_is_refused_at_its_first_state(folder, digits_data):
    with small_disk(folder / "small", "64k") as disk:
        code, driver = drive(net_options(folder, disk, backend="inline"), folder / "output.txt")
        assert code == 75, driver.said()
        found = re.search(r"need up to (\d+) bytes, but (\d+) are free", driver.said())
        assert found, driver.said()
        assert int(found[1]) > int(found[2])
        assert count_visits(driver.root) == 0
        assert not temporaries(driver.root)
