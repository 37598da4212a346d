"""Raw tables: files anywhere, DataFrames and Arrow tables as typed columns, all rows counted.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as directory:
...     with open(f"{directory}/train.csv", "w") as file:
...         _ = file.write("id,height\\n1,1.75\\n2,tall\\n3,1.6\\n")
...     raw = read_table(
...         f"{directory}/train.csv", columns={"height": "float32"}, on_bad_row="skip", max_bad=1
...     )
>>> raw.table["id"].to_pylist(), raw.where(1).rpartition("/")[2]
([1, 3], 'train.csv:4')
>>> [(row.line, row.column, row.value) for row in raw.bad]
[(3, 'height', 'tall')]
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from cerebro.data.sources.assembly import RawTable, assemble
from cerebro.data.sources.bad_rows import DEFAULT_MAX_BAD, BadRows, Policy
from cerebro.data.sources.cells import check_types
from cerebro.data.sources.columnar import from_table, is_table, read_parquet
from cerebro.data.sources.content import Content, unreadable
from cerebro.data.sources.csv_file import read_csv
from cerebro.data.sources.jsonl import read_jsonl
from cerebro.data.sources.piece import Enough, Piece
from cerebro.errors import DataError, StoreError, UsageError
from cerebro.storage.remote import Retry, fetch, glob_url, local_path, redact

__all__ = ["FORMATS", "RawTable", "TableSource", "expand", "read_table"]

#: A file, several, or a pattern such as "train-*.csv"; a pandas DataFrame or an Arrow table.
TableSource: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | pa.Table

#: End of a file's name -> what it holds. Text files may have ".gz" after it.
FORMATS = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}


def read_table(
    source: TableSource,
    *,
    columns: Mapping[str, str] | None = None,
    on_bad_row: str = "fail",
    max_bad: float = DEFAULT_MAX_BAD,
    delimiter: str = ",",
    format: str | None = None,
    retry: Retry | None = None,
) -> RawTable:
    """Read a table whose first column is called `id` and is different in every row.

    Args:
        source: Files that follow each other, be they local or anywhere fsspec can read, or a table.
        columns: Types that are not to be guessed: a NumPy dtype's name, "text" or "bytes".
        on_bad_row: What to do with a row that has too few or too many columns, a value that does
            not fit its column, or an id that is missing or there already: "fail" with an error
            that names it, "skip" it, or put it into "quarantine" (`RawTable.bad.write`).
        max_bad: How many rows may be bad without an error: a fraction, or a number of rows.
        delimiter: The character between the cells of a CSV file.
        format: "csv", "jsonl" or "parquet" for files whose names do not tell.

    Raises:
        DataError: The source cannot be read, or has bad rows that may not be left out.
    """
    types = check_types(columns)
    bad = BadRows(policy=on_bad_row, max_bad=max_bad)
    with tempfile.TemporaryDirectory(prefix="cerebro-source-") as scratch:
        if is_table(source):
            pieces = [from_table(f"<{type(source).__name__}>", source, types)]
            bad.extend(pieces[0].bad)
        else:
            files = expand(source)
            reading = _Reading(types, delimiter, format, scratch, retry, _enough(bad, len(files)))
            pieces = []
            for file in files:
                pieces.append(reading.read(file))
                bad.extend(pieces[-1].bad)
                if pieces[-1].given_up is not None:
                    bad.check(pieces[-1].given_up, are_all=False)
        return assemble(pieces, types, bad)


def expand(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """The files a source names, patterns replaced by what matches them, sorted.

    >>> expand(["a.csv", "s3://bucket/b.csv"])
    ['a.csv', 's3://bucket/b.csv']
    """
    given = (
        list(source) if isinstance(source, Sequence) and not isinstance(source, str) else [source]
    )
    if not given:
        raise UsageError("source must name at least one file, but is empty.")
    files: list[str] = []
    for file in given:
        if not isinstance(file, str | os.PathLike):
            raise UsageError(f"source must be files or a table, but got {type(file).__name__}.")
        text = os.fspath(file)
        if not _is_pattern(text):
            files.append(text)
            continue
        found = glob_url(text)
        if not found:
            raise DataError(f"no file matches {redact(text)}.")
        files += found
    return files


def _is_pattern(text: str) -> bool:
    path = local_path(text)
    if path is None:
        return "*" in text  # the other signs mean something else in URLs
    return any(sign in path for sign in "*?[") and not os.path.exists(path)


def _enough(bad: BadRows, files: int) -> Enough:
    """When to give up on a file: looking for each of a million bad cells would take minutes."""
    if bad.policy == Policy.FAIL:
        return lambda rows: 1
    if files > 1 and isinstance(bad.max_bad, float):
        return lambda rows: rows + 1  # what may be depends on files that come later
    return lambda rows: bad.allowed(rows) + 1


@dataclass(frozen=True, slots=True)
class _Reading:
    """How the files of a source are read."""

    types: Mapping[str, str]
    delimiter: str
    format: str | None
    scratch: str
    retry: Retry | None
    enough: Enough

    def read(self, file: str) -> Piece:
        name = redact(file)
        kind, is_gzip = _format(file, self.format)
        path = local_path(file)
        if path is None:
            path = os.path.join(self.scratch, str(len(os.listdir(self.scratch))))
            self._fetch(file, path)
        if kind == "parquet":
            return read_parquet(name, path, self.types)
        content = Content.open(name, path, is_gzip=is_gzip)
        if kind == "jsonl":
            return read_jsonl(content, self.types, self.enough)
        return read_csv(content, self.types, self.delimiter, self.enough)

    def _fetch(self, file: str, path: str) -> None:
        try:
            fetch(file, path, retry=self.retry)
        except StoreError as error:
            if error.errno == errno.ENOENT:
                raise DataError(f"{redact(file)} does not exist.") from error
            raise


def _format(file: str, format: str | None) -> tuple[str, bool]:
    name = os.path.basename(file if local_path(file) is not None else file.partition("?")[0])
    stem, end = os.path.splitext(name.lower())
    is_gzip = end == ".gz"
    kind = format or FORMATS.get(os.path.splitext(stem)[1] if is_gzip else end)
    if kind is None or kind not in FORMATS.values():
        if os.path.isdir(local_path(file) or ""):
            raise unreadable(file, IsADirectoryError())
        known = ", ".join(FORMATS) if format is None else ", ".join(sorted(set(FORMATS.values())))
        said = f"format={format!r}" if format is not None else redact(file)
        raise UsageError(
            f"a source must be one of {known} (text also with .gz), but got {said}."
            + ("" if format is not None else ' If its name does not tell, give format="csv".')
        )
    return kind, is_gzip and kind != "parquet"
