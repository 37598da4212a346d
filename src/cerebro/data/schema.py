"""What a dataset's columns are: kind, dtype and shape of one row."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from cerebro.errors import DataError
from cerebro.types import Json

#: dtypes a tensor or sparse column may have, by NumPy's name.
DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
)
_COLUMN_NAME = re.compile(r"\S(.{0,198}\S)?")


class Kind(enum.StrEnum):
    """How a column's rows are stored."""

    TENSOR = "tensor"
    TEXT = "text"
    BYTES = "bytes"
    SPARSE = "sparse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column. `shape` is that of one row: `()` for a number, `(width,)` for a sparse row.

    >>> Column(kind=Kind.TENSOR, dtype="float32", shape=(28, 28)).row_bytes
    3136
    """

    kind: Kind
    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def row_bytes(self) -> int | None:
        """Bytes of one row, or None where rows differ in length."""
        if self.kind is not Kind.TENSOR:
            return None
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))

    def __str__(self) -> str:
        if self.kind in (Kind.TEXT, Kind.BYTES):
            return str(self.kind)
        sparse = "sparse " if self.kind is Kind.SPARSE else ""
        return f"{sparse}{self.dtype}{list(self.shape) if self.shape else ''}"

    def to_json(self) -> dict[str, Json]:
        return {"kind": str(self.kind), "dtype": self.dtype, "shape": list(self.shape)}

    @classmethod
    def from_json(cls, value: Json, *, where: str) -> Column:
        """The column `to_json` described; raises `DataError` on anything else."""
        if not isinstance(value, dict) or set(value) != {"kind", "dtype", "shape"}:
            raise DataError(f"{where} must have exactly kind, dtype and shape, but is {value!r}.")
        kind, dtype, shape = value["kind"], value["dtype"], value["shape"]
        if kind not in tuple(Kind):
            raise DataError(f"{where}: unknown kind {kind!r}. Known: {', '.join(Kind)}.")
        if not isinstance(shape, list) or not all(type(n) is int and n >= 1 for n in shape):
            raise DataError(f"{where}: shape must be a list of integers >= 1, but is {shape!r}.")
        column = cls(kind=Kind(str(kind)), dtype=str(dtype), shape=tuple(map(int, shape)))  # type: ignore[arg-type]
        if not column._is_consistent():
            raise DataError(f"{where}: {value!r} is not a column Cerebro can read.")
        return column

    def _is_consistent(self) -> bool:
        if self.kind in (Kind.TEXT, Kind.BYTES):
            return self.dtype == str(self.kind) and self.shape == ()
        if self.kind is Kind.SPARSE:
            return self.dtype in DTYPES and self.dtype != "bool" and len(self.shape) == 1
        return self.dtype in DTYPES


#: Columns by name, in order.
Schema: TypeAlias = Mapping[str, Column]


def check_column_name(name: object) -> str:
    """`name` if a column may be called that, else `DataError`."""
    if not isinstance(name, str) or not _COLUMN_NAME.fullmatch(name) or not name.isprintable():
        raise DataError(
            "a column's name must be printable text of 1 to 200 characters "
            f"without spaces at its ends, but got {name!r}."
        )
    return name


def check_same_schema(expected: Schema, got: Schema, *, split: str, may_lack: bool = False) -> None:
    """Raise `DataError` unless split `split` has the columns that train has.

    With `may_lack` it need not have all of them: there are no labels of what is to be predicted.
    """
    for name in [*expected, *got]:
        if may_lack and name not in got:
            continue
        if name not in got or name not in expected:
            where = "train" if name in expected else split
            raise DataError(
                f"every split must have the same columns, but only {where} has {name!r}."
            )
        if got[name] != expected[name]:
            raise DataError(
                f"column {name!r} must be the same in every split, "
                f"but is {expected[name]} in train and {got[name]} in {split}."
            )
