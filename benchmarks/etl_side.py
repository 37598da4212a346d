"""One side of the ETL benchmark, run as a process of its own.

    python -m benchmarks.etl_side MODULE:FUNCTION WORK

The function is a generator, given WORK (JSON): it yields when it is ready to begin, when the work
is done, and then what it found in the files that it wrote. Each time it waits to be told to go on:
who holds the watch sits at the other end. Needs nothing but the standard library, because some
sides live in environments of their own.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

Work = Mapping[str, Any]
#: What a side is: told its work, it yields three times.
Told = Iterator[Mapping[str, Any]]


def serve(reference: str, work: Work) -> None:
    """Take the steps of a side, one for each line that comes in."""
    # Only what is said here goes to the one who listens; whatever else is printed does not.
    with os.fdopen(os.dup(1), "w") as listener:
        os.dup2(2, 1)
        module, _, function = reference.partition(":")
        for said in getattr(import_module(module), function)(work):
            print(json.dumps(said), file=listener, flush=True)
            sys.stdin.readline()


def digest(path: str) -> str:
    """The SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sealed(path: str) -> str:
    """The SHA-256 of a file that was written, once it is on the disk, as our shards are."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests_in(folder: str, ending: str) -> dict[str, str]:
    """Those of all files of a folder with this ending."""
    found = {}
    for place, _, names in os.walk(folder):
        for name in sorted(names):
            if name.endswith(ending):
                found[os.path.join(place, name)] = digest(os.path.join(place, name))
    return found


def parts(rows: int, shards: int) -> list[slice]:
    """Rows cut into so many parts of about one size."""
    bounds = [rows * number // shards for number in range(shards + 1)]
    return [slice(*pair) for pair in itertools.pairwise(bounds)]


def written(
    work: Work, rows: int, ending: str, write: Callable[[slice, str], None], *, threads: int = 1
) -> dict[str, str]:
    """Let all shards be written, synced and digested; with two threads two at a time."""

    def one(item: tuple[int, slice]) -> tuple[str, str]:
        path = os.path.join(work["out"], f"{item[0]}{ending}")
        write(item[1], path)
        return path, sealed(path)

    cut = list(enumerate(parts(rows, work["shards"])))
    if threads == 1:
        return dict(map(one, cut))
    with ThreadPoolExecutor(threads) as pool:
        return dict(pool.map(one, cut))


if __name__ == "__main__":
    serve(sys.argv[1], json.loads(sys.argv[2]))
