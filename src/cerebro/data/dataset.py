"""A prepared dataset on disk."""

from __future__ import annotations

import os
from functools import partial

from cerebro.data.cache import ShardCache
from cerebro.data.manifest import FILE, DatasetManifest, ShardInfo
from cerebro.data.schema import Schema
from cerebro.data.shard import Shard, map_shard
from cerebro.errors import DataError, ShardCorruptError, UsageError
from cerebro.storage.opening import open_store
from cerebro.storage.store import DirectoryStore, Store
from cerebro.types import Split

#: Shards kept mapped by one `Dataset`; each costs a file descriptor, their pages belong to the
#: kernel's cache.
MAPPED_SHARDS = 128


def open_dataset(path: str | os.PathLike[str]) -> Dataset:
    """The dataset that a writer such as `from_arrays` put at `path`, or that is kept at a URL.

    Raises `DataError` if there is none or its manifest is damaged. Shards are checked when opened;
    those at a URL are copied to this machine then.
    """
    store = open_store(path)
    root = store.where()
    if not store.exists(FILE):
        raise DataError(
            f"there is no dataset at {root}: it has no {FILE}. "
            "Prepare one with cerebro.data.from_arrays, from_csv, from_parquet or from_torch."
        )
    manifest = DatasetManifest.from_bytes(store.read(FILE), where=store.where(FILE))
    return Dataset(root, manifest, cache=_cache_for(store))


def _cache_for(store: Store) -> ShardCache | None:
    return None if isinstance(store, DirectoryStore) else ShardCache(store.url)


class Dataset:
    """Splits cut into shards, each a memory-mapped file. Not safe to share between threads.

    >>> import tempfile
    >>> from cerebro.data import from_arrays
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     data = from_arrays(folder, {"x": [[1.0, 2.0]] * 10}, shards=3, validation=0.2)
    ...     print(data.rows("train"), [info.rows for info in data.shards("train")])
    ...     print(data.schema["x"], data.open_shard("val", 0).columns["x"].tolist())
    8 [3, 3, 2]
    float64[2] [[1.0, 2.0], [1.0, 2.0]]
    """

    def __init__(
        self, path: str, manifest: DatasetManifest, *, cache: ShardCache | None = None
    ) -> None:
        #: Absolute, or a URL.
        self.path = path
        self.schema: Schema = manifest.schema
        #: Changes when any row, its place or the schema changes.
        self.digest = manifest.digest
        self._splits = manifest.splits
        self._schemas = {split: manifest.schema_of(split) for split in manifest.splits}
        self._verified: set[str] = set()
        self._mapped: dict[str, Shard] = {}
        self._cache = cache

    def __repr__(self) -> str:
        parts = [
            f"{split}: {self.rows(split)} rows in {len(self.shards(split))} shards"
            for split in self.splits
        ]
        return f"Dataset({self.path!r}, {', '.join(parts)})"

    @property
    def is_remote(self) -> bool:
        """Whether shards are copied to this machine when they are opened."""
        return self._cache is not None

    @property
    def splits(self) -> tuple[Split, ...]:
        return tuple(self._splits)

    def shards(self, split: Split | str) -> tuple[ShardInfo, ...]:
        """The split's shards in order; empty if there is no such split here."""
        return self._splits.get(_as_split(split), ())

    def schema_of(self, split: Split | str) -> Schema:
        """The columns of a split: of the predict split, all but labels."""
        return self._schemas[_as_split(split)]

    def rows(self, split: Split | str) -> int:
        return sum(info.rows for info in self.shards(split))

    def open_shard(self, split: Split | str, number: int, *, verify: bool = True) -> Shard:
        """Map one shard; a shard opened before comes back at once.

        With `verify` its bytes are compared with the manifest's SHA-256 the first time, and
        `ShardCorruptError` names the file and both digests if they differ.
        """
        split = _as_split(split)
        shards = self.shards(split)
        if not 0 <= number < len(shards):
            raise UsageError(
                f"`0 <= number < {len(shards)}` must hold for a {split} shard of {self.path}, "
                f"but got number={number}."
            )
        info = shards[number]
        verify = verify and info.file not in self._verified
        shard = None if verify else self._mapped.pop(info.file, None)
        if shard is None:
            shard = self._map(info, split, number, verify=verify)
        if verify:
            self._verified.add(info.file)
        self._remember(info.file, shard)
        return shard

    def verify(self) -> None:
        """Read every shard once and raise `ShardCorruptError` if one does not match its digest."""
        for split in self.splits:
            for number in range(len(self.shards(split))):
                self.open_shard(split, number)

    def _map(self, info: ShardInfo, split: Split, number: int, *, verify: bool) -> Shard:
        open_it = partial(map_shard, info=info, schema=self._schemas[split], split=split)
        path = self._find(info)
        try:
            return open_it(path, number=number, verify=verify)
        except ShardCorruptError:
            if self._cache is None:
                raise
        # The copy was damaged, or has made room for another since.
        self._cache.forget(info)
        return open_it(self._find(info), number=number, verify=verify)

    def _find(self, info: ShardInfo) -> str:
        """The file of a shard on this machine."""
        if self._cache is not None:
            return self._cache.path(info)
        path = os.path.join(self.path, info.file)
        if not os.path.exists(path):
            self._refuse_replaced(path)
        return path

    def _refuse_replaced(self, path: str) -> None:
        found = open_dataset(self.path).digest
        if found != self.digest:
            raise ShardCorruptError(
                f"a dataset must stay as it is while it is in use, but {self.path} was replaced: "
                f"{os.path.basename(path)} is gone, and the digest is {found[:12]}… instead of "
                f"{self.digest[:12]}…. Prepare the old data again, or start a new run on the new."
            )

    def _remember(self, file: str, shard: Shard) -> None:
        self._mapped[file] = shard
        if len(self._mapped) > MAPPED_SHARDS:
            # Dictionaries keep their order: the first is the one unused for longest.
            del self._mapped[next(iter(self._mapped))]


def _as_split(split: Split | str) -> Split:
    try:
        return Split(split)
    except ValueError as error:
        raise UsageError(f"unknown split {split!r}. Known: {', '.join(Split)}.") from error
