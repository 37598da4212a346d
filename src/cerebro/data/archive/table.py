"""Rows of a CSV or Parquet file as samples: a column is a field, object files stand beside."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from cerebro.data.archive.decoders import DECODERS, REFUSED
from cerebro.data.archive.errors import quote
from cerebro.data.archive.folder import FileEntry, FileGroups
from cerebro.data.archive.images import EXTENSIONS
from cerebro.data.archive.samples import Sample
from cerebro.errors import DataError, UsageError
from cerebro.storage.remote import join

#: Columns that may hold a row's key, the first that is there.
KEYS = ("__key__", "key", "id")

_ROWS = 1024
_PATH = re.compile(r"[^\0\n]{0,1000}\.[A-Za-z0-9]{1,10}")
_KNOWN = {*DECODERS, *EXTENSIONS, *REFUSED, "bytes"}


class TableRows:
    """The rows of a table, in order.

    The key is the column `__key__`, `key` or `id`, else the row's number. A column whose name does
    not say what it holds gets an extension that does: `label` becomes `label.index` (whole
    numbers), `label.txt` (text) or `label.json` (anything else). A cell without a value is left
    out.

    Args:
        path: A .csv or .parquet file.
        objects: A directory. A text column whose cells name files in it becomes those files
            (`image` with `cat/1.jpg`: `image.jpg`). If there is none, a row gets the files whose
            name up to the first dot is its key.

    >>> from pathlib import Path
    >>> _ = Path("rows.csv").write_text("id,label,name\\na7,3,seven\\n")
    >>> list(TableRows("rows.csv"))
    [{'__key__': 'a7', '__source__': 'rows.csv', 'label.index': 3, 'name.txt': 'seven'}]
    """

    def __init__(
        self, path: str | os.PathLike[str], objects: str | os.PathLike[str] | None = None
    ) -> None:
        self.path = os.fspath(path)
        self._objects = None if objects is None else os.fspath(objects)
        self._columns: set[str] | None = None
        self._files: dict[str, FileEntry] | None = None
        self._groups: FileGroups | None = None
        if self._objects is not None and not os.path.isdir(self._objects):
            raise UsageError(f"objects must be a directory, but there is none: {self._objects}.")

    def __iter__(self) -> Iterator[Sample]:
        number = 0
        for batch in self._batches():
            key_column = next((name for name in KEYS if name in batch.schema.names), None)
            _check_columns(batch.schema, self.path)
            for row in batch.to_pylist():
                key = f"{number:09d}" if key_column is None else row.pop(key_column)
                yield self._sample(self._key(key, number), row, number)
                number += 1
        if not number:
            raise DataError(f"{self.path} must have at least one row, but has none.")

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            if self.path.lower().endswith(".csv"):
                with pa.csv.open_csv(self.path) as reader:
                    yield from reader
            else:
                with pa.parquet.ParquetFile(self.path) as file:
                    yield from file.iter_batches(batch_size=_ROWS)
        except (pa.ArrowException, OSError, UnicodeError) as error:
            told = getattr(error, "strerror", None) or str(error).rstrip(".")
            raise DataError(f"{self.path} cannot be read: {told}.") from error

    def _key(self, value: object, number: int) -> str:
        if value is None or isinstance(value, float | bytes):
            raise DataError(
                f"{self.path}, row {number + 1}: a key must be text or a whole number, but is "
                f"{quote(value)}."
            )
        return str(value)

    def _sample(self, key: str, row: Mapping[str, object], number: int) -> Sample:
        sample: Sample = {"__key__": key, "__source__": self.path}
        where = f"{self.path}, row {number + 1}"
        objects = self._object_columns(row)
        for name, value in row.items():
            if value is None:
                continue
            if name in objects:
                path = self._object_path(value, name, where)
                field = f"{name.lower()}.{path.rpartition('.')[2].lower()}"
                sample[field] = _read(path, where)
            else:
                sample[_field(name, value)] = value
        if self._groups is not None:
            self._add_group(sample, key, where)
        return sample

    def _object_columns(self, row: Mapping[str, object]) -> set[str]:
        """Which columns name object files: decided by the first row."""
        if self._objects is None:
            return set()
        if self._columns is None:
            self._columns = {name for name, value in row.items() if self._is_object(value)}
            if not self._columns:
                self._groups = FileGroups(self._objects)
                self._files = {entry.key: entry for entry in self._groups.entries}
        return self._columns

    def _is_object(self, value: object) -> bool:
        if not isinstance(value, str) or not _PATH.fullmatch(value):
            return False
        try:
            return os.path.isfile(join(self._objects or "", value))
        except UsageError:
            return False

    def _object_path(self, value: object, name: str, where: str) -> str:
        if not isinstance(value, str):
            raise DataError(
                f"{where}: column {quote(name)} must name files, but is {quote(value)}."
            )
        try:
            return join(self._objects or "", value)
        except UsageError as error:
            raise DataError(f"{where}, column {quote(name)}: {error}") from error

    def _add_group(self, sample: Sample, key: str, where: str) -> None:
        entry = (self._files or {}).get(key)
        if entry is None or self._groups is None:
            raise DataError(
                f"{where}: no cell of the first row names a file in {self._objects}, so there must "
                f"be files named after the key, but there is none for {quote(key)}."
            )
        for field, value in self._groups.load(entry).items():
            if not field.startswith("__"):
                if field in sample:
                    raise DataError(f"{where}: {quote(field)} is a column and an object file.")
                sample[field] = value


def _field(name: str, value: object) -> str:
    field = name.lower()
    if field.rpartition(".")[2] in _KNOWN or isinstance(value, bytes):
        return field
    if isinstance(value, int):
        return f"{field}.index"
    return f"{field}.txt" if isinstance(value, str) else f"{field}.json"


def _check_columns(schema: pa.Schema, path: str) -> None:
    names: Sequence[str] = [name.lower() for name in schema.names]
    for name in schema.names:
        is_bad = not name.strip() or "/" in name or names.count(name.lower()) > 1
        if is_bad:
            raise DataError(
                f"{path}: columns must have different names (capitals do not count) without `/`, "
                f"but got {quote(name)}."
            )


def _read(path: str, where: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise DataError(f"{where}: {path} cannot be read: {error.strerror or error}.") from error
