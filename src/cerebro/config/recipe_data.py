"""The data of a recipe: found by name, prepared once, changed at random while they train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cerebro.config.recipe_keys import check_option
from cerebro.config.recipe_paths import find_path
from cerebro.config.recipe_schema import DataSection, Recipe
from cerebro.data.named import lookup, prepare
from cerebro.data.named.preparing import check_options
from cerebro.types import Json

#: What belongs to a data set unless its recipe says otherwise.
_AUGMENT: dict[str, dict[str, Json]] = {
    "cifar10": {"shift": 0.1, "flip": True},
    "imagenet": {"shift": 0.33, "zoom": 0.5, "flip": True},
}
_PREPROCESS = {"imagenet": "resnet50"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """Where the data of a recipe come from."""

    name: str
    source: str | None
    #: The folder for prepared data sets.
    into: str | None
    options: dict[str, Any] = field(default_factory=dict)

    def prepare(self, say: Callable[[str], None]) -> str:
        """The path of the prepared data, which are made unless they are there."""
        return prepare(self.name, self.source, self.into, say=say, **self.options)

    def shown(self) -> dict[str, Json]:
        """What of it a file would say."""
        places = {"source": self.source, "prepared": self.into}
        return {**{k: v for k, v in places.items() if v is not None}, **self.options}


def find_source(section: DataSection, recipe: Recipe, file: Path) -> DataSource:
    """Check what a recipe says of its data; UsageError where that cannot be."""
    data = lookup(section.name)
    options = section.options
    for key in options:
        check_option("data", section.name, key)
    if "input_shape" in data.defaults:
        # Such data are made for the model.
        options = {"input_shape": recipe.model.input_shape, **options}
    for key, value in options.items():
        if key in data.given_by.values() and isinstance(value, str):
            options[key] = find_path(value, file)
    check_options(data, options)
    return DataSource(
        name=section.name,
        source=None if section.source is None else find_path(section.source, file),
        into=None if section.prepared is None else find_path(section.prepared, file),
        options=options,
    )


def default_augment(name: str) -> dict[str, Json]:
    """Changes of training pictures that belong to a data set.

    >>> default_augment("mnist")
    {}
    """
    return dict(_AUGMENT.get(name, {}))


def training_params(section: DataSection) -> dict[str, Json]:
    """Params of the trainer that belong to the data: what becomes of pictures.

    >>> training_params(DataSection(name="cifar10"))
    {'data.augment': {'shift': 0.1, 'flip': True}}
    """
    augment = section.augment
    if augment is None or augment is True:
        augment = default_augment(section.name)
    preprocess = section.preprocess or _PREPROCESS.get(section.name)
    found: dict[str, Json] = {"data.augment": augment} if augment else {}
    return found if preprocess is None else {**found, "data.preprocess": preprocess}
