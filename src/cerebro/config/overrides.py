"""`key.sub=value` on the command line: changes to an experiment file without editing it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from cerebro.config.yaml import Document, KeyPath, Place, parse_yaml
from cerebro.errors import ConfigError
from cerebro.search.wording import show, unknown
from cerebro.types import Json

#: Keys that may have a mapping below them whose keys are known elsewhere.
_OPEN = ("search", "stopper", "goal", "budget", "constraints", "parallel", "launch")
#: Of these, those where a string is short for a mapping with this key: `search: random`.
SHORT_FOR = {"search": "name", "stopper": "name", "parallel": "mode"}


def apply_overrides(document: Document, overrides: Sequence[str], keys: Iterable[str]) -> Document:
    """The document with the overrides in it, later ones winning; `keys` are those at the top.

    Values are read by the strict YAML reader. Only what the file knows can be overridden: a key of
    the schema, or a parameter that the space already has.

    >>> document = parse_yaml(b"epochs: 5", "experiment.yaml")
    >>> apply_overrides(document, ["epochs=3"], ["epochs"]).tree
    {'epochs': 3}
    """
    if not isinstance(document.tree, dict):
        return document
    tree = dict(document.tree)
    places = dict(document.places)
    known = tuple(keys)
    for text in overrides:
        where = f"override {show(text)}"
        path, value = _split(text, where)
        _check_path(path, tree, known, where)
        _put(tree, path, value)
        places = {old: place for old, place in places.items() if old[: len(path)] != path}
        # After every line of the file, so that the file's own problems are reported first.
        places[path] = Place(sys.maxsize, where)
    return Document(source=document.source, tree=tree, places=places)


def _split(text: str, where: str) -> tuple[KeyPath, Json]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"{where}: an override is written key=value or key.sub=value.")
    top, dot, rest = key.strip().partition(".")
    # A parameter's name may itself have dots, so the key is split once.
    path: KeyPath = (top, rest) if dot else (top,)
    return path, parse_yaml(value.encode("utf-8", "surrogateescape"), where, numbered=False).tree


def _check_path(path: KeyPath, tree: dict[str, Json], keys: Sequence[str], where: str) -> None:
    top = str(path[0])
    if top not in keys:
        raise ConfigError(f"{where}: {unknown('key', top, keys)}")
    if len(path) == 1:
        return
    name = str(path[1])
    below = tree.get(top)
    if top == "space" and isinstance(below, dict):
        if name not in below:
            raise ConfigError(f"{where}: {unknown('parameter', name, below)}")
    elif top not in _OPEN:
        raise ConfigError(f"{where}: `{top}` has no keys below it.")
    elif not isinstance(below, dict | None) and not (top in SHORT_FOR and isinstance(below, str)):
        raise ConfigError(
            f"{where}: `{top}` is {show(below)}, which has no keys below it. Write it anew, as in "
            f"{top}={{...}}."
        )


def _put(tree: dict[str, Json], path: KeyPath, value: Json) -> None:
    top = str(path[0])
    if len(path) == 1:
        tree[top] = value
        return
    below = tree.get(top)
    if below is None:
        below = {}
    elif not isinstance(below, dict):
        below = {SHORT_FOR[top]: below}
    tree[top] = {**below, str(path[1]): value}
