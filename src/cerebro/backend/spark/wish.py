"""What `prepare_data` was asked for, checked before anything is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Self

from cerebro.backend.spark.context import meant, refuse_twins, select
from cerebro.data.schema import check_column_name
from cerebro.errors import DataError, UsageError

_NUMBERS = {"BooleanType", "ByteType", "ShortType", "IntegerType", "LongType", "FloatType"}
_NUMBERS |= {"DoubleType"}
_TEXTS = {"StringType", "CharType", "VarcharType", "BinaryType"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What was asked for, checked."""

    df: Any
    #: Column -> its type in the DataFrame.
    columns: dict[str, Any]
    fraction: float
    marker: str | None
    shards: int | None
    sparse: bool
    seed: int

    @classmethod
    def check(
        cls,
        df: Any,
        *,
        validation: float | str | None,
        shards: int | None,
        features: Sequence[str] | None,
        labels: Sequence[str] | None,
        sparse: bool,
        seed: int,
    ) -> Self:
        if type(df).__module__.startswith("pyspark.sql.connect") or not hasattr(df, "mapInArrow"):
            raise UsageError(
                "prepare_data takes a DataFrame of a classic SparkSession, but got "
                f"{type(df).__module__}.{type(df).__name__}."
            )
        types = {field.name: field.dataType for field in df.schema.fields}
        if len(types) < len(df.columns):
            raise UsageError(f"columns must have different names, but are {df.columns}.")
        if shards is not None and (not _is_whole(shards) or shards < 1):
            raise UsageError(f"`num_partitions >= 1` must hold, but got num_partitions={shards!r}.")
        if not _is_whole(seed) or not 0 <= seed < 2**64:
            raise UsageError(f"`0 <= seed < 2**64` must hold, but got seed={seed!r}.")
        fraction, marker = _validation(validation, types)
        names = _names(types, features, labels, marker)
        refuse_twins(df, [*names, *([marker] if marker else [])])
        for name in names:
            check_column_name(name)
            _check_type(name, types[name])
        return cls(
            df=df,
            columns={name: types[name] for name in names},
            fraction=fraction,
            marker=marker,
            shards=None if shards is None else int(shards),
            sparse=bool(sparse),
            seed=int(seed),
        )

    @property
    def names(self) -> list[str]:
        """The columns to be read."""
        return [*self.columns, *([self.marker] if self.marker else [])]

    @property
    def rows(self) -> Any:
        """These columns under names that Spark can take; decimals as doubles."""
        types = {field.name: field.dataType for field in self.df.schema.fields}
        decimals = [name for name in self.names if type(types[name]).__name__ == "DecimalType"]
        return select(self.df, self.names, dict.fromkeys(decimals, "double"))


def _is_whole(value: object) -> bool:
    """Whether it is an integer, perhaps one of NumPy's."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _validation(validation: float | str | None, types: dict[str, Any]) -> tuple[float, str | None]:
    """The fraction, or the column that marks rows."""
    if isinstance(validation, str):
        if validation not in types:
            raise UsageError(
                f"validation={validation!r} must name a column, but there are {', '.join(types)}."
                f"{meant(validation, types)}"
            )
        if type(types[validation]).__name__ not in _NUMBERS | {"DecimalType"}:
            raise UsageError(
                f"the validation column {validation!r} must hold booleans or numbers, but is "
                f"{types[validation].simpleString()}."
            )
        return 0.0, validation
    if validation is None or (type(validation) is int and validation == 0):
        return 0.0, None
    if isinstance(validation, bool) or not isinstance(validation, float):
        raise UsageError(
            "validation must be a fraction such as 0.25, the name of a column, or None, but got "
            f"{validation!r}."
        )
    if not 0 <= validation < 1:
        raise UsageError(f"`0 <= validation < 1` must hold, but got validation={validation!r}.")
    return validation, None


def _names(
    types: dict[str, Any],
    features: Sequence[str] | None,
    labels: Sequence[str] | None,
    marker: str | None,
) -> list[str]:
    given = [*(features or ()), *(labels or ())]
    if features is None:
        # Those of labels are among them.
        given = [*given, *(name for name in types if name != marker and name not in given)]
    for name in given:
        if name not in types:
            raise UsageError(
                f"there is no column {name!r}. There are: {', '.join(types)}.{meant(name, types)}"
            )
        if name == marker:
            raise UsageError(
                f"the validation column {name!r} is not stored: it cannot be a feature or label."
            )
        if given.count(name) > 1:
            raise UsageError(f"column {name!r} must be named once, as a feature or as a label.")
    if not given:
        raise UsageError("there must be a column to store, but there is none.")
    return [name for name in types if name in given]


def _check_type(name: str, kind: Any) -> None:
    inner = kind
    while type(inner).__name__ == "ArrayType":
        inner = inner.elementType
    is_array = inner is not kind
    allowed = _NUMBERS if is_array else _NUMBERS | _TEXTS | {"DecimalType"}
    if type(inner).__name__ in allowed or (not is_array and is_vector(kind)):
        return
    raise DataError(
        f"column {name!r} is {kind.simpleString()}, which cannot be stored. Cast it to numbers or "
        "strings first, or leave it out with feature_columns and label_columns."
    )


def is_vector(kind: Any) -> bool:
    """Whether a column of this type holds ML vectors."""
    return type(kind).__name__ == "VectorUDT"
