"""Trained PyTorch models, made ready to travel: the function that makes them, and weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from cerebro.errors import UsageError
from cerebro.estimators.generation import Generation
from cerebro.estimators.torch_task import TorchEstimatorTask
from cerebro.estimators.weights import Array, pack, unpack
from cerebro.types import Params

WEIGHTS = "weights.safetensors"


@dataclass(frozen=True)
class TorchPortable:
    """A PyTorch model as values."""

    generation: Generation
    params: Params
    weights: bytes

    kind = "torch"

    @property
    def features(self) -> tuple[str, ...]:
        return self.generation.features

    @cached_property
    def digest(self) -> str:
        found = hashlib.sha256(self.weights)
        found.update(json.dumps(dict(self.params), sort_keys=True).encode())
        found.update(self.generation.code.encode())
        return found.hexdigest()

    def open(self) -> TorchPredictor:
        return TorchPredictor(self)

    def with_weights(self, weights: bytes) -> TorchPortable:
        return replace(self, weights=weights)

    def to_files(self) -> dict[str, bytes]:
        return {WEIGHTS: self.weights}


class TorchPredictor:
    """A PyTorch model that was made again from values."""

    def __init__(self, portable: TorchPortable) -> None:
        before = torch.get_rng_state()
        estimator = TorchEstimatorTask(portable.generation).estimator(portable.params)
        torch.set_rng_state(before)
        self.model: nn.Module = estimator.model.eval()
        self._recipe = estimator.recipe
        self._features = portable.features
        state = {name: torch.from_numpy(a) for name, a in unpack(portable.weights).items()}
        self.model.load_state_dict(state)

    def predict(self, columns: Mapping[str, Any]) -> dict[str, Array]:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        batch = {name: _tensor(values, device) for name, values in columns.items()}
        with torch.no_grad():
            found = self._recipe.named_outputs(self.model.to(device), batch, self._features)
        return {name: _array(output) for name, output in found.items()}

    def output_ranks(self) -> dict[str, int] | None:
        return None


def trained(model: Any, generation: Generation, params: Params) -> TorchPortable:
    """A trained model, ready to travel."""
    arrays = {name: _array(tensor) for name, tensor in model.state_dict().items()}
    return TorchPortable(generation, dict(params), pack(arrays))


def restored(
    about: Mapping[str, Any],
    files: Mapping[str, bytes],
    custom_objects: Mapping[str, Any],
    estimator_gen_fn: Callable[[Any], object] | None,
) -> TorchPortable:
    """A model from its files, and the function that makes it."""
    if estimator_gen_fn is None:
        raise UsageError(
            "a PyTorch model is made by code, which its files do not hold: pass estimator_gen_fn=, "
            "the function that made it."
        )
    generation = Generation(estimator_gen_fn, about["features"], about["labels"])
    portable = TorchPortable(generation, about["params"], files[WEIGHTS])
    portable.open()
    return portable


def _array(tensor: torch.Tensor) -> Array:
    # NumPy has no bfloat16; float32 holds the same numbers.
    found: Array = (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).cpu().numpy()
    return found


def _tensor(values: Any, device: torch.device) -> Any:
    if not isinstance(values, np.ndarray):
        return values
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)
