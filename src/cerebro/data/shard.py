"""One shard: a memory-mapped Arrow file and its columns."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cerebro.data.arrow import decode
from cerebro.data.columns import Index, Values
from cerebro.data.manifest import ShardInfo
from cerebro.data.order import permutation
from cerebro.data.schema import Schema
from cerebro.errors import DataError, ShardCorruptError, StoreError
from cerebro.types import Split

# Orders depend on these: never change them.
_CACHED_BYTES = 4 << 20
_BLOCK_BYTES = 128 << 10
_BLOCKS_PER_BATCH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A fixed part of a split. Its arrays are read-only views of the mapped file.

    They stay valid as long as they are referred to, even after the file was replaced.
    """

    split: Split
    number: int
    rows: int
    schema: Schema
    #: A NumPy array (rows on axis 0), `TextColumn`, `BytesColumn` or `SparseRows` by name.
    columns: Mapping[str, Values]

    def __len__(self) -> int:
        return self.rows

    def block(self, batch_size: int) -> int:
        """How many neighbouring rows stay together when batches are drawn in random order.

        One, unless the shard is too large for a processor's cache: there single rows would come
        from memory at half its speed or less. Rows are in random order already, since they were
        dealt out to shards, so a block is as good a sample as so many single rows; every batch has
        at least eight, and an epoch's blocks are not those of the one before.
        """
        tensors = [values for values in self.columns.values() if isinstance(values, np.ndarray)]
        size = sum(int(values.nbytes) for values in tensors)
        if size < _CACHED_BYTES:
            return 1
        most = min(_BLOCK_BYTES * self.rows // size, batch_size // _BLOCKS_PER_BATCH)
        # A power of 2 that divides the batch.
        return min(1 << max(0, most.bit_length() - 1), batch_size & -batch_size)


def batch_order(shard: Shard, batch_size: int, *, seed: int, trial: int, epoch: int) -> Index:
    """The order in which a trial sees this shard's rows in an epoch, in batches of this size."""
    return permutation(
        shard.rows,
        seed=seed,
        trial=trial,
        epoch=epoch,
        shard=shard.number,
        block=shard.block(batch_size),
    )


def map_shard(
    path: str, info: ShardInfo, schema: Schema, *, split: Split, number: int, verify: bool
) -> Shard:
    """Map a shard's file; with `verify` compare its SHA-256 with the manifest's first."""
    mapped = _map(path, info)
    if verify:
        check_digest(path, mapped, info)
    try:
        columns = decode(pa.py_buffer(mapped), schema, check=verify)
    except DataError as error:
        raise ShardCorruptError(f"shard {path} is damaged: {error}. {_REMEDY}") from error
    for name, values in columns.items():
        if len(values) != info.rows:
            raise ShardCorruptError(
                f"shard {path} is damaged: column {name!r} has {len(values)} rows "
                f"instead of {info.rows}. {_REMEDY}"
            )
    return Shard(split=split, number=number, rows=info.rows, schema=schema, columns=columns)


def check_digest(path: str, content: mmap.mmap, info: ShardInfo) -> None:
    """Raise `ShardCorruptError` unless the content's SHA-256 is the manifest's."""
    found = sha256([memoryview(content)])
    if found != info.sha256:
        raise ShardCorruptError(
            f"shard {path} is damaged: its SHA-256 must be {info.sha256}, but is {found}. {_REMEDY}"
        )


def sha256(parts: Iterable[memoryview]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


_REMEDY = "Prepare the dataset again from its source (run_etl with fresh=True)."


def _map(path: str, info: ShardInfo) -> mmap.mmap:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise ShardCorruptError(f"shard {path} is missing. {_REMEDY}") from error
    except OSError as error:
        raise StoreError(f"shard {path} cannot be opened: {error.strerror}.") from error
    try:
        size = os.fstat(descriptor).st_size
        if size != info.bytes:
            raise ShardCorruptError(
                f"shard {path} is damaged: it must have {info.bytes} bytes, "
                f"but has {size}. {_REMEDY}"
            )
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
