"""The state of a `model_object`: modules, optimizer, and all else in it that can travel."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from cerebro.errors import UsageError
from cerebro.storage.tensors import Layout
from cerebro.train.codec import decode, encode
from cerebro.train.spec.build import OPTIMIZER, Bundle
from cerebro.train.torch.buffer import view_of
from cerebro.train.torch.state import Components, take
from cerebro.types import Json

logger = logging.getLogger("cerebro.train")


class Packed(NamedTuple):
    """A value as JSON, and the tensors in it."""

    value: Json
    tensors: dict[str, Tensor]

    @property
    def text(self) -> str:
        return json.dumps(self.value, sort_keys=True)


class SpecComponents(Components):
    """A `model_object` of one visit.

    Beside the tensors of `Components`, `object.<name>.<n>` are those of its other entries: of what
    their `state_dict` gives, or of the entry itself. The rest of those is JSON under "objects".
    """

    def __init__(self, bundle: Bundle, device: torch.device) -> None:
        super().__init__(bundle, bundle.components[OPTIMIZER], None, None)
        self.bundle = bundle
        self._device = device
        self._shapes = {name: tuple(p.shape) for name, p in bundle.named_parameters()}
        #: Values as they are made: they need not travel as long as they stay so.
        self._made = {name: pack(name, value) for name, value in self._values()}
        self._names_made = list(bundle.components)

    @property
    def model_object(self) -> dict[str, Any]:
        return self.bundle.components

    def tensors(self) -> dict[str, Tensor]:
        found = super().tensors()
        for packed in (*self._packed[0].values(), *self._packed[1].values()):
            found.update(packed.tensors)
        return found

    def meta(self) -> dict[str, Json]:
        states, values = self._packed
        objects: dict[str, Json] = {
            "states": {name: packed.value for name, packed in states.items()},
            "values": {name: packed.value for name, packed in values.items()},
            "gone": [name for name in self._names_made if name not in self.model_object],
        }
        return {**super().meta(), "objects": objects}

    def made_meta(self) -> dict[str, Json]:
        """The meta right after the components were made, with values that stay as they are."""
        meta = self.meta()
        values: dict[str, Json] = {n: p.value for n, p in self._made.items() if p is not None}
        return {**meta, "objects": {**cast("dict[str, Json]", meta["objects"]), "values": values}}

    def bind_model(self, layout: Layout, buffer: memoryview, meta: Mapping[str, Json]) -> None:
        super().bind_model(layout, buffer, meta)
        objects = cast("dict[str, Any]", meta["objects"])
        for name, value in objects["states"].items():
            holder: Any = self.model_object.get(name)
            if not has_state(holder):
                raise UsageError(
                    f"create_model_components must make {name!r} with a state_dict, as in the "
                    f"trial's state, but makes a {type(holder).__name__}."
                )
            holder.load_state_dict(self._unpack(name, value, layout, buffer))
        for name, value in objects["values"].items():
            self._restore(name, self._unpack(name, value, layout, buffer))
        for name in objects["gone"]:
            self.model_object.pop(name, None)

    def after(self, model_object: dict[str, Any], origin: str) -> SpecComponents:
        """What `train` left behind: it may be another dict, with other objects in it."""
        if model_object is not self.model_object or self._has_changed():
            other = SpecComponents(Bundle(model_object, origin), self._device)
            if other._shapes != self._shapes or len(other._extra) != len(self._extra):
                raise UsageError(
                    f"{origin} must leave modules and an optimizer of the same structure in the "
                    "model_object, but other parameters are there now, or the optimizer trains "
                    "others than those of the modules: the next visit could not make them again."
                )
            other._built = self._built
            other._made, other._names_made = self._made, self._names_made
            return other
        return self

    def strangers(self) -> Iterator[str]:
        """Names of entries that cannot travel though `train` put them there."""
        made = self._names_made
        for name, value in self.model_object.items():
            if name in made or self._is_elsewhere(value):
                continue
            if has_state(value) or pack(name, value) is None:
                yield name

    def _has_changed(self) -> bool:
        known = {
            **self.bundle._modules,
            **self.bundle._parameters,
            OPTIMIZER: self.optimizer,
        }
        now = {
            name: value
            for name, value in self.model_object.items()
            if isinstance(value, nn.Module | nn.Parameter) or name == OPTIMIZER
        }
        return known.keys() != now.keys() or any(known[k] is not v for k, v in now.items())

    def _is_elsewhere(self, value: object) -> bool:
        """Whether it is part of the modules' or the optimizer's state."""
        is_known = isinstance(value, Tensor) and id(value) in self._names
        return is_known or isinstance(value, nn.Module) or value is self.optimizer

    def _values(self) -> Iterator[tuple[str, object]]:
        for name, value in self.model_object.items():
            if not (self._is_elsewhere(value) or has_state(value)):
                yield name, value

    @cached_property
    def _packed(self) -> tuple[dict[str, Packed], dict[str, Packed]]:
        """States and values that travel, by name; looked at once, when training is over."""
        states = {
            name: pack_state(name, value.state_dict())
            for name, value in self.model_object.items()
            if name in self._names_made and not self._is_elsewhere(value) and has_state(value)
        }
        values: dict[str, Packed] = {}
        for name, value in self._values():
            packed, made = pack(name, value), self._made.get(name)
            if packed is None or (made and not packed.tensors and packed.text == made.text):
                continue
            values[name] = packed
        return states, values

    def _unpack(self, name: str, value: Json, layout: Layout, buffer: memoryview) -> Any:
        def outside(found: Json) -> object:
            number, kind, needs_grad = cast("tuple[int, str, bool]", found)
            tensor = view_of(layout, buffer, layout[f"object.{name}.{number}"])
            if kind == "numpy":
                return tensor.numpy()
            return (tensor if kind == "cpu" else tensor.to(self._device)).requires_grad_(needs_grad)

        return decode(value, outside)

    def _restore(self, name: str, value: object) -> None:
        made = self.model_object.get(name)
        is_alike = (
            isinstance(value, Tensor)
            and isinstance(made, Tensor)
            and (made.shape, made.dtype, made.device) == (value.shape, value.dtype, value.device)
        )
        if is_alike:
            # It stays the tensor that other components may hold, too.
            take(cast(Tensor, made), cast(Tensor, value).detach())
        else:
            self.model_object[name] = value


def has_state(value: object) -> bool:
    """Whether it can give and take a state."""
    methods = (getattr(value, name, None) for name in ("state_dict", "load_state_dict"))
    return not isinstance(value, type) and all(map(callable, methods))


def pack_state(name: str, state: object) -> Packed:
    """What an object's `state_dict` gave, less functions: those are made again."""
    tensors: dict[str, Tensor] = {}
    where = f"the state_dict() of {name!r} in the model_object"
    return Packed(encode(_without_code(state), where, _Outside(name, tensors)), tensors)


