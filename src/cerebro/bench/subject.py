"""The file that is benchmarked, and how a setting changes it: recipe or experiment file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cerebro.bench.sweep import BATCH_SIZE, Rule, Setting
from cerebro.config.files import is_recipe_file, load_document
from cerebro.errors import UsageError
from cerebro.types import Json

_GLOBAL = "global_batch_size"
_BATCHES = (BATCH_SIZE, _GLOBAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A file, with the overrides that hold for all settings.

    >>> recipe = Subject(path=Path("cnn.yaml"), is_recipe=True, batch=64)
    >>> recipe.overrides(Setting(nodes=2, batch=32), Path("/out/runs/a"))
    ['training.batch_size=null', 'training.global_batch_size=32', 'optimizer.lr_scaling=none', \
'training.lr_warmup_epochs=0', 'parallel=ddp', 'output_dir=/out/runs/a']
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
    #: Whether such share one batch among them: then one process has no warm-up either.
    is_shared: bool = False

    def compared(self, settings: Sequence[Setting]) -> Subject:
        """The same for these settings."""
        several = [setting for setting in settings if setting.ranks > 1]
        is_shared = any(setting.rule is Rule.GLOBAL for setting in several)
        return replace(self, is_plain=bool(several), is_shared=is_shared)

    @property
    def digest(self) -> str:
        """Changes when the file, or what is changed of it, does."""
        words = [*self.given, f"is_plain={self.is_plain}", f"is_shared={self.is_shared}"]
        parts = [self.path.read_bytes(), *(text.encode() for text in words)]
        return hashlib.sha256(b"\0".join(parts)).hexdigest()

    def overrides(self, setting: Setting, run: Path) -> list[str]:
        """What the setting changes, and where its run goes."""
        return [
            *self.given,
            *(f"{key}={value}" for key, value in setting.changes),
            *self._batch_overrides(setting),
            *self._rate(setting),
            *([] if setting.checkpoint is None else [_checkpoint(setting.checkpoint)]),
            *self._ranks(setting),
            *self._place(run),
        ]

    def _batch_overrides(self, setting: Setting) -> list[str]:
        if setting.batch is None:
            return []
        is_global = setting.ranks > 1 and setting.rule is Rule.GLOBAL
        told, other = (_GLOBAL, BATCH_SIZE) if is_global else (BATCH_SIZE, _GLOBAL)
        if self.is_in_space:
            return [self._space_override(setting, told, other)]
        section = "training." if self.is_recipe else ""
        # An experiment file of one process needs not know about batches of several.
        unset = [f"{section}{other}=null"] if self.is_recipe or setting.ranks > 1 else []
        return [*unset, f"{section}{told}={setting.batch}"]

    def _space_override(self, setting: Setting, told: str, other: str) -> str:
        """A parameter cannot be taken away alone: the space is written anew where it must be."""
        before = [*self.given, *(f"{key}={value}" for key, value in setting.changes)]
        space = _below(_tree(self.path, before), "space")
        if told in space and other not in space:
            return f"space.{told}={setting.batch}"
        left = {key: value for key, value in space.items() if key != other}
        return f"space={json.dumps({**left, told: setting.batch})}"

    def _rate(self, setting: Setting) -> list[str]:
        """The same batches are trained at the same rates, however many processes share them.

        One process does without the warm-up as well where it is compared with those: a cosine
        begins after it.
        """
        is_compared = setting.ranks > 1 or self.is_shared
        if not self.is_recipe or setting.batch is None or not is_compared:
            return []
        if setting.rule is not Rule.GLOBAL:
            return []
        wanted = {"optimizer.lr_scaling": "none", "training.lr_warmup_epochs": "0"}
        named = {*(text.partition("=")[0].strip() for text in self.given), *dict(setting.changes)}
        return [f"{key}={value}" for key, value in wanted.items() if key not in named]

    def _ranks(self, setting: Setting) -> list[str]:
        """One process is one worker, however many would fit the machine; several are one gang."""
        wanted = {"parallel": "ddp"} if setting.ranks > 1 else {"workers": "1"}
        if self.is_plain:
            wanted["stack"] = "false"
        keys = [*(text.partition("=")[0].strip() for text in self.given), *dict(setting.changes)]
        named = {key.partition(".")[0] for key in keys}
        return [f"{key}={value}" for key, value in wanted.items() if key not in named]

    def _place(self, run: Path) -> list[str]:
        if self.is_recipe:
            return [f"output_dir={run}"]
        return [f"store={run.parent}", f"name={run.name}"]


def _checkpoint(is_saved: bool) -> str:
    return f"checkpoint={'epoch' if is_saved else 'off'}"


def open_subject(path: Path, given: Sequence[str]) -> Subject:
    """Read a file, as far as a benchmark must know it; the run itself checks all of it."""
    is_recipe = is_recipe_file(path)
    tree = _tree(path, given)
    found = Subject(path=path.absolute(), is_recipe=is_recipe, given=tuple(given))
    space = {} if is_recipe else _below(tree, "space")
    in_space = [key for key in _BATCHES if key in space]
    if in_space:
        return replace(found, batch=_number(space[in_space[0]]), is_in_space=True)
    section = _below(tree, "training") if is_recipe else tree
    # What is given wins over the file, whichever of the two keys either of them has.
    head = "training." if is_recipe else ""
    named = [text.partition("=")[0].strip().removeprefix(head) for text in reversed(given)]
    batches = [section.get(key) for key in (*named, *_BATCHES) if key in _BATCHES]
    return replace(found, batch=next(filter(None, map(_number, batches)), None))


def _tree(path: Path, overrides: Sequence[str]) -> Mapping[str, Json]:
    tree = load_document(path, overrides).tree
    if not isinstance(tree, dict):
        raise UsageError(f"{path} must be a mapping of keys to values to be benchmarked.")
    return tree


def _below(tree: Mapping[str, Json], key: str) -> Mapping[str, Json]:
    below = tree.get(key)
    return below if isinstance(below, dict) else {}


def _number(value: Json) -> int | None:
    if isinstance(value, bool):
        return None
    return int(str(value)) if str(value).isdecimal() else None
