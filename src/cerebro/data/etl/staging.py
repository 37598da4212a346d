"""Raw rows in a file that all workers map: read once, whatever the source was."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
from typing import Any, BinaryIO, NamedTuple, Self

import pyarrow as pa

from cerebro.data.ahead import ahead
from cerebro.data.columns import LARGE, Index, as_index
from cerebro.storage.disk import Buffer
from cerebro.storage.store import explain

#: A directory in the dataset's while it is being made: raw rows, the plan, shards that are done.
SCRATCH = ".etl"
#: Columns that say where a row comes from; no column of a source may be called like that.
FILE, LINE = "__file__", "__line__"
#: Columns that are looked at at a time.
_THREADS = 2


class Row(dict[str, Any]):
    """One raw row: values by name, as items or as attributes.

    >>> row = Row(id=7, label="cat")
    >>> row["label"], row.label
    ('cat', 'cat')
    """

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"the row has no column {name!r}. It has: {', '.join(self)}.")

    def __missing__(self, name: str) -> Any:
        raise KeyError(f"the row has no column {name!r}. It has: {', '.join(self)}.")


class Place(NamedTuple):
    """Where a row was read."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def write_staged(path: str, table: pa.Table) -> str:
    """Write raw rows to a file, in one piece; its SHA-256."""
    with StagingFile(path) as file:
        for batch in _wide(table).combine_chunks().to_batches():
            file.write(batch)
    return file.digest


class StagingFile:
    """A file that raw rows are written to, piece by piece."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._writer: Any = None
        self.rows = 0

    def __enter__(self) -> Self:
        # A new file: workers of a process that was killed may still have the old one mapped.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        try:
            self._file = open(self._path, "wb")
        except OSError as error:
            raise explain(error, "write", self._path, needed=1) from error
        self._hashed = _Hashed(self._file)
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.closing(self._file):
            if self._writer is not None:
                self._writer.close()

    @property
    def digest(self) -> str:
        """The SHA-256 of the file, once it is closed."""
        return self._hashed.digest.hexdigest()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows; all must have the columns of the first."""
        try:
            if self._writer is None:
                sink = pa.PythonFile(self._hashed, mode="w")
                self._writer = pa.ipc.new_file(sink, batch.schema)
            self._writer.write_batch(batch)
        except OSError as error:
            raise explain(error, "write", self._path, batch.nbytes) from error
        self.rows += batch.num_rows


class _Hashed:
    """A file, or none, whose content is digested on its way; as much of one as Arrow asks for."""

    closed = False

    def __init__(self, file: BinaryIO | None) -> None:
        self._file = file
        self._size = 0
        self.digest = hashlib.sha256()

    def write(self, data: Buffer) -> int:
        view = memoryview(data)
        self.digest.update(view)
        if self._file is not None:
            self._file.write(view)
        self._size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing is held back here."""

    def close(self) -> None:
        """Whoever opened the file closes it."""


class Staged:
    """The raw rows of a split: in memory, or mapped."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    @classmethod
    def of(cls, table: pa.Table) -> Self:
        """Rows in memory, in one piece: they are taken faster from there."""
        wide = _wide(table)

        def whole(name: str) -> pa.Table:
            return wide.select([name]).combine_chunks(memory_pool=LARGE)

        parts = ahead(whole, wide.schema.names, _THREADS)
        return cls(pa.table([part.column(0) for part in parts], schema=wide.schema))

    @classmethod
    def map(cls, path: str) -> Self:
        """Rows in a file."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        return cls(pa.ipc.open_file(pa.BufferReader(pa.py_buffer(mapped))).read_all())

    def digest(self) -> str:
        """A SHA-256 of the rows: that of the SHA-256 of all columns."""
        found = ahead(self._digest, self.table.schema.names, _THREADS)
        return hashlib.sha256("".join(found).encode()).hexdigest()

    def _digest(self, name: str) -> str:
        """That of the Arrow file a column would be."""
        column = self.table.select([name])
        hashed = _Hashed(None)
        with pa.ipc.new_file(pa.PythonFile(hashed, mode="w"), column.schema) as writer:
            for batch in column.to_batches():
                writer.write_batch(batch)
        return hashed.digest.hexdigest()

    def take(self, rows: Index) -> pa.Table:
        """These rows, in this order, with the columns that say where they come from."""
        return self.table.take(as_index(rows))

    def take_values(self, rows: Index) -> pa.Table:
        """These rows, in this order, without those columns."""
        return self.table.drop_columns([FILE, LINE]).take(as_index(rows))


def place_of(table: pa.Table, row: int) -> Place:
    """Where a row of a taken table was read."""
    return Place(table[FILE][row].as_py(), table[LINE][row].as_py())


def rows_of(table: pa.Table) -> list[Row]:
    """The rows of a taken table as mappings."""
    names = [name for name in table.schema.names if name not in (FILE, LINE)]
    columns = [table[name].to_pylist() for name in names]
    return [Row(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _wide(table: pa.Table) -> pa.Table:
    """Text with 64-bit offsets: in one piece it may be longer than 2 GiB."""
    fields = []
    for field in table.schema:
        kind = field.type
        if pa.types.is_string(kind):
            kind = pa.large_string()
        elif pa.types.is_binary(kind):
            kind = pa.large_binary()
        fields.append(field.with_type(kind))
    return table.cast(pa.schema(fields))
