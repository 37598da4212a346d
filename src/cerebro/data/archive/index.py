"""The index of a sharded dataset: a JSON file `<name>.shards` beside its shards.

::

    {"shardtype": "application/x-tar",
     "shards": [["train-000000.tar", "https://mirror/train-000000.tar"], ...],
     "metadata": {"samples": 1000, "bytes": 5120000,
                  "shards": [{"samples": 500, "bytes": 2560000, "sha256": "…"}, ...]}}

Every shard lists its replicas; a relative one is meant from where the index is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from cerebro.data.archive.errors import ArchiveError, quote, reason_of
from cerebro.data.archive.opening import is_absolute, is_remote, open_stream, redact, resolve
from cerebro.errors import DataError, UsageError
from cerebro.types import Json

SUFFIX = ".shards"
TAR = "application/x-tar"
TGZ = "application/x-tgz"

_MAX_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """One shard of an index."""

    urls: tuple[str, ...]
    samples: int | None = None
    bytes: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardIndex:
    """Shards, in order, and whatever else is known about the dataset."""

    shardtype: str
    shards: tuple[IndexEntry, ...]
    metadata: Mapping[str, Json] = field(default_factory=dict)

    @property
    def total_samples(self) -> int:
        """How many samples the shards have, as far as it is known."""
        return sum(shard.samples or 0 for shard in self.shards)

    @property
    def total_bytes(self) -> int:
        """How many bytes the shards have, as far as it is known."""
        return sum(shard.bytes or 0 for shard in self.shards)

    def to_bytes(self) -> bytes:
        """The index as a file: the same index, the same bytes."""
        details: list[Json] = [
            {"samples": shard.samples, "bytes": shard.bytes, "sha256": shard.sha256}
            for shard in self.shards
        ]
        totals: dict[str, Json] = {"samples": self.total_samples, "bytes": self.total_bytes}
        tree = {
            "shardtype": self.shardtype,
            "shards": [list(shard.urls) for shard in self.shards],
            "metadata": {**self.metadata, **totals, "shards": details},
        }
        return (json.dumps(tree, ensure_ascii=False, indent=1) + "\n").encode()


def read_index(url: str) -> ShardIndex:
    """Read an index; relative replicas become absolute or relative to the working directory."""
    shown = redact(url)
    try:
        with open_stream(url) as stream:
            data = stream.read(_MAX_BYTES + 1)
    except ArchiveError:
        raise
    except Exception as error:
        raise ArchiveError(shown, f"it cannot be read: {reason_of(error)}.") from error
    if len(data) > _MAX_BYTES:
        raise DataError(f"an index must have at most {_MAX_BYTES} bytes, but {shown} has more.")
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"the index {shown} must be JSON, but is not: {error}.") from error
    return _parse(tree, url, shown)


def _parse(tree: object, url: str, shown: str) -> ShardIndex:
    if not isinstance(tree, dict) or not isinstance(tree.get("shards"), list):
        raise DataError(f'the index {shown} must be an object with a list "shards", but is not.')
    metadata = tree.get("metadata", {})
    if not isinstance(metadata, dict):
        raise DataError(f'"metadata" of the index {shown} must be an object, but is not.')
    listed = tree["shards"]
    if not listed:
        raise DataError(f"the index {shown} must name at least one shard, but names none.")
    details = metadata.get("shards")
    if not isinstance(details, list) or len(details) != len(listed):
        details = [None] * len(listed)
    shards = tuple(
        _entry(replicas, detail, number, url)
        for number, (replicas, detail) in enumerate(zip(listed, details, strict=True))
    )
    rest = {key: value for key, value in metadata.items() if key != "shards"}
    shardtype = tree.get("shardtype", TAR)
    return ShardIndex(shardtype=str(shardtype), shards=shards, metadata=cast(dict[str, Json], rest))


def _entry(replicas: object, detail: object, number: int, url: str) -> IndexEntry:
    where = f"shard {number} of the index {redact(url)}"
    names = [replicas] if isinstance(replicas, str) else replicas
    if not isinstance(names, list) or not names or not all(_is_name(name) for name in names):
        raise DataError(f"{where} must be a list of its replicas' URLs, but is {quote(replicas)}.")
    known = detail if isinstance(detail, dict) else {}
    return IndexEntry(
        urls=tuple(dict.fromkeys(_resolved(names, url, where))),
        samples=_count(known.get("samples")),
        bytes=_count(known.get("bytes")),
        sha256=known["sha256"] if isinstance(known.get("sha256"), str) else None,
    )


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(name.strip()) and "\0" not in name


def _resolved(names: Sequence[str], url: str, where: str) -> list[str]:
    for name in names:
        if name.startswith("pipe:") or "::" in name:
            raise DataError(
                f"{where} must name plain files or URLs, but names {quote(redact(name))}."
            )
        if is_remote(url) and is_absolute(name) and not is_remote(name):
            # Whoever wrote the index must not make us read our own files.
            raise DataError(
                f"{where} comes from another machine and must not name local files, but names "
                f"{quote(name)}. Copy the index here if you trust it."
            )
    try:
        return [name if is_absolute(name) else resolve(url, name) for name in names]
    except UsageError as error:
        raise DataError(f"{where}: {error}") from error


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None
