"""Archives in WebDataset's format: samples in tar, tar.gz and zip files, read and written."""

from __future__ import annotations

from cerebro.data.archive.decoders import Decoder
from cerebro.data.archive.errors import ArchiveError, OnError, SampleError
from cerebro.data.archive.folder import FileGroups, ImageFolder
from cerebro.data.archive.index import ShardIndex, read_index
from cerebro.data.archive.members import Limits
from cerebro.data.archive.samples import Decode, Sample, read_samples, read_shard
from cerebro.data.archive.spec import ShardSource, Spec, expand
from cerebro.data.archive.writer import ShardWriter, write_shards

__all__ = [
    "ArchiveError",
    "Decode",
    "Decoder",
    "FileGroups",
    "ImageFolder",
    "Limits",
    "OnError",
    "Sample",
    "SampleError",
    "ShardIndex",
    "ShardSource",
    "ShardWriter",
    "Spec",
    "expand",
    "read_index",
    "read_samples",
    "read_shard",
    "write_shards",
]
