"""One shard: its raw rows through the user's code, into columns, into a file."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cerebro.data.archive.decoders import Decoder
from cerebro.data.collect import RowStack
from cerebro.data.conversion import concatenate, to_column
from cerebro.data.etl.objects import Objects
from cerebro.data.etl.plan import SplitPlan
from cerebro.data.etl.staging import FILE, LINE, Place, Row, Staged, place_of, rows_of
from cerebro.data.inputs import Input, as_table
from cerebro.data.manifest import ShardInfo
from cerebro.data.publication import write_shard
from cerebro.data.schema import Schema
from cerebro.data.sources.bad_rows import BadRow, Policy
from cerebro.errors import CerebroError, DataError, UsageError
from cerebro.etl_spec import ETLSpec
from cerebro.storage.store import Store
from cerebro.types import Split

#: Rows whose files are fetched while the rows before them are prepared.
WINDOW = 256
#: The column with row ids, those of a single input and of a single label, and what the names of
#: several labels begin with.
ID, INPUT, LABEL, LABELS = "id", "x", "y", "y."


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
        tick: Called before each row.
    """

    def __init__(
        self,
        spec: ETLSpec | None,
        plans: Mapping[Split, SplitPlan],
        store: Store,
        *,
        policy: Policy,
        tick: Callable[[], None],
    ) -> None:
        self._spec = spec
        self._plans = plans
        self._store = store
        self._policy = policy
        self._tick = tick
        self._staged: dict[Split, Staged] = {}
        if spec is not None:
            spec.initialize_worker()

    def prepare(self, split: Split, number: int) -> Part:
        """Prepare a shard and write it."""
        plan = self._plans[split]
        if split not in self._staged:
            self._staged[split] = Staged(plan.staged)
        raw = self._staged[split].take(plan.rows_of(number))
        bad: list[BadRow] = []
        if self._spec is None:
            columns = _as_they_are(raw)
        elif self._spec.has("batch_prep"):
            columns = self._at_once(self._spec, raw, plan)
        else:
            columns = self._row_by_row(self._spec, raw, plan, bad)
        rows = raw.num_rows - len(bad)
        common: dict[str, Any] = {"split": split, "number": number, "bad": tuple(bad)}
        if not rows:
            return Part(info=None, schema={}, rows=0, **common)
        table = as_table(columns, split=split)
        info = write_shard(self._store, split, number, table.columns, table.schema)
        return Part(info=info, schema=table.schema, rows=rows, **common)

    def _row_by_row(
        self, spec: ETLSpec, raw: pa.Table, plan: SplitPlan, bad: list[BadRow]
    ) -> dict[str, Input]:
        stacks = Stacks(raw.num_rows, plan.split)
        rows, mode = rows_of(raw), str(plan.split)
        scratch = self._store.local_path()
        with Objects(plan.object_dir, plan.features, scratch) as objects:
            for window, object_dir in _windows(rows, objects):
                for number in window:
                    self._tick()
                    row = rows[number]
                    try:
                        objects.check(row)
                        if plan.is_archive:
                            row = _decoded(row, place_of(raw, number), spec.images)
                        prepared = spec.row_prep(row, mode, object_dir)
                        stacks.add(prepared, row.get(ID), number)
                    except (UsageError, MemoryError):
                        raise
                    except Exception as error:
                        place, cause = place_of(raw, number), objects.missing(row) or error
                        if self._policy is Policy.FAIL:
                            raise _failed(cause, row, place) from error
                        bad.append(_as_bad(cause, row, place))
        return stacks.columns()

    def _at_once(self, spec: ETLSpec, raw: pa.Table, plan: SplitPlan) -> dict[str, Input]:
        table = raw.drop_columns([FILE, LINE])
        scratch = self._store.local_path()
        with Objects(plan.object_dir, plan.features, scratch) as objects:
            self._tick()
            object_dir = objects.fetch(rows_of(raw) if plan.features else ())
            found = spec.batch_prep(table, str(plan.split), object_dir)
        columns = named(*_pair(found, "batch_prep"))
        for name, values in columns.items():
            if len(values) != table.num_rows:
                raise DataError(
                    f"batch_prep must give an entry for each row, but of {table.num_rows} rows "
                    f"{name!r} has {len(values)}."
                )
        ids = table[ID].to_pylist() if ID in table.schema.names else None
        return columns if ids is None else {**columns, ID: ids}


