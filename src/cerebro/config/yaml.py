"""A strict YAML reader: plain data with the place of every key, or a ConfigError.

Values follow YAML 1.2's core schema: `1e-3` is a number, `no` is a string, `017` is seventeen.
Anchors, aliases, merge keys, tags, directives, duplicate keys and a second document are refused,
and so is whatever is too large or too deep. Code can not be named by YAML itself.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import yaml

from cerebro.errors import ConfigError
from cerebro.search.wording import show
from cerebro.types import Json

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 10_000
MAX_DIGITS = 100

KeyPath: TypeAlias = tuple[str | int, ...]

# The one that is compiled parses a megabyte in milliseconds; the other is for platforms without it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: Mapping[str, Json] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **{sign + word: math.inf for sign in ("", "+") for word in (".inf", ".Inf", ".INF")},
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}


class Place(NamedTuple):
    """Where a value was written; places sort in reading order."""

    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What a file says, and where it says it.

    >>> document = parse_yaml(b"name: digits\\nspace:\\n  lr: [1e-3]\\n", "experiment.yaml")
    >>> document.tree
    {'name': 'digits', 'space': {'lr': [0.001]}}
    >>> document.place(("space", "lr")).text
    'experiment.yaml:3'
    """

    source: str
    tree: Json
    places: Mapping[KeyPath, Place]

    def place(self, path: KeyPath) -> Place:
        """The place of this path, or of the nearest thing around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, Place(0, self.source))


def load_yaml(path: str | Path) -> Document:
    """Read a file; the error names it as it was given, and the line."""
    # os.path, unlike pathlib, says no to a name that is too long or has a NUL in it.
    if not os.path.exists(path):
        raise ConfigError(f"there is no experiment file {str(path)!r}.")
    if not os.path.isfile(path):
        raise ConfigError(f"an experiment file must be a regular file, but {str(path)!r} is not.")
    try:
        with open(path, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}).") from error
    return parse_yaml(data, str(path))


def parse_yaml(data: bytes, source: str, *, numbered: bool = True) -> Document:
    """Read one document; `source` says in errors where it came from, with a line if `numbered`."""
    builder = _Builder(source, numbered)
    text = _decode(data, builder)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(part for part in (error.problem, error.context) if part)
        raise builder.error(mark.line + 1 if mark else 1, f"not valid YAML: {problem}.") from error
    except yaml.YAMLError as error:
        raise builder.error(1, f"not valid YAML: {show(str(error))}.") from error
    return Document(source=source, tree=builder.root, places=builder.places)


def _decode(data: bytes, builder: _Builder) -> str:
    if len(data) > MAX_BYTES:
        raise builder.error(1, f"an experiment file may have at most {MAX_BYTES} bytes.")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in data[:4]:
        raise builder.error(1, "the text must be UTF-8, but this is UTF-16, UTF-32 or binary.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise builder.error(
            line, f"the text must be UTF-8, but has the byte 0x{data[error.start]:02x}."
        ) from error
    if found := _UNPRINTABLE.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise builder.error(line, f"the control character {found[0]!r} is not allowed.")
    return text


@dataclass(slots=True)
class _Open:
    """A sequence or mapping whose end has not been read yet."""

    node: list[Json] | dict[str, Json]
    path: KeyPath
    #: The key that waits for its value; None where a key (or an item) comes next.
    key: str | None = None


class _Builder:
    """Builds the tree from parser events without recursion."""

    def __init__(self, source: str, numbered: bool) -> None:
        self.root: Json = None
        self.places: dict[KeyPath, Place] = {}
        self._source = source
        self._numbered = numbered
        self._open: list[_Open] = []
        self._nodes = 0
        self._documents = 0

    def error(self, line: int, message: str) -> ConfigError:
        return ConfigError(f"{self._place(line).text}: {message}")

    def take(self, event: yaml.Event) -> None:
        line = event.start_mark.line + 1 if event.start_mark else 1
        match event:
            case yaml.ScalarEvent():
                self._scalar(event, line)
            case yaml.SequenceStartEvent():
                self._start([], event, line)
            case yaml.MappingStartEvent():
                self._start({}, event, line)
            case yaml.CollectionEndEvent():
                self._open.pop()
            case yaml.AliasEvent():
                raise self.error(line, "aliases (*name) are not allowed.")
            case yaml.DocumentStartEvent():
                self._document(event, line)

    def _document(self, event: yaml.DocumentStartEvent, line: int) -> None:
        self._documents += 1
        if self._documents > 1:
            raise self.error(line, "a second document ('---') is not allowed.")
        if event.version or event.tags:
            raise self.error(line, "directives (%YAML, %TAG) are not allowed.")

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        self._enter(event.anchor, event.tag, line)
        top = self._open[-1] if self._open else None
        is_plain = not event.style
        if top is not None and isinstance(top.node, dict) and top.key is None:
            self._take_key(top, event.value, is_plain, line)
            return
        self._add(self._resolve(event.value, line) if is_plain else event.value, line)

    def _place(self, line: int) -> Place:
        return Place(line, f"{self._source}:{line}" if self._numbered else self._source)

    def _enter(self, anchor: str | None, tag: str | None, line: int) -> None:
        """Check what every node must keep."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise self.error(line, f"more than {MAX_NODES} values are not allowed.")
        if anchor is not None:
            raise self.error(line, f"anchors (&{anchor}) are not allowed.")
        if tag is not None:
            raise self.error(line, f"tags are not allowed, but got {show(tag)}.")

    def _start(
        self, node: list[Json] | dict[str, Json], event: yaml.CollectionStartEvent, line: int
    ) -> None:
        self._enter(event.anchor, event.tag, line)
        if len(self._open) >= MAX_DEPTH:
            raise self.error(line, f"nesting deeper than {MAX_DEPTH} is not allowed.")
        if self._open and isinstance(self._open[-1].node, dict) and self._open[-1].key is None:
            raise self.error(line, "a key must be a string, but got a list or a mapping.")
        self._open.append(_Open(node, self._add(node, line)))

    def _take_key(self, top: _Open, text: str, is_plain: bool, line: int) -> None:
        if is_plain and text == "<<":
            raise self.error(line, "merge keys (<<) are not allowed.")
        if is_plain and not isinstance(self._resolve(text, line), str):
            raise self.error(
                line, f"a key must be a string, but got {text or 'nothing'}. Quote it."
            )
        if text in top.node:
            first = self.places[(*top.path, text)].line
            raise self.error(line, f"the key {show(text)} is already on line {first}.")
        top.key = text
        self.places[(*top.path, text)] = self._place(line)

    def _add(self, value: Json, line: int) -> KeyPath:
        """Put a value where it belongs; gives back its path."""
        if not self._open:
            self.root = value
            self.places[()] = self._place(line)
            return ()
        top = self._open[-1]
        if isinstance(top.node, dict):
            path = (*top.path, top.key or "")
            top.node[top.key or ""] = value
            top.key = None
        else:
            path = (*top.path, len(top.node))
            top.node.append(value)
            self.places[path] = self._place(line)
        return path

    def _resolve(self, text: str, line: int) -> Json:
        if text in _WORDS:
            return _WORDS[text]
        is_integer = _INTEGER.fullmatch(text)
        if not is_integer and not _FLOAT.fullmatch(text):
            return text
        if len(text) > MAX_DIGITS:
            raise self.error(line, f"a number of {len(text)} digits is not allowed.")
        if is_integer:
            base = {"0o": 8, "0x": 16}.get(text[:2], 10)
            return int(text, base)
        number = float(text)
        if math.isinf(number):
            raise self.error(line, f"the number {show(text)} is too large.")
        return number


def write_yaml(tree: Json) -> str:
    """A document as YAML, keys in their order.

    >>> print(write_yaml({"seed": 0, "optimizer": {"name": "SGD", "lr": 0.1}}), end="")
    seed: 0
    optimizer: {name: SGD, lr: 0.1}
    """
    text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, default_flow_style=None)
    return str(text)


class _Readable(yaml.SafeDumper):
    """Writes a text of several lines as such."""


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Readable.add_representer(str, _represent)


def write_documents(trees: Iterable[Json]) -> str:
    """Documents one after the other as YAML, keys in their order, one to a line.

    >>> print(write_documents([{"data": {"a.txt": "one\\ntwo\\n"}}, {"kind": "Job"}]), end="")
    data:
      a.txt: |
        one
        two
    ---
    kind: Job
    """
    texts = (
        yaml.dump(tree, Dumper=_Readable, sort_keys=False, allow_unicode=True) for tree in trees
    )
    return "---\n".join(texts)