def pack(name: str, value: object) -> Packed | None:
    """A plain value; None if it cannot travel."""
    tensors: dict[str, Tensor] = {}
    try:
        return Packed(encode(value, name, _Outside(name, tensors)), tensors)
    except UsageError:
        return None


class _Outside:
    """Keeps the tensors and arrays of an entry, and says what stands for them in JSON."""

    def __init__(self, name: str, tensors: dict[str, Tensor]) -> None:
        self._name = name
        self._tensors = tensors

    def __call__(self, value: object) -> Json | None:
        if isinstance(value, Tensor) and value.layout is torch.strided:
            kind, tensor = "cpu" if value.is_cpu else "device", value.detach()
        elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            kind, tensor = "numpy", torch.from_numpy(np.array(value, order="C"))
        else:
            return None
        number = len(self._tensors)
        self._tensors[f"object.{self._name}.{number}"] = tensor
        return [number, kind, isinstance(value, Tensor) and value.requires_grad]


def _without_code(value: object) -> object:
    if isinstance(value, Mapping):
        kept = {k: _without_code(v) for k, v in value.items() if not _is_code(v)}
        return Counter(kept) if isinstance(value, Counter) else kept
    if isinstance(value, list | tuple):
        items = [_without_code(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def _is_code(value: object) -> bool:
    return callable(value) and not isinstance(value, Tensor)
