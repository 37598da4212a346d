"""Arrays of a model as the bytes of a safetensors file, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cerebro.errors import UsageError
from cerebro.storage.tensors import Layout

Array: TypeAlias = npt.NDArray[Any]

_DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
}
_NAMES = {code: name for name, code in _DTYPES.items()}


def pack(arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> bytes:
    """The content of a file that holds these arrays.

    >>> unpack(pack({"bias": np.zeros(2, "float32")}))
    {'bias': array([0., 0.], dtype=float32)}
    """
    for name, array in arrays.items():
        if array.dtype.name not in _DTYPES:
            raise UsageError(
                f"weights must be of one of {', '.join(_DTYPES)}, but {name!r} is {array.dtype}."
            )
    layout = Layout.plan(
        [(name, _DTYPES[a.dtype.name], a.shape) for name, a in arrays.items()], metadata
    )
    out = bytearray(layout.total_bytes)
    out[: layout.data_start] = layout.header_bytes()
    for name, array in arrays.items():
        out[layout.span(name)] = np.ascontiguousarray(array).tobytes()
    return bytes(out)


def unpack(content: bytes) -> dict[str, Array]:
    """The arrays of a file, by name; what its header claims is checked."""
    layout = Layout.parse(content)
    found: dict[str, Array] = {}
    for entry in layout.entries:
        if entry.dtype not in _NAMES:
            raise UsageError(
                f"weights must be of one of {', '.join(_DTYPES)}, but {entry.name!r} is "
                f"{entry.dtype}."
            )
        part = memoryview(content)[layout.span(entry.name)]
        found[entry.name] = np.frombuffer(part, _NAMES[entry.dtype]).reshape(entry.shape).copy()
    return found
