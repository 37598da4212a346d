"""Preparing a dataset from arrays in memory or from a torch Dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Protocol

from cerebro.data.collect import RowStack
from cerebro.data.dataset import Dataset
from cerebro.data.inputs import Input, Table, as_table
from cerebro.data.publication import Cut, publish
from cerebro.errors import CerebroError, DataError, UsageError
from cerebro.types import Split


def from_arrays(
    path: str | os.PathLike[str],
    train: Mapping[str, Input] | None = None,
    val: Mapping[str, Input] | None = None,
    test: Mapping[str, Input] | None = None,
    *,
    predict: Mapping[str, Input] | None = None,
    shards: int,
    validation: float | None = None,
    seed: int = 0,
) -> Dataset:
    """Prepare a dataset from columns: NumPy arrays, torch tensors, lists, CSR matrices.

    Rows are on axis 0. A list of `str` or `bytes` becomes a text or bytes column, a matrix in
    SciPy's CSR form a sparse one, everything else a tensor column of the dtype it has. The rows
    of train and val are shuffled with `seed`, those of test and predict stay in their order; all
    are dealt out so that shards differ by one row at most.

    Args:
        path: Directory of the dataset. One that is there already is replaced in one step.
        train: Columns of the training split; left out where a dataset is for finished models.
        val: Columns of the validation split; or use `validation`.
        test: Columns of the test split, for `Experiment.run_test`.
        predict: Columns of the predict split, for `Experiment.run_predict`; labels may be missing.
        shards: Number of training shards; the other splits get shards of about that size. Without
            train the number of shards of the first split there is.
        validation: Fraction of the training rows to hold out for validation.
        seed: Decides which rows are held out and which shard each row is in.

    Raises:
        DataError: The columns cannot be stored or there are fewer rows than shards.
        UsageError: An argument is out of range.

    >>> import tempfile, numpy as np
    >>> folder = tempfile.TemporaryDirectory()
    >>> from_arrays(folder.name, {"x": np.eye(8), "y": list("abcdefgh")}, shards=2)
    ... # doctest: +ELLIPSIS
    Dataset('...', train: 8 rows in 2 shards)
    >>> folder.cleanup()
    """
    given = {Split.TRAIN: train, Split.VAL: val, Split.TEST: test, Split.PREDICT: predict}
    tables = {s: as_table(c, split=s) for s, c in given.items() if c is not None}
    return publish(path, tables, Cut(shards=shards, validation=validation, seed=seed))


class MapDataset(Protocol):
    """A map-style `torch.utils.data.Dataset`, or anything like it."""

    def __getitem__(self, index: int, /) -> object: ...

    def __len__(self) -> int: ...


def from_torch(
    path: str | os.PathLike[str],
    dataset: MapDataset,
    *,
    val: MapDataset | None = None,
    test: MapDataset | None = None,
    columns: Sequence[str] = ("x", "y"),
    shards: int,
    validation: float | None = None,
    seed: int = 0,
) -> Dataset:
    """Prepare a dataset from a map-style torch `Dataset`, calling each item once.

    An item is a tuple, whose parts `columns` names, or a dict, whose keys name the columns. Parts
    are tensors or arrays of one shape, numbers (stored as int64, float64 or bool), `str` or
    `bytes`. The other arguments are those of `from_arrays`.

    >>> import tempfile, numpy as np
    >>> folder = tempfile.TemporaryDirectory()
    >>> from_torch(folder.name, [(np.ones(3), n) for n in range(5)], shards=2).schema["y"].dtype
    'int64'
    >>> folder.cleanup()
    """
    if isinstance(columns, str) or len(set(columns)) < len(columns):
        raise UsageError(
            f"columns must be a list of different names, one for each part, but got {columns!r}."
        )
    given = {Split.TRAIN: dataset, Split.VAL: val, Split.TEST: test}
    tables = {s: _collect(d, tuple(columns), s) for s, d in given.items() if d is not None}
    return publish(path, tables, Cut(shards=shards, validation=validation, seed=seed))


def _collect(dataset: MapDataset, columns: tuple[str, ...], split: str) -> Table:
    try:
        rows = len(dataset)
    except TypeError as error:
        raise DataError(
            f"{split} must be a map-style dataset with a length, "
            f"but {type(dataset).__name__} has none."
        ) from error
    parts: dict[str, RowStack] = {}
    for row in range(rows):
        item = _item(dataset, row, columns, split)
        if not parts:
            parts = {name: RowStack(rows, f"{split} column {name!r}") for name in item}
        if parts.keys() != item.keys():
            raise DataError(
                f"all items of {split} must have the same columns, but item 0 has "
                f"{list(parts)} and item {row} has {list(item)}."
            )
        for name, value in item.items():
            parts[name].put(value, row)
    if not rows:
        raise DataError(f"{split} must have at least one row, but has none.")
    return as_table({name: stack.values(rows) for name, stack in parts.items()}, split=split)


def _item(
    dataset: MapDataset, row: int, columns: tuple[str, ...], split: str
) -> Mapping[str, object]:
    try:
        item = dataset[row]
    except CerebroError:
        raise
    except Exception as error:
        raise DataError(f"item {row} of {split} could not be read: {error!r}.") from error
    if isinstance(item, Mapping):
        return item
    values = tuple(item) if isinstance(item, tuple | list) else (item,)
    if len(values) != len(columns):
        raise DataError(
            f"columns={columns} must name every part of an item, but item {row} of {split} "
            f"has {len(values)}. Pass columns=(...) with {len(values)} names."
        )
    return dict(zip(columns, values, strict=True))
