"""One shard: its raw rows through the user's code, into columns, into a file."""

from __future__ import annotations

import contextlib
import json
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cerebro.data.archive.decoders import Decoder
from cerebro.data.columns import Index
from cerebro.data.conversion import concatenate, to_column
from cerebro.data.etl.objects import Objects
from cerebro.data.etl.plan import SplitPlan
from cerebro.data.etl.stacks import Stacks, named, pair
from cerebro.data.etl.staging import FILE, LINE, SCRATCH, Place, Row, Staged, place_of, rows_of
from cerebro.data.inputs import Input, as_table, as_values
from cerebro.data.manifest import ShardInfo
from cerebro.data.publication import write_shard
from cerebro.data.roles import ID
from cerebro.data.schema import Schema
from cerebro.data.sources.bad_rows import BadRow, Policy
from cerebro.errors import CerebroError, DataError, StoreError, UsageError
from cerebro.etl_spec import ETLSpec
from cerebro.storage.store import DirectoryStore
from cerebro.types import Split

#: Rows that are in memory at once; the files of the next ones are fetched meanwhile.
WINDOW = 256
#: Rows that `batch_prep` gets at once.
BATCH = 4096
#: What is not the user's own code.
_PACKAGE = str(Path(__file__).parents[2])
#: Characters of a bad row that are kept.
_KEPT_TEXT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A shard that was written; None if no row of it was any good."""

    split: Split
    number: int
    info: ShardInfo | None
    schema: Schema
    rows: int
    bad: tuple[BadRow, ...] = ()


class Preparer:
    """What one worker has opened to prepare shards.

    Args:
        store: That of the dataset that is being made.
        tick: Called with the number of rows that are begun.
        tables: The raw rows of splits that are in memory; the others are mapped.
    """

    def __init__(
        self,
        spec: ETLSpec | None,
        store: DirectoryStore,
        *,
        policy: Policy,
        tick: Callable[[int], None],
        tables: Mapping[Split, Staged],
    ) -> None:
        self._spec = spec
        self._store = store
        self._policy = policy
        self._tick = tick
        self._staged = dict(tables)
        if spec is not None:
            spec.initialize_worker()

    def prepare(self, plan: SplitPlan, number: int) -> Part:
        """Prepare a shard of a split and write it."""
        split = plan.split
        if split not in self._staged:
            self._staged[split] = Staged.map(plan.staged)
        shard = _Shard(plan, self._staged[split], plan.rows_of(number), self._policy, self._tick)
        if self._spec is None:
            columns = shard.as_it_is()
        else:
            scratch = os.path.join(self._store.local_path(), SCRATCH)
            with Objects(plan.object_dir, plan.features, scratch) as objects:
                by_row = not self._spec.has("batch_prep")
                columns = (shard.row_by_row if by_row else shard.at_once)(self._spec, objects)
        common: dict[str, Any] = {"split": split, "number": number, "bad": tuple(shard.bad)}
        rows = len(shard.rows) - len(shard.bad)
        if not rows:
            return Part(info=None, schema={}, rows=0, **common)
        table = as_table(columns, split=split)
        info = write_shard(self._store, split, number, table.columns, table.schema)
        return Part(info=info, schema=table.schema, rows=rows, **common)


class _Shard:
    """The rows of one shard on their way."""

    def __init__(
        self,
        plan: SplitPlan,
        staged: Staged,
        rows: Index,
        policy: Policy,
        tick: Callable[[int], None],
    ) -> None:
        self._plan = plan
        self._staged = staged
        self._policy = policy
        self._tick = tick
        self.rows = rows
        self.bad: list[BadRow] = []

    def row_by_row(self, spec: ETLSpec, objects: Objects) -> dict[str, Input]:
        stacks, mode = Stacks(len(self.rows), self._plan.split), str(self._plan.split)
        for first, rows, object_dir in self._windows(objects):
            for number, row in enumerate(rows, start=first):
                self._tick(1)
                try:
                    objects.check(row)
                    if self._plan.is_archive:
                        row = _decoded(row, self._place(number), spec.images)
                    prepared = spec.row_prep(row, mode, object_dir)
                    odd = stacks.add(prepared, row.get(ID), number)
                except (UsageError, MemoryError):
                    raise
                except (Exception, SystemExit) as error:
                    self._reject(number, objects.missing(row) or error)
                else:
                    for earlier, reason in odd:
                        self._reject(earlier, reason)
        for earlier, reason in stacks.finish():
            self._reject(earlier, reason)
        return stacks.columns()

    def at_once(self, spec: ETLSpec, objects: Objects) -> dict[str, Input]:
        parts: list[dict[str, Any]] = []
        for first in range(0, len(self.rows), BATCH):
            table = self._staged.take(self.rows[first : first + BATCH])
            self._tick(table.num_rows)
            rows = rows_of(table) if self._plan.features else []
            object_dir = objects.fetch(rows)
            for number, row in enumerate(rows, start=first):
                try:
                    objects.check(row)
                    missing = objects.missing(row)
                except (DataError, StoreError) as error:
                    missing = error
                if missing is not None:
                    raise _failed(missing, row, self._place(number))
            given = table.drop_columns([FILE, LINE])
            prepared = spec.batch_prep(given, str(self._plan.split), object_dir)
            found = named(*pair(prepared, _AT_ONCE))
            if ID in table.schema.names:
                found[ID] = concatenate([to_column(table[ID], ID)])
            parts.append({name: _as_rows(name, v, table.num_rows) for name, v in found.items()})
        return _joined(parts)

    def as_it_is(self) -> dict[str, Input]:
        """Without a spec every column of the source is one of the dataset."""
        self._tick(len(self.rows))
        given = self._staged.take_values(self.rows)
        good = np.ones(len(self.rows), bool)
        for name in given.schema.names:
            if not given[name].null_count:
                continue
            for number in np.flatnonzero(good & given[name].is_null().to_numpy()).tolist():
                self._reject(number, DataError(f"column {name!r} must have a value, but has none"))
                good[number] = False
        if not good.all():
            given = given.filter(pa.array(good))
        names = given.schema.names
        return {name: concatenate([to_column(given[name], name)]) for name in names}

    def _windows(self, objects: Objects) -> Iterator[tuple[int, list[Row], str | None]]:
        """Rows a window at a time, each with the directory where the files they name are."""
        following = self._read(0)
        for first in range(0, len(self.rows), WINDOW):
            rows, following = following, self._read(first + WINDOW)
            yield first, rows, objects.fetch(rows, following)

    def _read(self, first: int) -> list[Row]:
        part = self.rows[first : first + WINDOW]
        return rows_of(self._staged.take(part)) if len(part) else []

    def _place(self, number: int) -> Place:
        return place_of(self._staged.take(self.rows[number : number + 1]), 0)

    def _reject(self, number: int, error: BaseException) -> None:
        table = self._staged.take(self.rows[number : number + 1])
        row, place = rows_of(table)[0], place_of(table, 0)
        if self._policy is Policy.FAIL:
            raise _failed(error, row, place) from error
        text = json.dumps(row, default=str, ensure_ascii=False)[:_KEPT_TEXT]
        reason = f"cannot be prepared: {_what(error)}"
        self.bad.append(BadRow(file=place.file, line=place.line, reason=reason, text=text))


_AT_ONCE = "batch_prep"


def _as_rows(name: str, values: Any, rows: int) -> Any:
    """Checked values of a column, an entry for each row."""
    checked = as_values(values, where=f"what batch_prep gives for {name!r}")
    if len(checked) != rows:
        raise DataError(
            f"batch_prep must give an entry for each row, but of {rows} rows {name!r} has "
            f"{len(checked)}."
        )
    return checked


def _joined(parts: list[dict[str, Any]]) -> dict[str, Input]:
    for part in parts:
        if part.keys() != parts[0].keys():
            raise DataError(
                f"batch_prep must give the same columns each time, but gave {', '.join(parts[0])} "
                f"at first and {', '.join(part)} later."
            )
    found: dict[str, Input] = {}
    for name in parts[0]:
        columns = [part[name] for part in parts]
        is_dense = isinstance(columns[0], np.ndarray)
        with contextlib.suppress(AttributeError):
            found[name] = concatenate([c if is_dense else c.arrow for c in columns])
            continue
        raise DataError(f"batch_prep must give arrays or text, but {name!r} is neither.")
    return found


def _decoded(row: Row, place: Place, images: str) -> Row:
    """A sample of an archive with values instead of bytes."""
    fields = {name: value for name, value in row.items() if value is not None and name != ID}
    sample = {"__key__": row[ID], "__source__": place.file, **fields}
    found = Decoder(images=images)(sample)
    return Row({ID: row[ID]}, **{name: found[name] for name in fields})


def _failed(error: BaseException, row: Row, place: Place) -> DataError:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_PACKAGE)]
    if isinstance(error, CerebroError):
        # It says itself what is wrong.
        own = []
    at = f" ({os.path.basename(own[-1].filename)}, line {own[-1].lineno})" if own else ""
    return DataError(
        f"{place}: the row with id {row.get(ID)!r} cannot be prepared: {_what(error)}{at}. Mend "
        "the row or row_prep, or pass on_bad_row='skip' or 'quarantine'."
    )


def _what(error: BaseException) -> str:
    said = str(error).rstrip(".")
    return said if isinstance(error, CerebroError) else f"{type(error).__name__}: {said}"
