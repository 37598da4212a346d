"""Trained Keras models, made ready to travel: architecture as JSON, weights as safetensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from cerebro.errors import UsageError
from cerebro.estimators.generation import Generation
from cerebro.estimators.keras_task import KerasBackend, running_backend
from cerebro.estimators.weights import Array, pack, unpack
from cerebro.train.keras.compiled import Compiled
from cerebro.types import Params

ARCHITECTURE = "architecture.json"
WEIGHTS = "weights.safetensors"


@dataclass(frozen=True)
class KerasPortable:
    """A Keras model as values."""

    #: First, so that it is chosen before anything that needs Keras arrives.
    backend: KerasBackend
    architecture: str
    weights: bytes
    features: tuple[str, ...]
    custom_objects: Mapping[str, Any] = field(default_factory=dict)

    kind = "keras"

    @cached_property
    def digest(self) -> str:
        found = hashlib.sha256(self.architecture.encode())
        found.update(self.weights)
        found.update(repr((self.features, sorted(self.custom_objects))).encode())
        return found.hexdigest()

    def open(self) -> KerasPredictor:
        return KerasPredictor(self)

    def with_weights(self, weights: bytes) -> KerasPortable:
        return replace(self, weights=weights)

    def to_files(self) -> dict[str, bytes]:
        return {ARCHITECTURE: self.architecture.encode(), WEIGHTS: self.weights}


class KerasPredictor:
    """A Keras model that was made again from values."""

    def __init__(self, portable: KerasPortable) -> None:
        import keras

        from cerebro.train.keras.feed import Feed

        try:
            # Unlike `safe_mode=False`, this runs no code that the JSON brings with it.
            self.model = keras.models.model_from_json(
                portable.architecture, custom_objects=dict(portable.custom_objects)
            )
        except Exception as error:
            raise UsageError(
                f"the model cannot be made again from its architecture: {error} Give layers, "
                "activations and functions of your own as custom_objects={name: class}, or "
                "register them with keras.saving.register_keras_serializable()."
            ) from error
        arrays = unpack(portable.weights)
        self.model.set_weights([arrays[name] for name in sorted(arrays)])
        shown = Compiled(
            model=self.model, optimizer=None, loss=None, feature_columns=portable.features
        )
        self._feed = Feed(shown, self.model)

    def predict(self, columns: Mapping[str, Any]) -> dict[str, Array]:
        fed = self._feed(columns, has_labels=False)
        found = self._feed.predictions(self.model.predict_on_batch(fed.x))
        return dict(found) if isinstance(found, Mapping) else {self._names[0]: found}

    def output_ranks(self) -> dict[str, int] | None:
        outputs = getattr(self.model, "outputs", None)
        if not outputs:
            return None
        ranks = [1 if tuple(t.shape[1:]) == (1,) else len(t.shape) for t in outputs]
        return dict(zip(self._names, ranks, strict=True))

    @property
    def _names(self) -> list[str]:
        return list(self._feed.output_names) or ["output"]


def trained(model: Any, generation: Generation, params: Params) -> KerasPortable:
    """A trained model, ready to travel."""
    custom = dict(getattr(generation(params), "custom_objects", {}))
    try:
        architecture = model.to_json()
    except (NotImplementedError, TypeError) as error:
        raise UsageError(
            f"a model must have an architecture that JSON can hold, but {type(model).__name__} "
            f"has none: {error} Write get_config() and from_config(), or make it of layers "
            "(keras.Model(inputs, outputs))."
        ) from error
    arrays = {f"{number:06d}": array for number, array in enumerate(model.get_weights())}
    custom = {**_registered(architecture), **custom}
    return KerasPortable(
        KerasBackend(running_backend()), architecture, pack(arrays), generation.features, custom
    )


def restored(
    about: Mapping[str, Any],
    files: Mapping[str, bytes],
    custom_objects: Mapping[str, Any],
    estimator_gen_fn: Callable[[Any], object] | None,
) -> KerasPortable:
    """A model from its files. It is made once, so that what it lacks is told here."""
    architecture = files[ARCHITECTURE].decode()
    custom = {**_registered(architecture), **custom_objects}
    features = tuple(about["features"])
    portable = KerasPortable(
        KerasBackend(running_backend()), architecture, files[WEIGHTS], features, custom
    )
    portable.open()
    return portable


def _registered(architecture: str) -> dict[str, Any]:
    """What was registered in this process and the architecture names: others may not have it."""
    import keras

    known = keras.saving.get_custom_objects()
    return {name: found for name, found in known.items() if json.dumps(name) in architecture}
