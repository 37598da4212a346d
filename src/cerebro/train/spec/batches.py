"""Minibatches of a MiniBatchSpec: which columns are input, label and row id."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from cerebro.data import Shard
from cerebro.data.roles import INPUT, LABEL, LABELS, is_label
from cerebro.errors import UsageError
from cerebro.spec import MiniBatchSpec
from cerebro.train.torch.batches import TorchBatches, order_of
from cerebro.train.visit import VisitCall

#: One column, several by the names that the spec sees, or none.
Role = str | Mapping[str, str] | None


class Roles(NamedTuple):
    """What the columns of a dataset are to a spec."""

    inputs: Role
    labels: Role
    id: str | None


class Minibatch(NamedTuple):
    """A minibatch as the spec gets it, its row ids, and its number of rows."""

    parts: tuple[Any, ...]
    ids: Any
    rows: int

    def copy(self) -> Minibatch:
        """The same in tensors, dicts and lists of its own."""
        return self._replace(parts=tuple(_copied(part) for part in self.parts))


class Minibatches:
    """Gives out minibatches of one dataset on one device."""

    def __init__(self, spec: MiniBatchSpec, batches: TorchBatches, device: torch.device) -> None:
        self._spec = spec
        self._batches = batches
        self._device = device

    def shuffled(self, shard: Shard, call: VisitCall) -> Iterator[Minibatch]:
        """Those of a training visit, in its seeded order."""
        return self._made(shard, call.batch_size, order_of(shard, call), has_labels=True)

    def in_order(
        self, shard: Shard, batch_size: int, *, has_labels: bool = True
    ) -> Iterator[Minibatch]:
        """Those of an evaluation, or without labels, of a prediction."""
        return self._made(shard, batch_size, None, has_labels=has_labels)

    def _made(
        self, shard: Shard, size: int, order: Any, *, has_labels: bool
    ) -> Iterator[Minibatch]:
        roles = roles_of(self._spec, shard.columns, has_labels=has_labels)
        start = 0
        for batch, rows in self._batches.batches(shard, size, order):
            given = _part(batch, roles.inputs)
            ids = self._numbers(order, start, rows) if roles.id is None else batch[roles.id]
            parts = (given, _part(batch, roles.labels), ids) if has_labels else (given, ids)
            yield Minibatch(parts, ids, rows)
            start += rows

    def _numbers(self, order: Any, start: int, rows: int) -> torch.Tensor:
        if order is None:
            return torch.arange(start, start + rows, device=self._device)
        return torch.from_numpy(order[start : start + rows].astype(np.int64)).to(self._device)


def roles_of(spec: MiniBatchSpec, columns: Collection[str], *, has_labels: bool = True) -> Roles:
    """Which columns are what; UsageError where the spec names some that are not there."""
    names = list(columns)
    row_id = spec.id_column if spec.id_column in names else None
    if row_id is None and spec.id_column not in (None, MiniBatchSpec.id_column):
        raise _missing(spec, "id_column", spec.id_column, names)
    labels = _chosen(spec.label_columns)
    if labels is None:
        found = list(filter(is_label, names))
        labels = {name.removeprefix(LABELS): name for name in found} or None
        labels = LABEL if found == [LABEL] else labels
    elif has_labels:
        _check(spec, "label_columns", labels, names)
    inputs = _chosen(spec.input_columns)
    if inputs is None:
        others = {row_id, *_columns(labels)}
        rest = [name for name in names if name not in others]
        if not rest:
            raise _missing(spec, "input_columns", "one for the input", names)
        inputs = INPUT if rest == [INPUT] else {name: name for name in rest}
    else:
        _check(spec, "input_columns", inputs, names)
    return Roles(inputs, labels, row_id)


def _chosen(columns: str | Sequence[str] | None) -> Role:
    if columns is None or isinstance(columns, str):
        return columns
    return {name: name for name in columns}


def _columns(role: Role) -> Collection[str]:
    if role is None:
        return ()
    return (role,) if isinstance(role, str) else role.values()


def _check(spec: MiniBatchSpec, attribute: str, role: Role, names: list[str]) -> None:
    for name in _columns(role):
        if name not in names:
            raise _missing(spec, attribute, name, names)


def _missing(spec: MiniBatchSpec, attribute: str, wanted: object, names: list[str]) -> UsageError:
    known = ", ".join(map(repr, names))
    return UsageError(
        f"{type(spec).__name__}.{attribute} must name columns of the data, but there is no "
        f"{wanted!r}. Known: {known}."
    )


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copied(each) for name, each in value.items()}
    if isinstance(value, torch.Tensor):
        return value.clone()
    return list(value) if isinstance(value, list) else value


def _part(batch: Mapping[str, Any], role: Role) -> Any:
    if role is None:
        return None
    if isinstance(role, str):
        return batch[role]
    return {name: batch[column] for name, column in role.items()}
