"""Dealing out one part of a table: its rows in random order, a heap for each shard, staged.

What is staged has the form of shards, several of them one after the other in one file, so that
whoever makes a shard reads its own rows and no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cerebro.data.arrow import encode
from cerebro.data.columns import Index, SparseRows
from cerebro.data.frame.cells import as_columns
from cerebro.data.inputs import Table
from cerebro.data.order import generator
from cerebro.data.schema import Schema
from cerebro.errors import DataError
from cerebro.storage.store import Store

#: Bytes of rows that are dealt out at a time.
RUN_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """How rows are dealt out: the same everywhere."""

    shards: int
    #: Fraction of the rows that is held out for validation.
    validation: float = 0.0
    #: Or the column that marks these rows.
    marker: str | None = None
    seed: int = 0
    #: Leave sparse vectors sparse.
    sparse: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Rows of one heap in a staged file."""

    rows: int
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Some rows of a part, staged as one file: a heap for each shard, and one for validation."""

    part: int
    run: int
    file: str
    schema: Schema
    heaps: tuple[Segment, ...]
    #: Of sparse columns, the most entries that a row has.
    most: dict[str, int]


def stage(
    batches: Iterable[pa.RecordBatch], store: Store, prefix: str, deal: Deal, part: int
) -> Iterator[Staged]:
    """Deal out the rows of a part.

    Args:
        prefix: Begins the names of the files; no two attempts at a part may have the same.
        part: The part's number; decides, with the seed, how its rows are dealt out.
    """
    for run, group in enumerate(_runs(batches)):
        table = as_columns(group, sparse=deal.sparse, where=f"partition {part}")
        table, is_held_out = _take_marks(table, deal.marker)
        draw = generator(deal.seed, f"deal-{part}-{run}")
        parts: list[memoryview] = []
        heaps: list[Segment] = []
        offset = 0
        for rows in _heaps(table.rows, is_held_out, deal, draw):
            encoded = encode(table.take(rows), table.schema) if len(rows) else []
            size = sum(each.nbytes for each in encoded)
            heaps.append(Segment(rows=len(rows), offset=offset, bytes=size))
            parts += encoded
            offset += size
        file = f"{prefix}-{run}.stage"
        store.write(file, parts)
        most = {
            name: int(np.diff(values.indptr).max())
            for name, values in table.columns.items()
            if isinstance(values, SparseRows)
        }
        yield Staged(
            part=part, run=run, file=file, schema=table.schema, heaps=tuple(heaps), most=most
        )


def _runs(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        group.append(batch)
        size += batch.nbytes
        if size >= RUN_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _take_marks(table: Table, marker: str | None) -> tuple[Table, npt.NDArray[np.bool_] | None]:
    """The table without the column that marks rows for validation, and its marks."""
    if marker is None:
        return table, None
    marks = table.columns[marker]
    if not isinstance(marks, np.ndarray) or marks.ndim != 1:
        raise DataError(
            f"the validation column {marker!r} must hold booleans or numbers, one a row, but is "
            f"{table.schema[marker]}."
        )
    rest = {name: values for name, values in table.columns.items() if name != marker}
    schema = {name: column for name, column in table.schema.items() if name != marker}
    return Table(rest, schema, table.rows), marks > 0


def _heaps(
    rows: int,
    is_held_out: npt.NDArray[np.bool_] | None,
    deal: Deal,
    draw: np.random.Generator,
) -> list[Index]:
    order = draw.permutation(rows)
    if is_held_out is None:
        # On average the fraction exactly; what is over or lacking is settled once all is counted.
        held_out = int(rows * deal.validation + draw.random())
        val, train = order[:held_out], order[held_out:]
    else:
        val, train = order[is_held_out[order]], order[~is_held_out[order]]
    first = int(draw.integers(deal.shards))
    heaps = [train[(shard - first) % deal.shards :: deal.shards] for shard in range(deal.shards)]
    return [*heaps, val]
