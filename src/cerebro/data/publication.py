"""Writing a dataset so that a reader finds the old one or the new one, never a mix.

Shards get names that hold their digest, so none is overwritten; the manifest that names them
replaces the old one in one step, after all of them are durable; what it does not name is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import operator
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import SupportsIndex

import numpy as np

from cerebro.data.ahead import ahead
from cerebro.data.arrow import encode
from cerebro.data.columns import Index, Values
from cerebro.data.dataset import Dataset, open_dataset
from cerebro.data.inputs import Table
from cerebro.data.manifest import FILE, SHARD_FILE, DatasetManifest, ShardInfo
from cerebro.data.order import shuffle
from cerebro.data.schema import Schema, check_same_schema
from cerebro.data.shard import sha256
from cerebro.data.use import is_shared, refuse_users, used_by
from cerebro.errors import DataError, RunLockedError, UsageError
from cerebro.storage.disk import Disk
from cerebro.storage.lock import RunLock
from cerebro.storage.opening import open_directory
from cerebro.storage.store import DirectoryStore, Store, explain, is_temp
from cerebro.types import Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How a dataset is cut up."""

    shards: int
    validation: float | None = None
    seed: int = 0


#: Shards that are put together and written at a time: one more than two, which wait for the disk.
_THREADS = 3

#: The rows of each shard of each split, by the table they come from.
_Plan = dict[Split, tuple[Table, list[Index]]]


def publish(
    path: str | os.PathLike[str],
    tables: Mapping[Split, Table],
    cut: Cut,
    *,
    store: DirectoryStore | None = None,
) -> Dataset:
    """Shuffle, cut and write the tables; all checks come before the first change on disk."""
    store = store or open_directory(path)
    root = store.local_path()
    plan = _plan(tables, cut)
    with sole_writer_at(store):
        _write(store, root, plan)
    return open_dataset(root)


def split_rows(rows: int, parts: int) -> list[slice]:
    """Cut `rows` into consecutive parts whose sizes differ by one row at most.

    >>> split_rows(7, 3)
    [slice(0, 3, None), slice(3, 5, None), slice(5, 7, None)]
    """
    size, larger = divmod(rows, parts)
    bounds = [part * size + min(part, larger) for part in range(parts + 1)]
    return [slice(start, end) for start, end in itertools.pairwise(bounds)]


