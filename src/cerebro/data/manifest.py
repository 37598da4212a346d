"""`dataset.json`: what a dataset consists of, with a digest of everything."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from cerebro.data.schema import Column, Schema, check_column_name
from cerebro.errors import DataError
from cerebro.types import Json, Split

FILE = "dataset.json"
FORMAT = "cerebro-dataset"
VERSION = 1
#: The only names a shard may have: a manifest cannot point at any other file.
SHARD_FILE = re.compile(r"(train|val|test|predict)-[0-9]{5,9}-[0-9a-f]{16}\.arrow")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_KEYS = {"format", "version", "schema", "splits", "digest"}
#: May be left out.
_LACKING = "lacking"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardInfo:
    """One shard's file, as the manifest names it."""

    file: str
    rows: int
    bytes: int
    sha256: str

    @staticmethod
    def name(split: Split, number: int, sha256: str) -> str:
        """A shard's file name; other content gives another name, so nothing is overwritten."""
        return f"{split}-{number:05d}-{sha256[:16]}.arrow"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetManifest:
    """What `dataset.json` says."""

    schema: Schema
    splits: Mapping[Split, tuple[ShardInfo, ...]]
    #: Columns that a split does not have, as labels of what is to be predicted.
    lacking: Mapping[Split, frozenset[str]] = field(default_factory=dict)

    def schema_of(self, split: Split) -> Schema:
        """The columns of a split."""
        lacking = self.lacking.get(split, frozenset())
        return {name: column for name, column in self.schema.items() if name not in lacking}

    @property
    def files(self) -> set[str]:
        return {info.file for shards in self.splits.values() for info in shards}

    @property
    def digest(self) -> str:
        """SHA-256 over schema, shards and their digests: equal only if every byte is equal."""
        return _digest(self._body())

    def to_bytes(self) -> bytes:
        body: dict[str, Json] = {**self._body(), "digest": self.digest}
        return (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> DatasetManifest:
        """Parse and check; every failure is a `DataError` that names `where`."""
        body = _parse(data, where)
        schema = _parse_schema(body["schema"], where)
        manifest = cls(
            schema=schema,
            splits=_parse_splits(body["splits"], where),
            lacking=_parse_lacking(body.get(_LACKING, {}), schema, where),
        )
        if manifest.digest != body["digest"]:
            raise DataError(
                f"{where} is damaged: its digest must be {manifest.digest}, "
                f"but it says {body['digest']!r}. Prepare the dataset again from its source."
            )
        return manifest

    def _body(self) -> dict[str, Json]:
        schema: list[Json] = [{"name": name, **c.to_json()} for name, c in self.schema.items()]
        splits: dict[str, Json] = {
            str(split): [
                {"file": i.file, "rows": i.rows, "bytes": i.bytes, "sha256": i.sha256}
                for i in shards
            ]
            for split, shards in self.splits.items()
        }
        body: dict[str, Json] = {"format": FORMAT, "version": VERSION}
        body |= {"schema": schema, "splits": splits}
        lacking: dict[str, Json] = {
            str(split): list[Json](sorted(names)) for split, names in self.lacking.items() if names
        }
        return {**body, _LACKING: lacking} if lacking else body


def _digest(body: dict[str, Json]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _parse(data: bytes, where: str) -> dict[str, Json]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not valid JSON: {error}.") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise DataError(f"{where} is not the manifest of a Cerebro dataset.")
    if body.get("version") != VERSION:
        raise DataError(
            f"{where} has format version {body.get('version')!r}, but this Cerebro reads "
            f"version {VERSION}. Use a newer Cerebro."
        )
    if set(body) - {_LACKING} != _KEYS:
        raise DataError(f"{where} must have exactly the keys {sorted(_KEYS)}, not {sorted(body)}.")
    return body


def _parse_schema(value: Json, where: str) -> dict[str, Column]:
    if not isinstance(value, list) or not value:
        raise DataError(f"{where}: schema must be a list of columns.")
    schema: dict[str, Column] = {}
    for entry in value:
        if not isinstance(entry, dict) or "name" not in entry:
            raise DataError(f"{where}: every column needs a name, but got {entry!r}.")
        name = check_column_name(entry["name"])
        if name in schema:
            raise DataError(f"{where}: column {name!r} is there twice.")
        rest = {key: part for key, part in entry.items() if key != "name"}
        schema[name] = Column.from_json(rest, where=f"{where}: column {name!r}")
    return schema


def _parse_splits(value: Json, where: str) -> dict[Split, tuple[ShardInfo, ...]]:
    if not isinstance(value, dict) or not set(value) <= set(Split):
        raise DataError(f"{where}: splits must be a mapping with keys out of {', '.join(Split)}.")
    splits: dict[Split, tuple[ShardInfo, ...]] = {}
    for name, shards in value.items():
        if not isinstance(shards, list) or not shards:
            raise DataError(f"{where}: split {name} must be a list of shards.")
        splits[Split(name)] = tuple(_parse_shard(shard, where) for shard in shards)
    return splits


def _parse_lacking(value: Json, schema: Schema, where: str) -> dict[Split, frozenset[str]]:
    if not isinstance(value, dict) or not set(value) <= set(Split):
        raise DataError(f"{where}: lacking must be a mapping of splits to columns.")
    found: dict[Split, frozenset[str]] = {}
    for split, names in value.items():
        if not isinstance(names, list) or not set(map(str, names)) < set(schema):
            raise DataError(f"{where}: split {split} must lack some of the columns, not {names!r}.")
        found[Split(split)] = frozenset(map(str, names))
    return found


def _parse_shard(value: Json, where: str) -> ShardInfo:
    if not isinstance(value, dict) or set(value) != {"file", "rows", "bytes", "sha256"}:
        raise DataError(f"{where}: a shard needs file, rows, bytes and sha256, but got {value!r}.")
    file, rows, size, sha256 = value["file"], value["rows"], value["bytes"], value["sha256"]
    if not isinstance(file, str) or not SHARD_FILE.fullmatch(file):
        raise DataError(f"{where}: {file!r} is not the name of a shard.")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise DataError(f"{where}: {sha256!r} is not a SHA-256.")
    if type(rows) is not int or type(size) is not int or rows < 1 or size < 1:
        raise DataError(f"{where}: rows and bytes of {file} must be integers >= 1.")
    return ShardInfo(file=file, rows=rows, bytes=size, sha256=sha256)