class Stacks:
    """Prepared rows, gathered into columns."""

    def __init__(self, rows: int, split: str) -> None:
        self._rows = rows
        self._split = split
        self._stacks: dict[str, RowStack] = {}
        self._count = 0

    def add(self, prepared: object, row_id: object, number: int) -> None:
        """Take a row as `row_prep` gave it, all of it or nothing."""
        values = named(*_pair(prepared, "row_prep"))
        if row_id is not None:
            values[ID] = row_id
        if not self._count:
            where = f"{self._split} column"
            self._stacks = {n: RowStack(self._rows, f"{where} {n!r}") for n in values}
        if values.keys() != self._stacks.keys():
            raise DataError(
                f"row_prep must give the same columns for every row, but gave "
                f"{', '.join(self._stacks)} at first and {', '.join(values)} now."
            )
        for name, value in values.items():
            self._stacks[name].put(value, self._count, number)
        self._count += 1

    def columns(self) -> dict[str, Input]:
        return {name: stack.values(self._count) for name, stack in self._stacks.items()}


def named(inputs: Any, labels: Any) -> dict[str, Any]:
    """Inputs and labels as columns.

    >>> named([1.0], 3), named({"left": 1, "right": 2}, {"age": 3})
    ({'x': [1.0], 'y': 3}, {'left': 1, 'right': 2, 'y.age': 3})
    """
    found = dict(inputs) if isinstance(inputs, Mapping) else {INPUT: inputs}
    if isinstance(labels, Mapping):
        found |= {f"{LABELS}{name}": value for name, value in labels.items()}
    elif labels is not None:
        found[LABEL] = labels
    return found


def is_label(column: str) -> bool:
    """Whether a column of a prepared dataset is a label, which a predict split lacks.

    >>> is_label("y"), is_label("y.age"), is_label("x")
    (True, True, False)
    """
    return column == LABEL or column.startswith(LABELS)


def _pair(prepared: object, method: str) -> tuple[Any, Any]:
    if isinstance(prepared, tuple) and len(prepared) == 2:
        return prepared
    raise DataError(
        f"{method} must return a pair (input, label), or (input, None), but returned "
        f"{type(prepared).__name__}."
    )


def _windows(rows: Sequence[Row], objects: Objects) -> Iterator[tuple[range, str | None]]:
    """Rows by number, a window at a time, each with the directory where their files are.

    The files of the next window are fetched while this one is worked on.
    """
    for at in range(0, len(rows), WINDOW):
        ahead = at + WINDOW
        object_dir = objects.fetch(rows[at:ahead], rows[ahead : ahead + WINDOW])
        yield range(at, min(ahead, len(rows))), object_dir


def _decoded(row: Row, place: Place, images: str) -> Row:
    """A sample of an archive with values instead of bytes."""
    fields = {name: value for name, value in row.items() if value is not None and name != ID}
    sample = {"__key__": row[ID], "__source__": place.file, **fields}
    found = Decoder(images=images)(sample)
    return Row({ID: row[ID]}, **{name: found[name] for name in fields})


def _as_they_are(raw: pa.Table) -> dict[str, Input]:
    """Without a spec every column of the source is one of the dataset."""
    from_source = raw.drop_columns([FILE, LINE])
    return {
        name: concatenate([to_column(from_source[name], name)]) for name in from_source.schema.names
    }


def _failed(error: Exception, row: Row, place: Place) -> DataError:
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return DataError(
        f"{place}: the row with id {row.get(ID)!r} cannot be prepared: {_what(error)}{at}. Mend "
        "the row or row_prep, or pass on_bad_row='skip' or 'quarantine'."
    )


def _what(error: Exception) -> str:
    said = str(error).rstrip(".")
    return said if isinstance(error, CerebroError) else f"{type(error).__name__}: {said}"


def _as_bad(error: Exception, row: Row, place: Place) -> BadRow:
    return BadRow(
        file=place.file,
        line=place.line,
        reason=f"cannot be prepared: {_what(error)}",
        text=json.dumps(row, default=str, ensure_ascii=False),
    )
