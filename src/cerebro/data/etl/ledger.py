"""What an ETL has done so far, so that a killed one goes on: a few files beside the shards."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from typing import Any

from cerebro.data.dataset import Dataset
from cerebro.data.etl.prepare import Part
from cerebro.data.etl.staging import SCRATCH
from cerebro.data.manifest import DatasetManifest, ShardInfo
from cerebro.data.schema import Column
from cerebro.data.shard import sha256
from cerebro.data.sources.bad_rows import BadRow
from cerebro.errors import StoreError
from cerebro.storage.store import DirectoryStore
from cerebro.types import Json, Split

#: How the dataset was made, once it is.
FILE = "etl.json"
_PLAN, _PARTS = f"{SCRATCH}/plan.json", f"{SCRATCH}/parts.jsonl"


class Ledger:
    """The shards of one plan that are done.

    Args:
        store: That of the dataset.
        plan: What decides the shards; a ledger of another plan is thrown away.
    """

    def __init__(self, store: DirectoryStore, plan: Mapping[str, Json]) -> None:
        self._store = store
        self._plan = json.dumps(plan, sort_keys=True).encode()

    def begin(self, *, is_fresh: bool = False) -> list[Part]:
        """Parts that an earlier process with this plan has done, and whose files are whole."""
        is_same = self._store.exists(_PLAN) and self._store.read(_PLAN) == self._plan
        if is_fresh or not is_same:
            self._store.remove(_PARTS)
            self._store.write(_PLAN, self._plan)
            return []
        if not self._store.exists(_PARTS):
            return []
        found: dict[tuple[Split, int], Part] = {}
        for line in self._store.read(_PARTS).splitlines():
            # The last one may be cut off.
            with contextlib.suppress(ValueError, KeyError, TypeError):
                part = _part_from(json.loads(line))
                if self._is_whole(part):
                    found[part.split, part.number] = part
        return list(found.values())

    def add(self, part: Part) -> None:
        """Keep a part that is done."""
        self._store.append(_PARTS, json.dumps(_part_to(part)).encode() + b"\n")

    def finish(self, manifest: DatasetManifest, report: Mapping[str, Json]) -> None:
        """Say how the dataset was made, and remove what is no longer needed."""
        body = {"digest": manifest.digest, "plan": json.loads(self._plan), "report": report}
        self._store.write(FILE, json.dumps(body, indent=1).encode() + b"\n")
        self.clear()

    def clear(self) -> None:
        """Remove all that is only needed while shards are made."""
        self._store.close()
        shutil.rmtree(self._store.local_path(SCRATCH), ignore_errors=True)

    def finished(self, dataset: Dataset | None) -> Mapping[str, Any] | None:
        """The report of an ETL with this plan that made this dataset, if all its shards are there.

        Whether they are whole is seen when they are opened.
        """
        if dataset is None or not self._store.exists(FILE):
            return None
        shards = [info for split in dataset.splits for info in dataset.shards(split)]
        if any(_size(self._store.local_path(info.file)) != info.bytes for info in shards):
            return None
        try:
            body = json.loads(self._store.read(FILE))
            is_same = body["digest"] == dataset.digest and body["plan"] == json.loads(self._plan)
            return dict(body["report"]) if is_same else None
        except (ValueError, KeyError, TypeError):
            return None

    def _is_whole(self, part: Part) -> bool:
        if part.info is None:
            return True
        try:
            return sha256([memoryview(self._store.read(part.info.file))]) == part.info.sha256
        except StoreError:
            return False


def _size(path: str) -> int | None:
    try:
        return os.path.getsize(path)
    except OSError:
        return None


def scratch_path(store: DirectoryStore, name: str) -> str:
    """A file for raw rows; its directory is there."""
    folder = store.local_path(SCRATCH)
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, name)


def _part_to(part: Part) -> dict[str, Any]:
    info = part.info
    return {
        "split": str(part.split),
        "number": part.number,
        "rows": part.rows,
        "schema": [[name, column.to_json()] for name, column in part.schema.items()],
        "bad": [json.loads(row.to_json()) for row in part.bad],
        "file": None if info is None else [info.file, info.rows, info.bytes, info.sha256],
    }


def _part_from(value: dict[str, Any]) -> Part:
    info = None
    if value["file"] is not None:
        file, rows, size, digest = value["file"]
        info = ShardInfo(file=file, rows=rows, bytes=size, sha256=digest)
    return Part(
        split=Split(value["split"]),
        number=value["number"],
        info=info,
        schema={name: Column.from_json(c, where=_PARTS) for name, c in value["schema"]},
        rows=value["rows"],
        bad=tuple(BadRow(**row) for row in value["bad"]),
    )
