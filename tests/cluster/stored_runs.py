"""Small runs on a store at a URL: killed at requests, and compared with one in a directory."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cerebro.storage import open_store
from cerebro.storage.journal import read
from cerebro.testing.history import check
from tests.experiments import fit_toy, make_toy_data, outcome, toy_spec

_KILLED = """
import sys
from pathlib import Path
from cerebro.storage.remote_objects import open_objects
from cerebro.storage.remote_store import RemoteStore
from cerebro.testing.faults import FaultyObjects, KillAfter
from tests.experiments import fit_toy, toy_spec
url, data, number = sys.argv[1:]
objects = FaultyObjects(open_objects(url)[0], KillAfter(int(number)))
fit_toy(url, toy_spec(Path(data)), store=RemoteStore(url, objects))
"""


def fit_options() -> dict[str, Any]:
    return {
        "num_epochs": 2,
        "batch_size": 16,
        "metric": "val_loss",
        "mode": "min",
        "progress": False,
    }


def visits(url: str) -> int:
    """How many the journal of a run has."""
    store = open_store(url)
    if not store.exists("journal.jsonl"):
        return 0
    return sum(record["type"] == "visit" for record in read(store).records)


def assert_exact_after_kills(url: str, folder: Path, *, stride: int) -> int:
    """Kill a run after its first request, then after one some further on, ...; how many kills.

    Each in a process of its own: clients have threads, which a fork would lose. One is resumed
    here while the next is on its way to be killed.
    """
    make_toy_data(folder / "data")
    spec = toy_spec(folder / "data")
    fit_toy(folder / "whole", spec)
    expected = outcome(folder / "whole")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def kill(number: int) -> int:
        given = [f"{url}/run{number}", str(folder / "data"), str(number)]
        command = [sys.executable, "-c", _KILLED, *given]
        return subprocess.run(command, env=environ, check=False, timeout=300).returncode

    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(kill, 1)
        for kills, number in enumerate(itertools.count(1, stride)):
            ended = under_way.result()
            if ended == 0:
                return kills
            assert ended == -signal.SIGKILL, f"it failed instead of being killed: {number}"
            under_way = pool.submit(kill, number + stride)
            place = f"{url}/run{number}"
            fit_toy(place, spec, store=open_store(place))
            assert outcome(place) == expected, f"another result after request {number}"
            check(place)
    raise AssertionError("unreachable")
