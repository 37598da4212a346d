"""The file that is benchmarked, and how a setting changes it: recipe or experiment file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cerebro.bench.sweep import BATCH_SIZE, Rule, Setting
from cerebro.config.yaml import load_yaml
from cerebro.errors import UsageError
from cerebro.types import Json

_GLOBAL = "global_batch_size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A file, with the overrides that hold for all settings.

    >>> recipe = Subject(path=Path("cnn.yaml"), is_recipe=True, batch=64)
    >>> recipe.overrides(Setting(nodes=2, batch=32), Path("/out/runs/a"))
    ['training.batch_size=null', 'training.global_batch_size=32', 'parallel=ddp', \
'output_dir=/out/runs/a']
    """

    path: Path
    is_recipe: bool
    #: What the file has, of each process; None where it is not one number.
    batch: int | None = None
    #: Whether the batch size is a parameter of the space.
    is_in_space: bool = False
    #: Overrides of the user's.
    given: tuple[str, ...] = ()
    #: Whether several processes are among what is compared: those have no stacks, so nobody has.
    is_plain: bool = False

    @property
    def digest(self) -> str:
        """Changes when the file, or what is changed of it, does."""
        words = [*self.given, f"is_plain={self.is_plain}"]
        parts = [self.path.read_bytes(), *(text.encode() for text in words)]
        return hashlib.sha256(b"\0".join(parts)).hexdigest()

    def overrides(self, setting: Setting, run: Path) -> list[str]:
        """What the setting changes, and where its run goes."""
        return [
            *self.given,
            *(f"{key}={value}" for key, value in setting.changes),
            *self._batch_overrides(setting),
            *([] if setting.checkpoint is None else [_checkpoint(setting.checkpoint)]),
            *self._ranks(setting),
            *self._place(run),
        ]

    def _batch_overrides(self, setting: Setting) -> list[str]:
        if setting.batch is None:
            return []
        if self.is_in_space:
            return [f"space.{BATCH_SIZE}={setting.batch}"]
        section = "training." if self.is_recipe else ""
        is_global = setting.ranks > 1 and setting.rule is Rule.GLOBAL
        told, other = (_GLOBAL, BATCH_SIZE) if is_global else (BATCH_SIZE, _GLOBAL)
        # An experiment file of one process needs not know about batches of several.
        unset = [f"{section}{other}=null"] if self.is_recipe or setting.ranks > 1 else []
        return [*unset, f"{section}{told}={setting.batch}"]

    def _ranks(self, setting: Setting) -> list[str]:
        """One process is one worker, however many would fit the machine; several are one gang."""
        wanted = {"parallel": "ddp"} if setting.ranks > 1 else {"workers": "1"}
        if self.is_plain:
            wanted["stack"] = "false"
        named = {text.partition("=")[0].partition(".")[0] for text in self.given}
        return [f"{key}={value}" for key, value in wanted.items() if key not in named]

    def _place(self, run: Path) -> list[str]:
        if self.is_recipe:
            return [f"output_dir={run}"]
        return [f"store={run.parent}", f"name={run.name}"]


def _checkpoint(is_saved: bool) -> str:
    return f"checkpoint={'epoch' if is_saved else 'off'}"


def open_subject(path: Path, given: Sequence[str]) -> Subject:
    """Read a file, as far as a benchmark must know it; the run itself checks all of it."""
    tree = load_yaml(path).tree
    if not isinstance(tree, dict):
        raise UsageError(f"{path} must be a mapping of keys to values to be benchmarked.")
    is_recipe = "model" in tree and "training" in tree
    found = Subject(path=path.absolute(), is_recipe=is_recipe, given=tuple(given))
    section = _below(tree, "training") if is_recipe else tree
    space = {} if is_recipe else _below(tree, "space")
    if BATCH_SIZE in space:
        return replace(found, batch=_number(space[BATCH_SIZE]), is_in_space=True)
    named = dict(text.partition("=")[::2] for text in given)
    key = f"training.{BATCH_SIZE}" if is_recipe else BATCH_SIZE
    batch = named.get(key, section.get(BATCH_SIZE, section.get(_GLOBAL)))
    return replace(found, batch=_number(batch))


def _below(tree: Mapping[str, Json], key: str) -> Mapping[str, Json]:
    below = tree.get(key)
    return below if isinstance(below, dict) else {}


def _number(value: Json) -> int | None:
    if isinstance(value, bool):
        return None
    return int(str(value)) if str(value).isdecimal() else None
