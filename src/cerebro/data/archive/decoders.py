"""Bytes to values, by the extension of a field; nothing that could run code is read."""

from __future__ import annotations

import importlib
import io
import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from cerebro.data.archive.errors import ArchiveError, SampleError, quote
from cerebro.data.archive.images import EXTENSIONS, IMAGES, decode_image
from cerebro.data.archive.members import Limits
from cerebro.data.archive.samples import Sample
from cerebro.data.archive.zip import iter_zip
from cerebro.errors import MissingDependencyError, UsageError

Array: TypeAlias = npt.NDArray[np.generic]

#: Formats whose readers run what they read.
REFUSED = ("pickle", "pkl", "pt", "pth", "pyd")

_INTEGER = re.compile(rb"\s*[+-]?[0-9]{1,19}\s*")


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """Makes values of a sample's bytes, by the last part of each field's name.

    ===============================  ==================================================
    cls class count id index         int
    txt                              str
    json                             what it says
    npy, npz                         array, dict of arrays; no objects
    jpeg jpg pbm pgm png ppm         uint8 array [height, width, channels]; see `images`
    mp msgpack                       what it says, if msgpack is installed
    pickle pkl pt pth pyd            refused: reading them runs code
    anything else                    bytes
    ===============================  ==================================================

    Args:
        images: "rgb8", "gray8" (one channel), "float" (RGB from 0 to 1) or "bytes" (left alone).
        decoders: Functions of your own by field ("seg.png") or extension ("png"); they come first.
        fields: Only these are kept and decoded, and every sample must have them; default all.

    >>> Decoder()({"__key__": "7", "__source__": "a.tar", "cls": b"3", "txt": b"seven"})
    {'__key__': '7', '__source__': 'a.tar', 'cls': 3, 'txt': 'seven'}
    """

    images: str = "rgb8"
    decoders: Mapping[str, Callable[[bytes], object]] = field(default_factory=dict)
    fields: Collection[str] | None = None

    def __post_init__(self) -> None:
        if self.images not in IMAGES:
            raise UsageError(f"unknown images={quote(self.images)}. Known: {', '.join(IMAGES)}.")
        if isinstance(self.fields, str):
            raise UsageError(f"fields must be a list of names, but got {quote(self.fields)}.")

    def __call__(self, sample: Sample) -> Sample:
        key, shard = str(sample["__key__"]), str(sample["__source__"])
        made: Sample = {}
        for name, value in sample.items():
            if not isinstance(value, bytes):
                made[name] = value
            elif self.fields is None or name in self.fields:
                made[name] = self._decode(shard, key, name, value)
        missing = [name for name in self.fields or () if name not in made]
        if missing:
            there = ", ".join(name for name in sample if not name.startswith("__"))
            raise SampleError(
                shard, key, f"fields {', '.join(missing)} must be there, but it has: {there}."
            )
        return made

    def _decode(self, shard: str, key: str, name: str, data: bytes) -> object:
        extension = name.rpartition(".")[2]
        custom = self.decoders.get(name) or self.decoders.get(extension)
        if custom is None and extension in REFUSED:
            raise UsageError(
                f"{shard}, sample {quote(key)}, field {quote(name)}: reading a pickle runs code "
                "that is in it, so it is refused. Leave the field out with fields=[...], or give "
                "decoders={...} a function of your own if you trust the archive."
            )
        try:
            if custom is not None:
                return custom(data)
            if extension in EXTENSIONS:
                return data if self.images == "bytes" else decode_image(data, self.images)
            return DECODERS[extension](data) if extension in DECODERS else data
        except (UsageError, SampleError):
            raise
        except Exception as error:
            told = str(error).rstrip(".") or type(error).__name__
            raise SampleError(shard, key, f"it cannot be decoded: {told}.", name) from error


def decode_integer(data: bytes) -> int:
    """A whole number in decimal digits."""
    if not _INTEGER.fullmatch(data):
        raise ValueError(f"a whole number must be written in digits, but got {quote(data)}")
    number = int(data)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"a whole number must fit 64 bits, but got {number}")
    return number


def decode_text(data: bytes) -> str:
    """UTF-8."""
    return data.decode()


def decode_array(data: bytes) -> Array:
    """An array in NumPy's format, if there are as many bytes as its header says."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        raise ValueError(f"version {version} of the npy format is not known")
    if dtype.hasobject:
        raise ValueError("arrays of objects are pickles, which run code when they are read")
    declared = math.prod(shape) * dtype.itemsize
    if declared != len(data) - stream.tell():
        raise ValueError(
            f"an array of {declared} bytes is declared, but {len(data) - stream.tell()} follow"
        )
    array: Array = np.load(io.BytesIO(data), allow_pickle=False)
    return array


def decode_arrays(data: bytes) -> dict[str, Array]:
    """The arrays of an npz by their names."""
    arrays = {}
    try:
        for member in iter_zip(io.BytesIO(data), "npz", Limits()):
            if member.fault is not None:
                raise ValueError(member.fault)
            arrays[member.name.removesuffix(".npy")] = decode_array(member.data)
    except ArchiveError as error:
        raise ValueError(error.reason) from error
    return arrays


def decode_msgpack(data: bytes) -> object:
    """Whatever MessagePack holds."""
    try:
        msgpack = importlib.import_module("msgpack")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "fields named mp or msgpack need MessagePack. Install it with `pip install msgpack`, "
            "or leave them out with fields=[...]."
        ) from error
    value: object = msgpack.unpackb(data)
    return value


#: Decoders by extension; pictures have their own.
DECODERS: Mapping[str, Callable[[bytes], object]] = {
    **dict.fromkeys(("class", "cls", "count", "id", "index"), decode_integer),
    "json": json.loads,
    **dict.fromkeys(("mp", "msgpack"), decode_msgpack),
    "npy": decode_array,
    "npz": decode_arrays,
    "txt": decode_text,
}
