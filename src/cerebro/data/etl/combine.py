"""Shards that workers have prepared, as one dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cerebro.data.dataset import Dataset
from cerebro.data.etl.prepare import Part
from cerebro.data.manifest import DatasetManifest, ShardInfo
from cerebro.data.roles import ID, is_label
from cerebro.data.schema import Schema
from cerebro.errors import DataError
from cerebro.types import Split


def combine(parts: Sequence[Part], before: Dataset | None) -> DatasetManifest:
    """The manifest of these parts, and of splits that were there before and are not among them."""
    schemas: dict[Split, Schema] = {}
    splits: dict[Split, tuple[ShardInfo, ...]] = {}
    if before is not None:
        prepared = {part.split for part in parts}
        for split in before.splits:
            if split not in prepared:
                schemas[split], splits[split] = before.schema_of(split), before.shards(split)
    for split in Split:
        own = sorted((p for p in parts if p.split is split and p.info), key=lambda p: p.number)
        if own:
            schemas[split] = _agreed(own)
            splits[split] = tuple(part.info for part in own if part.info)
    whole, lacking = _whole(schemas)
    ordered = {split: splits[split] for split in Split if split in splits}
    return DatasetManifest(schema=whole, splits=ordered, lacking=lacking)


def _agreed(parts: Sequence[Part]) -> Schema:
    first = parts[0].schema
    for part in parts[1:]:
        _check_same(first, part.schema, f"shard {parts[0].number}", f"shard {part.number}")
    return first


def _whole(schemas: Mapping[Split, Schema]) -> tuple[Schema, dict[Split, frozenset[str]]]:
    """The columns of all splits, and labels that some of them lack."""
    widest = max(schemas, key=lambda split: len(schemas[split]))
    whole = schemas[widest]
    lacking: dict[Split, frozenset[str]] = {}
    for split, schema in schemas.items():
        missing = frozenset(name for name in whole if name not in schema and is_label(name))
        _check_same({n: c for n, c in whole.items() if n not in missing}, schema, widest, split)
        if missing:
            lacking[split] = missing
    return whole, lacking


def _check_same(first: Schema, other: Schema, one: str, another: str) -> None:
    for name in [*first, *other]:
        ours, theirs = first.get(name), other.get(name)
        if ours != theirs and name == ID:
            raise DataError(
                f"ids must be of one kind in a dataset, but are {ours or 'not there'} in {one} and "
                f"{theirs or 'not there'} in {another}. Prepare all splits again together."
            )
        if ours != theirs:
            raise DataError(
                f"all rows must be prepared alike, but column {name!r} is {ours or 'not there'} in "
                f"{one} and {theirs or 'not there'} in {another}. Let row_prep give the same "
                "columns, shapes and dtypes for every row."
            )
