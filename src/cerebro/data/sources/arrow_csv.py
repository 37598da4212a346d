"""CSV files through Arrow's reader."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.csv

from cerebro.data.columns import LARGE
from cerebro.data.sources.cells import MISSING

#: The rows that types are taken from, by their bytes.
_FIRST_BYTES = 1 << 18


def read_arrow(
    source: Callable[[], str | pa.NativeFile],
    parse: pyarrow.csv.ParseOptions,
    types: Mapping[str, pa.DataType],
    *,
    use_threads: bool = True,
) -> pa.Table:
    """The table of a file whose first line names the columns.

    The type of a column that is not given is the first of Arrow's that holds all its values.

    While Arrow guesses a type, it keeps the text of the whole file beside the values. So types are
    guessed from the first rows, and all rows looked at again only if they do not hold for all: a
    type that holds for all rows is the one that Arrow finds, as none before it holds for the first.

    >>> parse = pyarrow.csv.ParseOptions()
    >>> read_arrow(lambda: pa.BufferReader(b"a,b\\n1,x\\n2.5,y\\n"), parse, {}).schema.types
    [DataType(double), DataType(string)]
    """
    first = _first_types(source(), parse, types)
    if first and use_threads:
        with contextlib.suppress(pa.ArrowInvalid):
            return _read(source(), parse, first, use_threads=True)
    return _read(source(), parse, types, use_threads=use_threads)


def _read(
    source: str | pa.NativeFile,
    parse: pyarrow.csv.ParseOptions,
    types: Mapping[str, pa.DataType],
    *,
    use_threads: bool,
) -> pa.Table:
    return pyarrow.csv.read_csv(
        source,
        read_options=pyarrow.csv.ReadOptions(use_threads=use_threads),
        parse_options=parse,
        convert_options=_convert(types),
        memory_pool=LARGE,
    )


def _first_types(
    source: str | pa.NativeFile, parse: pyarrow.csv.ParseOptions, types: Mapping[str, pa.DataType]
) -> dict[str, pa.DataType]:
    """The types of all columns that have values in the first rows; none if these are unsound."""
    options = pyarrow.csv.ReadOptions(block_size=_FIRST_BYTES, use_threads=False)
    try:
        with pyarrow.csv.open_csv(source, options, parse, _convert(types)) as reader:
            found = {field.name: field.type for field in reader.schema}
    except (pa.ArrowException, OSError, UnicodeError):
        # Whoever reads it all finds out what is wrong.
        return {}
    return {name: kind for name, kind in found.items() if kind != pa.null()} | dict(types)


def _convert(types: Mapping[str, pa.DataType]) -> pyarrow.csv.ConvertOptions:
    return pyarrow.csv.ConvertOptions(column_types=dict(types), null_values=MISSING)
