"""The safetensors layout, without any framework: which tensor lies where in a file.

A file is an 8-byte little-endian header length, a JSON header padded with spaces, then the
tensors one after another without gaps. Here the data starts at a multiple of 64 bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from typing import NamedTuple, NoReturn, Self

from cerebro.errors import CheckpointCorruptError, UsageError
from cerebro.storage.disk import Buffer, as_bytes

ALIGNMENT = 64
MAX_HEADER_BYTES = 100_000_000
MAX_DIMS = 64
#: Brackets and commas in a header, so that parsing takes bounded time and memory.
MAX_TOKENS = 4_000_000
_MAX_BYTES = 2**63 - 1
_METADATA = "__metadata__"

ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2": 1,
    "F8_E5M2FNUZ": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
    "C64": 8,
}


class Entry(NamedTuple):
    """One tensor: ``offset`` counts from the start of the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Layout:
    """Where each tensor lies. Entries are in the order of their offsets.

    >>> layout = Layout.plan([("bias", "F32", (3,)), ("weight", "F32", (3, 16))])
    >>> [(entry.name, entry.offset) for entry in layout.entries]
    [('weight', 0), ('bias', 192)]
    >>> layout.data_start % 64, layout.total_bytes - layout.data_start
    (0, 204)
    """

    def __init__(
        self, entries: tuple[Entry, ...], metadata: Mapping[str, str], data_start: int | None = None
    ) -> None:
        self.entries = entries
        self.metadata = dict(metadata)
        self.data_bytes = entries[-1].offset + entries[-1].nbytes if entries else 0
        self._by_name = {entry.name: entry for entry in entries}
        self._data_start = data_start

    @classmethod
    def plan(
        cls,
        tensors: Iterable[tuple[str, str, tuple[int, ...]]],
        metadata: Mapping[str, str] | None = None,
    ) -> Self:
        """Lay out ``(name, dtype, shape)`` so that every tensor is aligned to its item size.

        Tensors that fill whole 64-byte lines come first, so each of those starts on a line.
        """
        planned = [_plan_entry(name, dtype, shape) for name, dtype, shape in tensors]
        if len({entry.name for entry in planned}) != len(planned):
            raise UsageError("tensor names must be unique, but some occur twice.")
        planned.sort(key=_placement)
        entries = []
        offset = 0
        for entry in planned:
            entries.append(entry._replace(offset=offset))
            offset += entry.nbytes
        return cls(tuple(entries), metadata or {})

    @staticmethod
    def parse(buffer: Buffer) -> Layout:
        """The layout of a whole file, every claim of its header checked.

        Raises:
            CheckpointCorruptError: the bytes are not a safetensors file.
        """
        view = as_bytes(buffer)
        text = _read_header(view)
        layout = _parse_header(text)
        if layout.total_bytes != len(view):
            _refuse(f"the file must have {layout.total_bytes} bytes, but has {len(view)}")
        return layout

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Entry:
        return self._by_name[name]

    @property
    def data_start(self) -> int:
        """Where the data starts in the file."""
        return len(self._header) if self._data_start is None else self._data_start

    @property
    def total_bytes(self) -> int:
        """The size of the file."""
        return self.data_start + self.data_bytes

    def span(self, name: str) -> slice:
        """Where the bytes of a tensor are in the file."""
        entry = self._by_name[name]
        start = self.data_start + entry.offset
        return slice(start, start + entry.nbytes)

    def header_bytes(self) -> bytes:
        """What comes before the data in a file written by us."""
        return self._header

    @cached_property
    def _header(self) -> bytes:
        header: dict[str, object] = {_METADATA: self.metadata} if self.metadata else {}
        for entry in self.entries:
            header[entry.name] = {
                "dtype": entry.dtype,
                "shape": list(entry.shape),
                "data_offsets": [entry.offset, entry.offset + entry.nbytes],
            }
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        padding = -(8 + len(text)) % ALIGNMENT
        length = len(text) + padding
        if length > MAX_HEADER_BYTES:
            raise UsageError(f"a header of at most {MAX_HEADER_BYTES} bytes must do, got {length}.")
        return length.to_bytes(8, "little") + text + b" " * padding


def _placement(entry: Entry) -> tuple[int, int, int, str]:
    if entry.nbytes % ALIGNMENT == 0:
        return 0, 0, -entry.nbytes, entry.name
    return 1, -ITEM_BYTES[entry.dtype], -entry.nbytes, entry.name


