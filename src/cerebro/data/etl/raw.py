"""Raw rows of a split, whatever they were read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from cerebro.data.etl.staging import FILE, LINE
from cerebro.data.roles import ID
from cerebro.data.sources.bad_rows import BadRow
from cerebro.errors import DataError, UsageError
from cerebro.types import Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """The rows of one split as they were read."""

    #: With the columns `__file__` and `__line__` besides those of the source.
    table: pa.Table
    #: Rows that could not be read.
    bad: Sequence[BadRow] = ()
    #: Where files named in the rows are.
    object_dir: str | None = None
    #: What they were read from, for people.
    source: str = ""
    #: The file that holds these very rows already, and its SHA-256.
    staged: tuple[str, str] | None = None
    #: They are samples of archives: fields are bytes, to be decoded by their extension.
    is_archive: bool = False

    @property
    def names(self) -> list[str]:
        """The columns of the source."""
        return [name for name in self.table.schema.names if name not in (FILE, LINE)]


def with_same_ids(raws: Mapping[Split, Raw]) -> dict[Split, Raw]:
    """Ids as int64 if all splits have such, else as text: one kind for the whole dataset."""
    kinds = {raw.table.schema.field(ID).type for raw in raws.values() if ID in raw.names}
    are_numbers = all(pa.types.is_integer(kind) and kind != pa.uint64() for kind in kinds)
    kind = pa.int64() if are_numbers else pa.large_string()
    found = {}
    for split, raw in raws.items():
        table = raw.table
        if ID in raw.names and table.schema.field(ID).type != kind:
            at = table.schema.get_field_index(ID)
            table = table.set_column(at, pa.field(ID, kind), table[ID].cast(kind))
        found[split] = replace(raw, table=table)
    return found


def feature_names(features: Sequence[bool], raws: Mapping[Split, Raw]) -> tuple[str, ...]:
    """The columns that hold names of files.

    `features` has one entry for each column of a source; a source for predictions may lack labels,
    so the columns are told by those of any split that has as many.
    """
    if not isinstance(features, Sequence) or isinstance(features, str):
        raise UsageError(
            "set_features must give a list with True or False for each column, but gave "
            f"{features!r:.80}."
        )
    if not any(features):
        return ()
    for raw in raws.values():
        if len(raw.names) == len(features):
            pairs = zip(raw.names, features, strict=True)
            return tuple(name for name, is_file in pairs if is_file)
    split, raw = next(iter(raws.items()))
    raise DataError(
        f"set_features must give an entry for each column, but gave {len(features)} where {split} "
        f"has {len(raw.names)}: {', '.join(raw.names)}."
    )
