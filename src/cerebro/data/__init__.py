"""Datasets prepared as memory-mapped shards: writers, readers, orders and batches."""

from __future__ import annotations

from cerebro.data.batches import Batch, BatchBuffers, iter_batches
from cerebro.data.columns import BytesColumn, SparseRows, TextColumn
from cerebro.data.dataset import Dataset, open_dataset
from cerebro.data.manifest import ShardInfo
from cerebro.data.order import permutation
from cerebro.data.samples import digits
from cerebro.data.schema import Column, Kind
from cerebro.data.shard import Shard, batch_order
from cerebro.data.tables import from_csv, from_parquet
from cerebro.data.writers import from_arrays, from_torch

__all__ = [
    "Batch",
    "BatchBuffers",
    "BytesColumn",
    "Column",
    "Dataset",
    "Kind",
    "Shard",
    "ShardInfo",
    "SparseRows",
    "TextColumn",
    "batch_order",
    "digits",
    "from_arrays",
    "from_csv",
    "from_parquet",
    "from_torch",
    "iter_batches",
    "open_dataset",
    "permutation",
]
