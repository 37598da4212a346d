"""The variables of a model and its optimizer, in and out of a state's buffer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from cerebro.errors import UsageError
from cerebro.storage.tensors import Entry, Layout
from cerebro.train.keras.paths import stable_paths
from cerebro.train.visit import Allocate, Diverged

MODEL, OPTIMIZER = "model.", "optimizer."

#: NumPy's name of a type -> its code in a safetensors file.
_CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_NAMES = {code: name for name, code in _CODES.items()}

Array = npt.NDArray[Any]
#: Variables by a name that is the same in every process.
Variables = dict[str, Any]


def model_variables(model: Any) -> Variables:
    """Weights, statistics and the seeds of random layers."""
    # A layer that is used twice gives its variables once.
    found = list({id(variable): variable for variable in model.variables}.values())
    names = stable_paths(variable.path for variable in found)
    return dict(zip(names, found, strict=True))


def optimizer_variables(optimizer: Any, model: Variables) -> Variables:
    """The optimizer's variables, each named after the weight it belongs to."""
    owners = {variable.path.replace("/", "_"): name for name, variable in model.items()}
    longest = sorted(owners, key=len, reverse=True)
    found = optimizer.variables
    names = []
    for variable in found:
        owner = next((path for path in longest if variable.name.startswith(f"{path}_")), None)
        rest = variable.name if owner is None else variable.name[len(owner) + 1 :]
        names.append(rest if owner is None else f"{owners[owner]}/{rest}")
    return dict(zip(stable_paths(names), found, strict=True))


def to_arrays(variables: Variables, prefix: str = "") -> dict[str, Array]:
    """What they hold, by name; perhaps the variables' own memory."""
    return {
        prefix + name: np.asarray(keras.ops.convert_to_numpy(variable.value))
        for name, variable in variables.items()
    }


def require_finite(arrays: Mapping[str, Array]) -> None:
    """Raise `Diverged` where a weight is not finite."""
    for name, array in arrays.items():
        is_number = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
        # A sum is cheap, and finite unless something is wrong or about to be.
        with np.errstate(over="ignore", invalid="ignore"):
            is_odd = is_number and not np.isfinite(array.sum(dtype=np.float64))
        if is_odd and not np.isfinite(array.astype(np.float64)).all():
            raise Diverged(f"{name} is not finite after the visit")


def pack(
    arrays: Mapping[str, Array], allocate: Allocate, about: Mapping[str, str] | None = None
) -> memoryview:
    """The arrays as the content of a safetensors file."""
    layout = Layout.plan(
        [(name, _code(name, array), array.shape) for name, array in arrays.items()], about
    )
    buffer = allocate(layout.total_bytes)
    buffer[: layout.data_start] = layout.header_bytes()
    for name, view in unpack(layout, buffer).items():
        view[...] = arrays[name]
    return buffer


def unpack(layout: Layout, buffer: memoryview) -> dict[str, Array]:
    """The arrays of a file by name, without a copy."""
    return {entry.name: _view(layout, buffer, entry) for entry in layout.entries}


def restore(variables: Variables, arrays: Mapping[str, Array], prefix: str, what: str) -> None:
    """Give variables the values that `arrays` has under their names."""
    expected = {prefix + name: tuple(variable.shape) for name, variable in variables.items()}
    found = {name: a.shape for name, a in arrays.items() if name.startswith(prefix)}
    if expected != found:
        name = next(n for n in (*expected, *found) if expected.get(n) != found.get(n))
        raise UsageError(
            f"{what} must have the variables of the model that build() makes, but "
            f"{name.removeprefix(prefix)} is {_shape(found, name)} there and "
            f"{_shape(expected, name)} in the model."
        )
    for name, variable in variables.items():
        # A copy: backends may keep the memory of what they are given, or want to write to it.
        variable.assign(np.array(arrays[prefix + name]))


def count_bytes(*groups: Variables) -> int:
    """What variables take in memory."""
    return sum(
        int(np.prod(variable.shape)) * np.dtype(variable.dtype).itemsize
        for group in groups
        for variable in group.values()
    )


def _view(layout: Layout, buffer: memoryview, entry: Entry) -> Array:
    # Keras loads the package that tells NumPy of bfloat16.
    dtype = np.dtype(_NAMES[entry.dtype])
    if entry.nbytes == 0:
        return np.empty(entry.shape, dtype)
    count, start = entry.nbytes // dtype.itemsize, layout.data_start + entry.offset
    return np.frombuffer(buffer, dtype, count, start).reshape(entry.shape)


def _shape(shapes: Mapping[str, tuple[int, ...]], name: str) -> str:
    return f"of shape {list(shapes[name])}" if name in shapes else "missing"


def _code(name: str, array: Array) -> str:
    code = _CODES.get(array.dtype.name)
    if code is None:
        raise UsageError(
            f"a variable must be of numbers to travel with its trial, but {name} is of "
            f"{array.dtype}."
        )
    return code
