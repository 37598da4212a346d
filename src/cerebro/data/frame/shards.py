"""Making shards of what was staged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cerebro.data.arrow import decode
from cerebro.data.columns import BytesColumn, SparseRows, TextColumn, Values
from cerebro.data.frame.cells import join
from cerebro.data.frame.deal import Deal, Staged
from cerebro.data.frame.plan import Piece, count, cut_up, even_out
from cerebro.data.inputs import Table
from cerebro.data.manifest import ShardInfo
from cerebro.data.order import shuffle
from cerebro.data.publication import split_rows, write_shard
from cerebro.data.schema import Column, Kind, Schema
from cerebro.data.tabular import default_shards
from cerebro.errors import DataError
from cerebro.storage.store import Store
from cerebro.types import Split


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """Which rows a shard consists of."""

    split: Split
    number: int
    seed: int
    schema: Schema
    #: Schemas that staged files have.
    staged: tuple[Schema, ...]
    #: Pieces, each with the number of its file's schema.
    pieces: tuple[tuple[int, Piece], ...]


def make_shard(store: Store, plan: ShardPlan) -> ShardInfo:
    """Put a shard together, its rows in random order, and write it."""
    parts = [_read(store, plan.staged[number], piece) for number, piece in plan.pieces]
    columns = {
        name: join([part[name] for part in parts], column) for name, column in plan.schema.items()
    }
    rows = count([piece for _, piece in plan.pieces])
    order = shuffle(rows, seed=plan.seed, split=f"{plan.split}-{plan.number}")
    table = Table(columns, plan.schema, rows)
    return write_shard(store, plan.split, plan.number, table.take(order), plan.schema)


def plan_shards(staged: Sequence[Staged], deal: Deal, *, exact: bool) -> list[ShardPlan]:
    """The shards of all that was staged; every row is in one.

    Args:
        exact: There must be as many train shards as the deal has; else as many as `default_shards`
            says, for the same rows the same number.
    """
    staged = sorted(staged, key=lambda each: (each.part, each.run))
    heaps = [_pieces(staged, heap) for heap in range(deal.shards + 1)]
    sizes = _sizes([count(heap) for heap in heaps], deal, exact=exact)
    *trains, val = even_out(heaps, sizes)
    trains = [heap for heap in trains if heap]
    schema, schemas = agree(staged)
    numbers = {each.file: schemas.index(each.schema) for each in staged}
    rows_per_shard = max(map(count, trains))
    val_shards = -(-sizes[-1] // rows_per_shard)
    vals = cut_up(val, [_length(part) for part in split_rows(sizes[-1], val_shards)]) if val else []
    return [
        ShardPlan(
            split=split,
            number=number,
            seed=deal.seed,
            schema=schema,
            staged=tuple(schemas),
            pieces=tuple((numbers[piece.file], piece) for piece in pieces),
        )
        for split, shards in ((Split.TRAIN, trains), (Split.VAL, vals))
        for number, pieces in enumerate(shards)
    ]


def agree(staged: Sequence[Staged]) -> tuple[Schema, list[Schema]]:
    """The schema that fits all, and the different ones there are.

    A column of vectors is sparse if it is so everywhere.
    """
    schemas: list[Schema] = []
    for each in staged:
        if each.schema not in schemas:
            schemas.append(each.schema)
    agreed: dict[str, Column] = {}
    for name in schemas[0]:
        found = {schema[name] for schema in schemas}
        dense = {
            Column(kind=Kind.TENSOR, dtype=c.dtype, shape=c.shape) if c.kind is Kind.SPARSE else c
            for c in found
        }
        if len(dense) > 1:
            raise DataError(
                f"column {name!r} must be the same in all rows, but is "
                f"{' and '.join(sorted(map(str, dense)))} in different ones."
            )
        agreed[name] = found.pop() if len(found) == 1 else dense.pop()
    return agreed, schemas


def _pieces(staged: Sequence[Staged], heap: int) -> list[Piece]:
    found = [(each.file, each.heaps[heap]) for each in staged]
    return [
        Piece(file=file, offset=part.offset, bytes=part.bytes, start=0, stop=part.rows)
        for file, part in found
        if part.rows
    ]


def _sizes(counts: Sequence[int], deal: Deal, *, exact: bool) -> list[int]:
    """The rows of each train shard, and of all validation shards together."""
    rows = sum(counts)
    held_out = counts[-1] if deal.marker else round(rows * deal.validation)
    wants = bool(deal.marker or deal.validation)
    if rows and (held_out == rows or (wants and not held_out)):
        what = f"column {deal.marker!r}" if deal.marker else f"validation={deal.validation}"
        raise DataError(
            f"{what} of {rows} rows leaves no row for "
            f"{'validation' if not held_out else 'training'}."
        )
    train = rows - held_out
    if not train or (exact and train < deal.shards):
        raise DataError(
            f"every shard needs a row, but there are {train} training rows for "
            f"num_partitions={deal.shards}. Ask for fewer partitions."
        )
    shards = deal.shards if exact else min(deal.shards, default_shards(train))
    sizes = [_length(part) for part in split_rows(train, shards)]
    return [*sizes, *[0] * (deal.shards - shards), held_out]


def _length(part: slice) -> int:
    return int(part.stop - part.start)


def _read(store: Store, schema: Schema, piece: Piece) -> dict[str, Values]:
    data = store.read_from(piece.file, piece.offset, piece.bytes)
    if len(data) != piece.bytes:
        raise DataError(f"{store.where(piece.file)} must have the rows that were staged there.")
    columns = decode(pa.py_buffer(data), schema, check=False)
    return {name: _slice(values, piece) for name, values in columns.items()}


def _slice(values: Values, piece: Piece) -> Values:
    if isinstance(values, np.ndarray):
        return values[piece.start : piece.stop]
    if isinstance(values, SparseRows):
        return values.take(np.arange(piece.start, piece.stop))
    part = values.arrow.slice(piece.start, piece.rows)
    return TextColumn(part) if isinstance(values, TextColumn) else BytesColumn(part)
