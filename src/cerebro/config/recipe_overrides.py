"""`section.key=value` on the command line: changes to a recipe without editing it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

from cerebro.config.overrides import SHORT_FOR
from cerebro.config.recipe_data import default_augment
from cerebro.config.recipe_schema import Recipe, section_keys
from cerebro.config.yaml import Document, KeyPath, Place, parse_yaml
from cerebro.errors import ConfigError
from cerebro.search.wording import show, unknown
from cerebro.types import Json

#: Below these, a name may have dots of its own.
_SPACE = ("search", "space")
_DATA, _AUGMENT = ("data",), ("data", "augment")


def apply_recipe_overrides(document: Document, overrides: Sequence[str]) -> Document:
    """The document with the overrides in it, later ones winning.

    Values are read by the strict YAML reader; 0 and false are values like any other. What is given
    a value does not vary any more. What a section does not know is told when the recipe is checked.

    >>> document = parse_yaml(b"optimizer: {name: SGD, lr: 0.1}", "recipe.yaml")
    >>> apply_recipe_overrides(document, ["optimizer.lr=0", "training.n_epochs=2"]).tree
    {'optimizer': {'name': 'SGD', 'lr': 0}, 'training': {'n_epochs': 2}}
    """
    tree, places, is_part = document.tree, dict(document.places), False
    for text in overrides:
        where = f"override {show(text)}"
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{where}: an override is written section.key=value.")
        path = _path_of(key.strip())
        _check_top(str(path[0]), where)
        if path in (_DATA, _AUGMENT):
            is_part = False
        elif path[:2] == _AUGMENT and _augment_of(tree) in (None, True):
            tree, is_part = _put(tree, _AUGMENT, None, where), True
        parsed = parse_yaml(value.encode("utf-8", "surrogateescape"), where, numbered=False).tree
        tree = _without_domain(_put(tree, path, parsed, where), ".".join(map(str, path)))
        places = {old: place for old, place in places.items() if old[: len(path)] != path}
        # After every line of the file, so that the file's own problems are reported first.
        places[path] = Place(sys.maxsize, where)
    tree = _with_default(tree) if is_part else tree
    return Document(source=document.source, tree=tree, places=places)


def _augment_of(tree: Json) -> Json:
    data = tree.get("data") if isinstance(tree, dict) else None
    return data.get("augment") if isinstance(data, dict) else None


def _with_default(tree: Json) -> Json:
    """The data set's own changes of pictures, but for those that are given."""
    data = tree.get("data") if isinstance(tree, dict) else None
    given = _augment_of(tree)
    if not isinstance(tree, dict) or not isinstance(data, dict) or not isinstance(given, dict):
        return tree
    augment: Json = {**default_augment(str(data.get("name"))), **given}
    return {**tree, "data": {**data, "augment": augment}}


def _without_domain(tree: Json, name: str) -> Json:
    search = tree.get("search") if isinstance(tree, dict) else None
    space = search.get("space") if isinstance(search, dict) else None
    if not isinstance(tree, dict) or not isinstance(search, dict) or not isinstance(space, dict):
        return tree
    left = {key: value for key, value in space.items() if not f"{name}.".startswith(f"{key}.")}
    return {**tree, "search": {**search, "space": left}}


def _path_of(key: str) -> KeyPath:
    parts = tuple(key.split("."))
    if parts[:2] == _SPACE and len(parts) > 2:
        return (*_SPACE, ".".join(parts[2:]))
    return parts


def _check_top(top: str, where: str) -> None:
    if top in Recipe.model_fields:
        return
    below = [name for name in dotted_names() if name.endswith(f".{top}")]
    meant = f" Did you mean {below[0]!r}?" if below else ""
    message = unknown("key", top, Recipe.model_fields)
    if meant:
        message = message.partition(" Did you mean")[0]
    raise ConfigError(f"{where}: {message}{meant}")


def dotted_names() -> Iterable[str]:
    """Every key of every section, as it is overridden."""
    for section in Recipe.model_fields:
        for key in section_keys(section):
            yield f"{section}.{key}"


def _put(tree: Json, path: KeyPath, value: Json, where: str, section: str = "") -> Json:
    if not path:
        return value
    if not isinstance(tree, Mapping | None):
        if not isinstance(tree, str):
            raise ConfigError(f"{where}: {show(tree)} has no keys below it.")
        tree = {SHORT_FOR.get(section, "name"): tree}
    below = dict(tree or {})
    key = str(path[0])
    below[key] = _put(below.get(key), path[1:], value, where, key)
    return below
