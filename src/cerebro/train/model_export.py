"""A trained model as a file for other programs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cerebro.data import Dataset, Shard, open_dataset
from cerebro.errors import DataError, UsageError
from cerebro.storage import DirectoryStore
from cerebro.task import Task
from cerebro.train.model_file import ENDINGS, KERAS, SAFETENSORS, ExportCall
from cerebro.train.runner import make_framework
from cerebro.train.score.calls import Member
from cerebro.train.score.runner import load_member
from cerebro.types import Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What a model becomes, and where."""

    #: One of `ENDINGS`.
    to: str
    #: Default the model's name in the current directory.
    path: str | os.PathLike[str] | None = None
    #: What the model's forward takes; default "x".
    columns: Sequence[str] | None = None
    #: The dataset whose rows a graph is traced with; not looked at for safetensors.
    data: str
    #: What the file is to say about itself, beside the name and the params.
    about: Mapping[str, str] = field(default_factory=dict)


def export_member(task: Task, member: Member, form: Export) -> str:
    """Write the model as a file, whole or not at all; gives its absolute path."""
    if form.to not in ENDINGS:
        raise UsageError(f"a trial is exported to {', '.join(ENDINGS)}, but got {form.to!r}.")
    if form.to == KERAS and task.framework != KERAS:
        raise UsageError(
            f"a model is exported to {KERAS} where Keras trained it, but {type(task).__name__} is "
            f"trained by {task.framework}."
        )
    if isinstance(form.columns, str) or (form.columns is not None and not form.columns):
        raise UsageError(f"columns must be a list of names, but got {form.columns!r}.")
    about = {**form.about, "model": member.name, "params": json.dumps(dict(member.params))}
    framework = make_framework(task, device="cpu", threads=0)
    try:
        shard = None if form.to in (SAFETENSORS, KERAS) else _any_shard(open_dataset(form.data))
        call = ExportCall(to=form.to, columns=tuple(form.columns or ["x"]), about=about)
        content = framework.export(call, load_member(framework, member), shard)
    finally:
        framework.close()
    where = Path(form.path or f"{member.name}{ENDINGS[form.to]}").absolute()
    where.parent.mkdir(parents=True, exist_ok=True)
    DirectoryStore(where.parent).write(where.name, content)
    return str(where)


def _any_shard(data: Dataset) -> Shard:
    for split in (Split.TRAIN, Split.VAL, Split.TEST, Split.PREDICT):
        if data.shards(split):
            return data.open_shard(split, 0)
    raise DataError(f"{data.path} has no rows.")
