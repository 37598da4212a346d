"""Values to bytes, by the extension of a field: the other way round of `decoders`."""

from __future__ import annotations

import io
import json
import operator
from collections.abc import Callable, Mapping
from typing import SupportsIndex

import numpy as np

from cerebro.data.archive.errors import quote
from cerebro.data.archive.images import EXTENSIONS, encode_image
from cerebro.errors import DataError, UsageError

Encode = Callable[[object], bytes]


def encode_field(key: str, name: str, value: object, custom: Mapping[str, Encode]) -> bytes:
    """The bytes of a field. Bytes are taken as they are, whatever the extension."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    extension = name.rpartition(".")[2]
    encode = custom.get(name) or custom.get(extension)
    try:
        if encode is not None:
            return encode(value)
        if extension in EXTENSIONS:
            return encode_image(value, extension)
        if extension in ENCODERS:
            return ENCODERS[extension](value)
    except UsageError:
        raise
    except Exception as error:
        told = str(error).rstrip(".") or type(error).__name__
        raise DataError(
            f"sample {quote(key)}, field {quote(name)} cannot be written: {told}."
        ) from error
    raise DataError(
        f"sample {quote(key)}, field {quote(name)} must be bytes, since nothing is known about "
        f"{quote(extension)}, but is {type(value).__name__}. Choose a name that ends in one of "
        f"{', '.join(sorted([*ENCODERS, *EXTENSIONS]))}, or give an encoder."
    )


def encode_integer(value: object) -> bytes:
    """Decimal digits."""
    if not isinstance(value, SupportsIndex) or not -(2**63) <= operator.index(value) < 2**63:
        raise ValueError(f"it must be a whole number of 64 bits, but is {quote(value)}")
    return b"%d" % operator.index(value)


def encode_text(value: object) -> bytes:
    """UTF-8."""
    if not isinstance(value, str):
        raise ValueError(f"it must be text, but is {quote(value)}")
    return value.encode()


def encode_json(value: object) -> bytes:
    """JSON; keys stay in their order."""
    return json.dumps(value, ensure_ascii=False).encode()


def encode_array(value: object) -> bytes:
    """NumPy's format, without objects."""
    target = io.BytesIO()
    np.save(target, np.asarray(value), allow_pickle=False)
    return target.getvalue()


def encode_arrays(value: object) -> bytes:
    """Arrays by their names, as npz."""
    if not isinstance(value, Mapping):
        raise ValueError(f"it must be a mapping of names to arrays, but is {quote(value)}")
    arrays = {str(name): np.asarray(array) for name, array in value.items()}
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise ValueError(f"array {quote(name)} must hold numbers, but holds objects")
    target = io.BytesIO()
    np.savez(target, allow_pickle=False, **arrays)
    return target.getvalue()


#: Encoders by extension; pictures have their own.
ENCODERS: Mapping[str, Encode] = {
    **dict.fromkeys(("class", "cls", "count", "id", "index"), encode_integer),
    "json": encode_json,
    "npy": encode_array,
    "npz": encode_arrays,
    "txt": encode_text,
}
