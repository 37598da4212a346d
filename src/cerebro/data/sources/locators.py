"""Where an experiment's data is and goes: the dictionary of names, and what it asks for.

For each split the names say what is to be done (`decide`):

=========  =========  =====================  ================
`*_main`   `etl_dir`  split in the etl_dir   what is done
=========  =========  =====================  ================
given      -          -                      PROCESS
given      given      -                      PROCESS_AND_KEEP
-          given      yes                    REUSE
-          given      no                     ABSENT, REFUSE if it is asked for
-          -          -                      ABSENT, REFUSE if it is asked for
=========  =========  =====================  ================

A `*_dir` with neither its `*_main` nor an `etl_dir` is no use to anybody: REFUSE.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from cerebro.data.sources.cells import suggest
from cerebro.data.sources.columnar import is_table
from cerebro.data.sources.table import TableSource
from cerebro.errors import UsageError
from cerebro.storage.remote import is_remote, redact
from cerebro.types import Split

_MAIN = {f"{split}_main": split for split in Split}
_DIR = {f"{split}_dir": split for split in Split}
_PLACES = ("etl_dir", "models_dir", "output_dir")
KEYS = (*_MAIN, *_DIR, "misc", *_PLACES)

Named: TypeAlias = str | os.PathLike[str]


class Plan(enum.StrEnum):
    """What is done to have a split."""

    #: Read the source and make shards of it.
    PROCESS = "process"
    #: The same, and put the shards where they can be found again.
    PROCESS_AND_KEEP = "process and keep"
    #: Take the shards that were kept.
    REUSE = "reuse"
    #: There is no such split, and nobody asks for it.
    ABSENT = "absent"
    #: What was given makes no sense, or what was asked for is not there.
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done for one split, and why not if it is refused."""

    plan: Plan
    reason: str = ""

    def check(self) -> Decision:
        """This decision; `UsageError` if it is a refusal."""
        if self.plan is Plan.REFUSE:
            raise UsageError(self.reason)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Locators:
    """The places of an experiment's data, checked.

    >>> locators = Locators.parse({"train_main": "train.csv", "train_dir": "s3://bucket/images"})
    >>> locators.main["train"], locators.decide("train", kept=()).plan
    ('train.csv', <Plan.PROCESS: 'process'>)
    >>> locators.decide("test", kept=()).plan
    <Plan.ABSENT: 'absent'>
    """

    #: Tables by split.
    main: Mapping[Split, TableSource] = field(default_factory=dict)
    #: Directories of the files that the tables name, by split.
    object_dirs: Mapping[Split, str] = field(default_factory=dict)
    misc: tuple[str, ...] = ()
    etl_dir: str | None = None
    models_dir: str | None = None
    output_dir: str | None = None

    @classmethod
    def parse(cls, params: Mapping[str, object]) -> Locators:
        """Check a dictionary with any of these keys: `{train,val,test,predict}_main`,
        `{train,val,test,predict}_dir`, `misc`, `etl_dir`, `models_dir`, `output_dir`.

        Each is a path or any URL that fsspec knows; a `*_main` may also be a list of these, a
        pandas DataFrame or an Arrow table; `misc` is a list of files. None counts as not given.
        """
        if not isinstance(params, Mapping):
            raise UsageError(
                "params must be a dictionary such as {'train_main': 'train.csv'}, "
                f"but got {type(params).__name__}."
            )
        for key in params:
            if key not in KEYS:
                raise UsageError(
                    f"unknown key {key!r} in params. Known: {', '.join(KEYS)}."
                    + suggest(str(key), KEYS)
                )
        given = {key: value for key, value in params.items() if value is not None}
        places = {key: _place(key, given[key]) for key in _PLACES if key in given}
        return cls(
            main={split: _table(key, given[key]) for key, split in _MAIN.items() if key in given},
            object_dirs={
                split: _place(key, given[key]) for key, split in _DIR.items() if key in given
            },
            misc=_places("misc", given.get("misc", ())),
            **places,
        )

    def decide(self, split: str, *, kept: Iterable[str], asked: bool = False) -> Decision:
        """What is to be done to have a split.

        Args:
            kept: The splits whose shards are in `etl_dir` already.
            asked: Whether the split is needed for what is done next: a test split that is missing
                must not keep anybody from training.
        """
        name = Split(split)
        if name in self.main:
            return Decision(Plan.PROCESS if self.etl_dir is None else Plan.PROCESS_AND_KEEP)
        if self.etl_dir is not None and name in {Split(one) for one in kept}:
            return Decision(Plan.REUSE)
        return self._without(name, asked=asked)

    def _without(self, split: Split, *, asked: bool) -> Decision:
        """There is neither a table for the split nor are there shards of it."""
        if split in self.object_dirs and self.etl_dir is None:
            return Decision(
                Plan.REFUSE,
                f"{split}_dir only holds the files that a table names, but there is no "
                f"{split}_main. Give it as well, or an etl_dir with {split} shards.",
            )
        if not asked:
            return Decision(Plan.ABSENT)
        if self.etl_dir is not None:
            return Decision(
                Plan.REFUSE,
                f"{redact(self.etl_dir)} (etl_dir) must hold {split} shards, but has none. "
                f"Give {split}_main to make them.",
            )
        return Decision(
            Plan.REFUSE,
            f"there is no {split} data. Give {split}_main, or an etl_dir with {split} shards.",
        )


def _table(key: str, value: object) -> TableSource:
    if is_table(value):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if not value:
            raise UsageError(f"{key} must name at least one file, but is an empty list.")
        return _places(key, value)
    return _place(key, value, " a list of these, a pandas DataFrame or a pyarrow.Table")


def _places(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise UsageError(f"{key} must be a list of paths or URLs, but got {_shown(value)}.")
    return tuple(_place(f"{key}[{number}]", one) for number, one in enumerate(value))


def _place(key: str, value: object, more: str = "") -> str:
    """A path or URL as text, checked as far as its form goes."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise UsageError(
            f"{key} must be a path or URL{more and f',{more}'}, but got {_shown(value)}."
        )
    text = os.fspath(value)
    if not isinstance(text, str):
        raise UsageError(f"{key} must be text, but got bytes.")
    is_remote(text)  # raises for a file:// URL that names no file
    return text


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, str | int | float | bool) else type(value).__name__
