"""`cerebro doctor`."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import psutil

from cerebro.cli.directory import is_starting, open_directory
from cerebro.cli.table import format_bytes, format_columns
from cerebro.errors import CerebroError, CheckpointCorruptError
from cerebro.run.recovery import load_history
from cerebro.steering import find_driver
from cerebro.storage import Store, checkpoint
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.storage.journal import read as read_journal
from cerebro.storage.remote import local_path

#: Run in a process of its own: this one must never start CUDA.
_LIST_DEVICES = """
import json, torch
found = ["cpu"]
if torch.cuda.is_available():
    found += [f"cuda:{n} {torch.cuda.get_device_name(n)}" for n in range(torch.cuda.device_count())]
if torch.backends.mps.is_available():
    found.append("mps (untested)")
print(json.dumps(found))
"""
_DEVICES_S = 120.0
#: Extras for those who work on Cerebro, or that name other extras.
_HIDDEN_EXTRAS = {"all", "dev"}
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


def show_health(run: str | None) -> int:
    """Write what is there and what is missing; gives the exit code, 1 for a damaged run."""
    # First, so that a wrong name is told at once.
    store = None if run is None else open_directory(run)
    rows = [
        *_versions(),
        ("cores", _cores()),
        ("memory", _memory()),
        ("disk", _disk(Path.cwd() if run is None else Path(local_path(run) or Path.cwd()))),
        ("devices", _devices()),
    ]
    missing = list(_missing())
    rows += [("missing", text) for text in missing] or [("missing", "nothing")]
    print(format_columns(rows))
    return 0 if store is None else show_run(store)


def _versions() -> list[tuple[str, str]]:
    names = ("cerebro", "numpy", "pyarrow", "torch")
    found = [("python", f"{platform.python_version()} ({sys.executable})")]
    return found + [(name, version_of(name) or "not installed") for name in names]


def version_of(package: str) -> str | None:
    """The version of an installed package, which is not imported.

    >>> version_of("no-such-package") is None
    True
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cores() -> str:
    total = os.cpu_count() or 1
    if not hasattr(os, "sched_getaffinity"):
        return str(total)
    return f"{len(os.sched_getaffinity(0))} usable of {total}"


def _memory() -> str:
    memory = psutil.virtual_memory()
    return f"{format_bytes(memory.available)} available of {format_bytes(memory.total)}"


def _disk(path: Path) -> str:
    where = next((place for place in (path, *path.absolute().parents) if place.exists()), Path("/"))
    usage = shutil.disk_usage(where)
    return f"{format_bytes(usage.free)} free of {format_bytes(usage.total)} at {where}"


def _devices() -> str:
    if version_of("torch") is None:
        return "cpu (torch is not installed)"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LIST_DEVICES],
            capture_output=True,
            text=True,
            timeout=_DEVICES_S,
            check=True,
        )
        return ", ".join(json.loads(done.stdout.splitlines()[-1]))
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        return f"torch cannot be imported: {lines[-1]}"
    except (subprocess.TimeoutExpired, OSError, ValueError, IndexError) as error:
        return f"torch does not answer: {type(error).__name__}"


def _missing() -> Iterator[str]:
    """Optional packages that are not installed, and how to get them."""
    for requirement in metadata.requires("cerebro") or []:
        name, extra = _NAME.match(requirement), _EXTRA.search(requirement)
        if name is None or extra is None or extra[1] in _HIDDEN_EXTRAS:
            continue
        if version_of(name[0]) is None:
            yield f"{name[0]}: pip install 'cerebro[{extra[1]}]'"


def show_run(store: Store) -> int:
    """Verify a run and write what was found; gives the exit code."""
    print(f"\nrun {store.where()}")
    if is_starting(store):
        print("  is starting its workers: nothing to verify yet")
        return 0
    problems: list[str] = []
    refs: list[CheckpointRef] = []
    try:
        refs = _references(store)
        if read_journal(store).is_torn:
            print("  the last journal record was cut short; resuming the run drops it")
    except CerebroError as error:
        problems.append(str(error))
    problems += verify_checkpoints(store, refs)
    for problem in problems:
        print(f"  damaged: {problem}")
    if not problems:
        size = format_bytes(sum(ref.bytes for ref in refs))
        print(f"  run.json, journal and {len(refs)} checkpoints ({size}) are intact")
    return 1 if problems else 0


def _references(store: Store) -> list[CheckpointRef]:
    _, history = load_history(store)
    own = [ref for trial in history.trials.values() for ref in trial.checkpoints]
    return own + [ref for stack in history.stacks.values() for ref in stack.checkpoints]


def verify_checkpoints(store: Store, refs: list[CheckpointRef]) -> list[str]:
    """Read each checkpoint and compare its digests; gives what is wrong."""
    wrong: dict[CheckpointRef, str] = {}
    for ref in refs:
        try:
            checkpoint.load(store, ref)
        except CheckpointCorruptError as error:
            wrong[ref] = str(error)
    if wrong and find_driver(store) is not None:
        # A run that goes on removes what it needs no more.
        current = _references(store)
        wrong = {ref: problem for ref, problem in wrong.items() if ref in current}
    return list(wrong.values())
