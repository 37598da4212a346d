"""What is known of a named data set: its files, where they are found, and how they are read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

from cerebro.data.archive.folder import walk
from cerebro.data.columns import Array, Index
from cerebro.data.order import shuffle
from cerebro.errors import UsageError
from cerebro.types import Json, Split

#: What all data sets have, with its default.
COMMON: Mapping[str, Json] = {"n_train": None, "n_valid": None, "shards": 8, "seed": 0}


#: Of a file, to tell it from others.
_BEGIN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was chosen, defaults included."""

    #: None: all.
    n_train: int | None = None
    n_valid: int | None = None
    shards: int = 8
    seed: int = 0
    #: What this data set has beside these.
    own: Mapping[str, Json] = field(default_factory=dict)

    def shape(self, name: str, length: int | None = None) -> tuple[int, ...]:
        """An option that is a list of sizes.

        >>> Options(own={"input_shape": [64, 64, 3]}).shape("input_shape", 3)
        (64, 64, 3)
        """
        given = self.own[name]
        found: list[int] = []
        if isinstance(given, list | tuple):
            found = [each for each in given if type(each) is int and each >= 1]
        is_whole = isinstance(given, list | tuple) and len(found) == len(given)
        if not is_whole or length not in (None, len(found)):
            many = "" if length is None else f"{length} "
            raise UsageError(
                f"{name} must be a list of {many}whole numbers >= 1, but is {given!r}."
            )
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Form:
    """One way in which a data set is found: by role, the names a file may have, the usual first."""

    kind: str
    files: Mapping[str, tuple[str, ...]]

    @property
    def usual_names(self) -> list[str]:
        return [names[0] for names in self.files.values()]


@dataclass(frozen=True, slots=True)
class Found:
    """The files of a data set on this machine."""

    kind: str
    folder: str
    #: Paths by role.
    files: Mapping[str, str] = field(default_factory=dict)

    def marks(self) -> list[Json]:
        """Name and size of each file, in an order that no machine changes.

        Of files that are not in a folder of many also how they begin: others may be as large.
        """
        marks: list[Json] = []
        for role, path in sorted(self.files.items()):
            below = walk(path) if os.path.isdir(path) else [""]
            for name in below:
                file = os.path.join(path, name) if name else path
                begin = "" if name else _begin_of(path)
                marks.append([role, name or os.path.basename(path), os.stat(file).st_size, begin])
        return marks


def _begin_of(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read(_BEGIN_BYTES)).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one split: `x` (rows, channels, height, width) and `y`."""

    x: Array
    y: Array


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the files hold."""

    train: Rows
    valid: Rows


def draw(rows: int, count: int, seed: int, split: Split) -> Index:
    """Which rows of so many: `count` of them, at random, in their order."""
    return np.sort(shuffle(rows, seed=seed, split=split)[:count])


class Scratch(Protocol):
    """Makes an array whose memory is on disk and gone when nobody uses it any more."""

    def __call__(self, shape: tuple[int, ...]) -> Array: ...


@dataclass(frozen=True, slots=True)
class OriginFile:
    """A file as its publisher has it."""

    name: str
    md5: str


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a data set is published: its files lie below one address."""

    url: str
    files: tuple[OriginFile, ...]


Load: TypeAlias = Callable[[Found, Options, Scratch], Loaded]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedData:
    """A data set that is known by name."""

    name: str
    about: str
    #: Of train and valid; None if that is up to the options.
    rows: tuple[int, int] | None
    #: (height, width, channels) of a picture; None if that is up to the options.
    input_shape: tuple[int, int, int] | None
    #: None if that is up to the files.
    n_classes: int | None
    load: Load
    #: In the order in which they are looked for.
    forms: tuple[Form, ...] = ()
    #: Below each place; "" is the place itself.
    folders: tuple[str, ...] = ("",)
    #: Of this machine, in addition to the usual places.
    system_folders: tuple[str, ...] = ()
    #: Files that are often found and never read -> why.
    refused: Mapping[str, str] = field(default_factory=dict)
    #: Options of its own, and those that have another default than in `COMMON`.
    options: Mapping[str, Json] = field(default_factory=dict)
    #: Role of a folder -> the option that may name it.
    given_by: Mapping[str, str] = field(default_factory=dict)
    origin: Origin | None = None

    @property
    def defaults(self) -> Mapping[str, Json]:
        return {**COMMON, **self.options}
