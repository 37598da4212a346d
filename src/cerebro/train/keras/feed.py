"""Which columns of a batch a model's inputs, labels and weights are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from cerebro.data.columns import SparseRows
from cerebro.data.roles import ID, is_label
from cerebro.errors import UsageError
from cerebro.train.keras.compiled import Columns, Compiled

#: Where no column is named like an output and none is a label by its name.
_LABEL = "label"
#: Types that PyTorch cannot compute with -> such that hold the same numbers.
_WIDER = {"uint16": "int32", "uint32": "int64", "uint64": "int64"}
#: What functions for tf.data call.
_PIPELINE = ("batch", "cache", "filter", "map", "prefetch", "repeat", "shuffle", "take")


class Fed(NamedTuple):
    """One batch as the model takes it."""

    x: Any
    y: Any
    weight: Any
    rows: int

    def tensors(self) -> tuple[Any, Any, Any]:
        """Inputs, labels and weights as `fit` would show them to the model."""
        return tuple(
            None if part is None else keras.tree.map_structure(keras.ops.convert_to_tensor, part)
            for part in (self.x, self.y, self.weight)
        )  # type: ignore[return-value]


class Feed:
    """Makes of the columns of a batch what a model takes.

    Inputs are fed by their names where all of them are named like a column, else in the order of
    the columns, and reshaped to what the inputs take; labels by the names of outputs likewise.
    A model without declared inputs gets its one column as it is, or several by name.
    """

    def __init__(self, compiled: Compiled, model: Any) -> None:
        self._compiled = compiled
        self._inputs = list(getattr(model, "inputs", None) or ())
        self._input_keys = _keys(model, "input") if self._inputs else None
        self._output_keys = _keys(model, "output") if self._inputs else None
        self.output_names = self._output_keys or _output_names(model)

    def __call__(self, batch: Mapping[str, Any], *, has_labels: bool = True) -> Fed:
        """The batch for the model; without labels where those are not wanted."""
        columns = {name: _dense(values) for name, values in batch.items()}
        if self._compiled.transformation_fn is not None:
            columns = _transformed(self._compiled.transformation_fn, columns)
        x = self._features(columns)
        rows = len(next(iter(x.values()))) if isinstance(x, dict) else _length(x)
        y = self._labels(columns) if has_labels else None
        weight = None
        if has_labels and self._compiled.sample_weight_col is not None:
            weight = _array(self._compiled.sample_weight_col, columns)
        return Fed(x, y, weight, rows)

    def predictions(self, found: Any) -> Any:
        """What a model gave for a batch: an array, or several by the names of the outputs."""
        if isinstance(found, list | tuple):
            names = self.output_names or [f"output_{n}" for n in range(len(found))]
            return dict(zip(_distinct(names), found, strict=True))
        return found

    def _features(self, columns: Columns) -> Any:
        names = self._feature_names(columns)
        if not self._inputs:
            found = {name: _array(name, columns) for name in names}
            return found if len(found) > 1 else next(iter(found.values()))
        arrays = [
            _shaped(name, _array(name, columns), tensor)
            for name, tensor in zip(names, self._inputs, strict=True)
        ]
        if self._input_keys is not None:
            return dict(zip(self._input_keys, arrays, strict=True))
        return arrays if len(arrays) > 1 else arrays[0]

    def _feature_names(self, columns: Columns) -> Sequence[str]:
        given = self._compiled.feature_columns
        known = list(columns) if given is None else list(given)
        inputs = self._input_keys or [tensor.name for tensor in self._inputs]
        if inputs and all(name in known for name in inputs):
            return inputs
        if given is None:
            taken = {ID, self._compiled.sample_weight_col, *self._label_names(columns)}
            known = [n for n, v in columns.items() if n not in taken and not isinstance(v, list)]
        if self._inputs and len(known) != len(inputs):
            raise UsageError(
                f"each input of the model must be named like one of the feature columns, or there "
                f"must be as many of both; but the inputs are {_list(inputs)} and the columns "
                f"{_list(known)}. Name the inputs (keras.Input(..., name=...)), or give "
                "feature_columns."
            )
        if not known:
            raise UsageError("the data must have a feature column, but all are labels or text.")
        return known

    def _labels(self, columns: Columns) -> Any:
        names = self._label_names(columns)
        if self.output_names and len(names) != len(self.output_names):
            raise UsageError(
                f"each output of the model must have a label column of its name, or there must be "
                f"as many of both; but the outputs are {_list(self.output_names)} and the label "
                f"columns {_list(names)}. Give label_columns."
            )
        if not names:
            raise UsageError(
                f"there must be a label column, but none of {_list(columns)} is named 'y' or "
                f"{_LABEL!r}, or like an output. Give label_columns."
            )
        arrays = [_array(name, columns) for name in names]
        if self._output_keys is not None:
            return dict(zip(self._output_keys, arrays, strict=True))
        return arrays if len(arrays) > 1 else arrays[0]

    def _label_names(self, columns: Columns) -> Sequence[str]:
        given = self._compiled.label_columns
        known = list(columns) if given is None else list(given)
        if self.output_names and all(name in known for name in self.output_names):
            return self.output_names
        if given is None:
            known = [n for n in columns if is_label(n)] or [n for n in columns if n == _LABEL]
        return known


def _keys(model: Any, which: str) -> list[str] | None:
    """The names of inputs or outputs that a model was made with as a dict, in their flat order."""
    structure = None if isinstance(model, keras.Sequential) else getattr(model, which, None)
    if not isinstance(structure, dict):
        return None
    flat = getattr(model, f"{which}s")
    names = {id(tensor): name for name, tensor in structure.items()}
    return [names[id(tensor)] for tensor in flat]


def _output_names(model: Any) -> list[str]:
    """Those that Keras uses in the names of metrics; none where they are not known beforehand."""
    if not isinstance(model, keras.Sequential):
        return list(getattr(model, "output_names", None) or ())
    return [model.layers[-1].name] if model.built else []


def _transformed(function: Callable[[Columns], Columns], columns: Columns) -> Columns:
    try:
        found = function(columns)
    except AttributeError as error:
        if error.obj is columns and error.name in _PIPELINE:
            raise UsageError(
                f"transformation_fn gets a batch as a dict of arrays by column and must give such "
                f"a dict, but it calls {error.name}() as of a tf.data pipeline: change the arrays "
                "instead, such as {**batch, 'x': batch['x'] / 255}. Rows are shuffled and batched "
                "for you."
            ) from error
        raise
    if not isinstance(found, Mapping):
        raise UsageError(
            f"transformation_fn must give a dict of arrays by column, but gave a "
            f"{type(found).__name__}."
        )
    return dict(found)


def _dense(values: Any) -> Any:
    return values.dense() if isinstance(values, SparseRows) else values


def _array(name: str, columns: Columns) -> Any:
    if name not in columns:
        raise UsageError(f"there must be a column {name!r}, but there are {_list(columns)}.")
    values = np.asarray(columns[name])
    if values.dtype.kind not in "biuf":
        raise UsageError(
            f"column {name!r} must hold numbers for the model to see it, but holds "
            f"{'text or bytes' if values.dtype.kind in 'OSU' else values.dtype}: make numbers of "
            "it in transformation_fn."
        )
    kind = keras.config.floatx() if values.dtype == np.float64 else _WIDER.get(values.dtype.name)
    if kind is not None and kind != values.dtype:
        return values.astype(kind)
    # Memory of batches is used again, and some backends compute on it later.
    return values if keras.config.backend() == "torch" else values.copy()


def _shaped(name: str, values: Any, tensor: Any) -> Any:
    """The array as an input takes it; dimensions that the input leaves open may be of any size."""
    wanted = tuple(tensor.shape[1:])
    if len(wanted) == values.ndim - 1 and all(
        size in (None, found) for size, found in zip(wanted, values.shape[1:], strict=True)
    ):
        return values
    try:
        return values.reshape(len(values), *(-1 if size is None else size for size in wanted))
    except ValueError as error:
        raise UsageError(
            f"the rows of column {name!r} must fit the input {tensor.name!r}, which takes the "
            f"shape {list(wanted)}, but have {list(values.shape[1:])}."
        ) from error


def _length(x: Any) -> int:
    return len(x[0] if isinstance(x, list) else x)


def _distinct(names: Sequence[str]) -> list[str]:
    return [
        f"{name}_{names[:n].count(name)}" if name in names[:n] else name
        for n, name in enumerate(names)
    ]


def _list(names: Sequence[str] | Mapping[str, Any]) -> str:
    return ", ".join(map(repr, names)) or "none"