def _plan(tables: Mapping[Split, Table], cut: Cut) -> _Plan:
    cut = _checked(cut)
    main = _main_split(tables)
    for split, table in tables.items():
        check_same_schema(
            tables[main].schema, table.schema, split=split, may_lack=split is Split.PREDICT
        )
    rows = {split: (table, _order(table.rows, split, cut.seed)) for split, table in tables.items()}
    if cut.validation is not None:
        train = tables.get(Split.TRAIN)
        if train is None:
            raise UsageError("validation= is a part of train, but there is no train.")
        held_out = _held_out_rows(train.rows, cut.validation, given=Split.VAL in tables)
        order = rows[Split.TRAIN][1]
        rows[Split.VAL] = (train, order[:held_out])
        rows[Split.TRAIN] = (train, order[held_out:])
    main_rows = len(rows[main][1])
    if main_rows < cut.shards:
        what = "training" if main is Split.TRAIN else main
        raise DataError(
            f"every shard needs a row, but there are {main_rows} {what} rows "
            f"for shards={cut.shards}. Ask for fewer shards."
        )
    rows_per_shard = -(-main_rows // cut.shards)
    plan: _Plan = {}
    for split in Split:
        if split in rows:
            table, order = rows[split]
            parts = cut.shards if split is main else -(-len(order) // rows_per_shard)
            plan[split] = (table, [order[part] for part in split_rows(len(order), parts)])
    return plan


def _main_split(tables: Mapping[Split, Table]) -> Split:
    """The split that is cut into as many shards as asked for; others get shards of that size."""
    for split in Split:
        if split in tables:
            return split
    raise UsageError("a dataset needs rows: give train=, or test= or predict= to use a model on.")


def _order(rows: int, split: Split, seed: int) -> Index:
    """Rows for training and validation at random; what is tested or predicted as it came."""
    if split in (Split.TEST, Split.PREDICT):
        return np.arange(rows)
    return shuffle(rows, seed=seed, split=split)


def _checked(cut: Cut) -> Cut:
    """The cut in plain numbers; NumPy's are taken as well."""
    shards = _as_integer("shards", cut.shards)
    if shards < 1:
        raise UsageError(f"`shards >= 1` must hold, but got shards={shards}.")
    validation = cut.validation
    if validation is not None and (
        isinstance(validation, bool) or not isinstance(validation, Real) or not 0 < validation < 1
    ):
        raise UsageError(
            f"`0 < validation < 1` must hold (a fraction of train), but got "
            f"validation={validation!r}."
        )
    seed = _as_integer("seed", cut.seed)
    return Cut(shards=shards, validation=validation, seed=seed)


def _as_integer(name: str, value: object) -> int:
    if not isinstance(value, SupportsIndex) or isinstance(value, bool):
        raise UsageError(f"`{name}` must be an integer, but got {name}={value!r}.")
    return operator.index(value)


def _held_out_rows(rows: int, validation: float, *, given: bool) -> int:
    if given:
        raise UsageError("give either val= or validation=, not both.")
    held_out = round(rows * validation)
    if not 0 < held_out < rows:
        raise DataError(
            f"validation={validation} of {rows} rows leaves no row for "
            f"{'training' if held_out else 'validation'}."
        )
    return held_out


def _write(store: Store, root: str, plan: _Plan) -> None:
    written: set[str] = set()
    splits: dict[Split, tuple[ShardInfo, ...]] = {}
    schema = next(iter(plan.values()))[0].schema
    lacking = {
        split: frozenset(set(schema) - set(table.schema)) for split, (table, _) in plan.items()
    }
    manifest = DatasetManifest(schema=schema, splits={}, lacking=lacking)
    try:
        for split, (table, parts) in plan.items():
            splits[split] = _write_split(
                store, split, table, parts, manifest.schema_of(split), written
            )
        manifest = replace(manifest, splits=splits)
        store.write(FILE, [manifest.to_bytes()])
    except BaseException:
        with contextlib.suppress(OSError):
            # Ask the disk which manifest is there: the new one may have got its name before the
            # error. Should that fail too, the files stay until the next writer removes them.
            _remove(store, written - _current_files(root))
        raise
    remove_strays(store, manifest)


def _write_split(
    store: Store,
    split: Split,
    table: Table,
    parts: list[Index],
    schema: Schema,
    written: set[str],
) -> tuple[ShardInfo, ...]:
    def write(part: tuple[int, Index]) -> ShardInfo:
        number, rows = part
        return write_shard(store, split, number, table.take(rows), schema, written)

    return tuple(ahead(write, enumerate(parts), _THREADS))


def remove_strays(store: Store, manifest: DatasetManifest) -> None:
    """Remove what killed writers left and what the manifest no longer names."""
    _remove(store, set(_strays(store.list(), manifest.files)))


def write_shard(
    store: Store,
    split: Split,
    number: int,
    columns: Mapping[str, Values],
    schema: Schema,
    written: set[str] | None = None,
) -> ShardInfo:
    """Write one shard, its name added to `written` before anything can go wrong."""
    parts = encode(columns, schema)
    digest = sha256(parts)
    name = ShardInfo.name(split, number, digest)
    if written is not None:
        written.add(name)
    store.write(name, parts)
    rows = len(next(iter(columns.values())))
    size = sum(part.nbytes for part in parts)
    return ShardInfo(file=name, rows=rows, bytes=size, sha256=digest)


def _current_files(root: str) -> set[str]:
    """Files of the dataset that is there now; none if there is none or its manifest is damaged."""
    try:
        data = open_dataset(root)
    except DataError:
        return set()
    return {info.file for split in data.splits for info in data.shards(split)}


def _strays(names: list[str], keep: set[str]) -> Iterator[str]:
    """What killed writers left and what the manifest no longer names; never anything else."""
    for name in names:
        if is_temp(name) or (SHARD_FILE.fullmatch(name) and name not in keep):
            yield name


def _remove(store: Store, names: set[str]) -> None:
    for name in sorted(names):
        store.remove(name)


@contextlib.contextmanager
def sole_writer_at(store: Store) -> Iterator[None]:
    """Nobody else writes the dataset of a store meanwhile, or trains on it.

    A directory is made, a URL leased.
    """
    if isinstance(store, DirectoryStore):
        _make_directory(store.local_path())
        with sole_writer(store.local_path()):
            yield
        return
    lock = RunLock(store)
    try:
        lock.acquire()
    except RunLockedError as error:
        raise DataError(
            f"only one process may write a dataset at a time, but another one is writing "
            f"{store.where()}. Wait for it or choose another place."
        ) from error
    try:
        refuse_users(store)
        yield
    finally:
        lock.release()


def _make_directory(root: str) -> None:
    if os.path.exists(root) and not os.path.isdir(root):
        raise UsageError(f"a dataset is a directory, but {root} is a file. Choose another path.")
    if not os.path.isdir(root):
        try:
            os.makedirs(root, exist_ok=True)
        except OSError as error:
            raise explain(error, "make", root, 0) from error
        Disk().sync_dir(os.path.dirname(root))


@contextlib.contextmanager
def sole_writer(root: str) -> Iterator[None]:
    """Hold the directory's lock, which the kernel frees should this process die."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if is_shared(descriptor):
                raise used_by("another search", root) from error
            raise DataError(
                f"only one process may write a dataset at a time, but another one is writing "
                f"{root}. Wait for it or choose another path."
            ) from error
        yield
    finally:
        os.close(descriptor)
