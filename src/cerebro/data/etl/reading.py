"""Raw rows from whatever holds them: tables, archives, folders of pictures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from cerebro.data.archive.errors import ArchiveError, SampleError
from cerebro.data.archive.folder import ImageFolder
from cerebro.data.archive.samples import Sample, read_samples
from cerebro.data.etl.raw import Raw
from cerebro.data.etl.staging import FILE, LINE, Staged, StagingFile
from cerebro.data.roles import ID
from cerebro.data.sources.bad_rows import DEFAULT_MAX_BAD, BadRow, BadRows
from cerebro.data.sources.table import read_table
from cerebro.errors import DataError
from cerebro.storage.remote import local_path, redact

#: Names that end like this are archives of samples.
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".zip", ".shards")
#: Samples of an archive that are written at a time, by their bytes.
_BATCH_BYTES = 32 << 20


class Reader:
    """Reads the raw rows of splits, one after another.

    Args:
        scratch: Gives the path of a file for rows that do not fit in memory, by its name.
        columns: Types of columns that are not to be guessed.
    """

    def __init__(
        self,
        scratch: Callable[[str], str],
        *,
        columns: Mapping[str, str] | None = None,
        on_bad_row: str = "fail",
        max_bad: float = DEFAULT_MAX_BAD,
    ) -> None:
        self._scratch = scratch
        self._columns = columns
        self._on_bad_row = on_bad_row
        self._max_bad = max_bad
        #: Names of classes by number, of the first folder of pictures: all splits count alike.
        self._classes: list[str] | None = None

    def read(self, name: str, main: Any, object_dir: str | None = None) -> Raw:
        """The rows of a split, from what its locator names."""
        if is_archive(main):
            return self._read_archive(name, main)
        if isinstance(main, str | os.PathLike) and os.path.isdir(local_path(main) or ""):
            return self._read_folder(str(local_path(main)))
        found = read_table(
            main, columns=self._columns, on_bad_row=self._on_bad_row, max_bad=self._max_bad
        )
        for name in (FILE, LINE):
            if name in found.table.schema.names:
                raise DataError(f"{found.files[0]}: a column must not be called {name!r}.")
        return Raw(
            table=found.with_places(FILE, LINE),
            bad=tuple(found.bad),
            object_dir=object_dir,
            source=", ".join(found.files[:3]),
        )

    def _read_folder(self, root: str) -> Raw:
        folder = ImageFolder(root)
        if self._classes is None:
            self._classes = folder.classes
        unknown = sorted(set(folder.classes) - set(self._classes))
        if unknown:
            raise DataError(
                f"all splits must have the classes of the first, but {root} also has: "
                f"{', '.join(unknown)}."
            )
        classes = [folder.classes[entry.label or 0] for entry in folder.entries]
        paths = [os.path.relpath(entry.paths[0][1], root) for entry in folder.entries]
        table = pa.table(
            {
                ID: [entry.key for entry in folder.entries],
                "path": paths,
                "class": classes,
                "label": [self._classes.index(name) for name in classes],
                FILE: pa.array([root] * len(paths)).dictionary_encode(),
                LINE: list(range(1, len(paths) + 1)),
            }
        )
        return Raw(table=table, object_dir=root, source=root)

    def _read_archive(self, name: str, spec: Any) -> Raw:
        bad = BadRows(policy=self._on_bad_row, max_bad=self._max_bad)

        def tell(error: SampleError | ArchiveError) -> None:
            if bad.policy == "fail" or isinstance(error, ArchiveError):
                raise error
            bad.add(BadRow(file=error.shard, line=None, value=error.key, reason=str(error)))

        path = self._scratch(f"{name}.samples")
        with StagingFile(path) as file:
            for batch in _batches(read_samples(spec, on_error=tell), tell):
                file.write(batch)
        if not file.rows:
            raise DataError(f"{_named(spec)} must have at least one sample, but has none.")
        return Raw(
            table=Staged.map(path).table,
            bad=tuple(bad),
            source=_named(spec),
            staged=(path, file.digest),
            is_archive=True,
        )


def is_archive(main: Any) -> bool:
    """Whether a locator names archives of samples.

    >>> is_archive("train-{000..009}.tar"), is_archive("a.tgz?v=2"), is_archive("train.csv")
    (True, True, False)
    """
    if isinstance(main, list | tuple):
        return bool(main) and all(is_archive(each) for each in main)
    if not isinstance(main, str | os.PathLike):
        return False
    text = os.fspath(main)
    return text.lower().partition("?")[0].endswith(ARCHIVES)


def _batches(
    samples: Iterator[Sample], tell: Callable[[SampleError], None]
) -> Iterator[pa.RecordBatch]:
    """Samples with all fields as bytes, in pieces of some size; the first decides the fields."""
    keys: set[object] = set()
    rows: list[Sample] = []
    names: list[str] = []
    size = 0
    places: dict[str, int] = {}
    lines: list[int] = []
    for sample in samples:
        if ID in sample:
            # A row's own id is its key.
            sample[f"{ID}.{ID}"] = sample.pop(ID)
        fields = [name for name in sample if not name.startswith("__")]
        if not names:
            names = fields
        reason = ""
        if set(fields) - set(names):
            reason = (
                f"it must have the fields of the first ({', '.join(names)}), but also has: "
                f"{', '.join(sorted(set(fields) - set(names)))}."
            )
        elif sample["__key__"] in keys:
            reason = "its key is that of another sample, and must be its own."
        if reason:
            tell(SampleError(str(sample["__source__"]), str(sample["__key__"]), reason))
            continue
        keys.add(sample["__key__"])
        shard = str(sample["__source__"])
        places[shard] = places.get(shard, 0) + 1
        rows.append(sample)
        lines.append(places[shard])
        size += sum(len(value) for value in sample.values() if isinstance(value, bytes))
        if size >= _BATCH_BYTES:
            yield _batch(rows, lines, names)
            rows, lines, size = [], [], 0
    if rows:
        yield _batch(rows, lines, names)


def _batch(rows: Sequence[Sample], lines: Sequence[int], names: Sequence[str]) -> pa.RecordBatch:
    columns = {
        ID: pa.array([row["__key__"] for row in rows], pa.large_string()),
        **{name: pa.array([row.get(name) for row in rows], pa.large_binary()) for name in names},
        FILE: pa.array([row["__source__"] for row in rows], pa.large_string()),
        LINE: pa.array(lines, pa.int64()),
    }
    return pa.record_batch(columns)


def _named(spec: Any) -> str:
    return ", ".join(
        redact(each) for each in ([spec] if isinstance(spec, str | os.PathLike) else spec)
    )