def _plan_entry(name: str, dtype: str, shape: tuple[int, ...]) -> Entry:
    if name == _METADATA or not _is_text(name):
        raise UsageError(f"a tensor name must be text other than {_METADATA!r}, but got {name!r}.")
    if dtype not in ITEM_BYTES:
        known = ", ".join(ITEM_BYTES)
        raise UsageError(f"unknown dtype {dtype!r} of tensor {name!r}. Known: {known}.")
    nbytes = _count_bytes(dtype, shape)
    if nbytes is None:
        raise UsageError(f"a tensor must have a possible shape, but {name!r} has {shape}.")
    return Entry(name, dtype, tuple(shape), 0, nbytes)


def _count_bytes(dtype: str, shape: Iterable[int]) -> int | None:
    """The bytes of a tensor, or None if no tensor can have this shape."""
    count = ITEM_BYTES[dtype]
    for position, dim in enumerate(shape):
        if position >= MAX_DIMS or dim < 0 or dim > _MAX_BYTES:
            return None
        count *= dim
        if count > _MAX_BYTES:
            return None
    return count


def _is_text(value: object) -> bool:
    """Whether a value is a string that UTF-8 can hold (JSON escapes can make others)."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse(reason: str) -> NoReturn:
    raise CheckpointCorruptError(f"not a valid safetensors file: {reason}.")


def _read_header(view: memoryview) -> bytes:
    """The header's text; the data come after it."""
    if len(view) < 8:
        _refuse(f"it must have at least 8 bytes, but has {len(view)}")
    length = int.from_bytes(view[:8], "little")
    if length > MAX_HEADER_BYTES:
        _refuse(f"its header must have at most {MAX_HEADER_BYTES} bytes, but claims {length}")
    if length > len(view) - 8:
        _refuse(f"its header claims {length} bytes, but only {len(view) - 8} follow")
    return bytes(view[8 : 8 + length])


# A trial's states have the same header all its life.
@lru_cache(maxsize=64)
def _parse_header(text: bytes) -> Layout:
    """The layout that a header claims, but for the size of the file."""
    header = _load_header(text)
    metadata = _check_metadata(header.pop(_METADATA, {}))
    entries = sorted(
        (_check_entry(name, claim) for name, claim in header.items()),
        key=lambda entry: (entry.offset, entry.nbytes),
    )
    end = 0
    for entry in entries:
        if entry.offset != end:
            _refuse(f"tensor {entry.name!r} must start at {end}, but starts at {entry.offset}")
        end += entry.nbytes
    return Layout(tuple(entries), metadata, 8 + len(text))


def _load_header(text: bytes) -> dict[str, object]:
    if not text.startswith(b"{"):
        _refuse("its header must be a JSON object")
    if sum(map(text.count, (b"{", b"[", b","))) > MAX_TOKENS:
        _refuse(f"its header must have at most {MAX_TOKENS} brackets and commas")
    try:
        header: dict[str, object] = json.loads(text.decode(), object_pairs_hook=_unique)
    except RecursionError:
        _refuse("its header is nested too deeply")
    except ValueError as error:
        _refuse(f"its header is not JSON ({error})")
    return header


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        _refuse("its header names something twice")
    return unique


def _check_metadata(claim: object) -> dict[str, str]:
    if not isinstance(claim, dict) or not all(map(_is_text, (*claim, *claim.values()))):
        _refuse(f"{_METADATA} must map strings to strings")
    return claim


def _check_entry(name: str, claim: object) -> Entry:
    if not _is_text(name):
        _refuse("a tensor name is not text")
    if not isinstance(claim, dict) or claim.keys() != {"dtype", "shape", "data_offsets"}:
        _refuse(f"tensor {name!r} must have dtype, shape and data_offsets only")
    dtype, shape, offsets = claim["dtype"], claim["shape"], claim["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        _refuse(f"tensor {name!r} has an unknown dtype")
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        _refuse(f"tensor {name!r} must have a shape and two offsets of non-negative integers")
    nbytes = _count_bytes(dtype, shape)
    if nbytes is None or offsets[0] > _MAX_BYTES or offsets[1] - offsets[0] != nbytes:
        _refuse(f"tensor {name!r} has a shape that does not fit its offsets")
    return Entry(name, dtype, tuple(shape), offsets[0], nbytes)


def _are_counts(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
