"""Names in, references out: which class a backend's name stands for, what a task's name means.

Nothing is imported to check a reference; `load_reference` imports at first use.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cerebro.errors import MissingDependencyError, UsageError
from cerebro.search.wording import show, unknown

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendEntry:
    """A backend that can be named in an experiment."""

    #: `module:Class`.
    reference: str
    #: What to do where it can not be imported.
    hint: str


#: Sorted by name.
BACKENDS: Mapping[str, BackendEntry] = {
    "inline": BackendEntry(
        reference="cerebro.backend.inline:InlineBackend", hint="Reinstall cerebro."
    ),
    "local": BackendEntry(
        reference="cerebro.backend.local:LocalBackend", hint="Reinstall cerebro."
    ),
    "ray": BackendEntry(
        reference="cerebro.backend.ray.backend:RayBackend",
        hint="Install it with `pip install 'cerebro[ray]'`.",
    ),
    "spark": BackendEntry(
        reference="cerebro.backend.spark.backend:SparkBackend",
        hint="Install it with `pip install 'cerebro[spark]'`.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReference:
    """Where a task's class is: in an importable module or in a Python file."""

    #: Dotted name, or None where the class is in a file.
    module: str | None
    #: Absolute path, or None where the class is in a module.
    file: str | None
    name: str

    def __str__(self) -> str:
        return f"{self.module or self.file}:{self.name}"


def check_run_name(name: str) -> str:
    """Give the name back if a run may have it; else UsageError.

    >>> check_run_name("digits-2")
    'digits-2'
    """
    if _RUN_NAME.fullmatch(name):
        return name
    raise UsageError(
        "a run's name must start with a letter or digit and go on with letters, digits, . _ or - "
        f"(at most 100 in all), but got {show(name)}."
    )


def split_backend(text: str) -> tuple[str, str | None]:
    """A backend's name, and the address of a cluster where it is named with one.

    >>> split_backend("ray://10.0.0.7:10001"), split_backend("ray:10.0.0.7:6379")
    (('ray', 'ray://10.0.0.7:10001'), ('ray', '10.0.0.7:6379'))
    >>> split_backend("local")
    ('local', None)
    """
    name, colon, rest = text.partition(":")
    if name != "ray" or not colon:
        return text, None
    if not rest.strip("/"):
        raise UsageError(f"a Ray cluster is named as ray:HOST:PORT, but got {show(text)}.")
    return name, text if rest.startswith("//") else rest


def backend_reference(name: str) -> str:
    """The `module:Class` of a backend.

    >>> backend_reference("inline")
    'cerebro.backend.inline:InlineBackend'
    """
    entry = BACKENDS.get(split_backend(name)[0])
    if entry is None:
        raise UsageError(unknown("backend", name, list(BACKENDS)))
    return entry.reference


def split_reference(text: str) -> tuple[str, str]:
    """Split `module:Class` or `file.py:Class` and check both halves; imports nothing.

    >>> split_reference("package.module:Digits")
    ('package.module', 'Digits')
    """
    where, colon, name = text.rpartition(":")
    is_file = where.endswith(".py") and len(where) > len(".py")
    if colon and (is_file or _MODULE.fullmatch(where)) and _MODULE.fullmatch(name):
        return where, name
    raise UsageError(
        f"a class is named `module:Class` or `file.py:Class`, as in `tasks.py:Digits`, "
        f"but got {show(text)}."
    )


def task_reference(text: str, directory: Path) -> TaskReference:
    """Check how a task is named; a relative file is looked up in `directory`."""
    where, name = split_reference(text)
    if not where.endswith(".py"):
        return TaskReference(module=where, file=None, name=name)
    file = resolve_path(where, directory)
    if not os.path.isfile(file):
        raise UsageError(f"the task {show(text)} needs the file {file!r}, which does not exist.")
    return TaskReference(module=None, file=file, name=name)


def resolve_path(text: str, directory: Path) -> str:
    """An absolute path; URLs stay as they are, `~` is the home directory.

    >>> resolve_path("s3://bucket/runs", Path("/x")), resolve_path("../runs", Path("/x/y"))
    ('s3://bucket/runs', '/x/runs')
    """
    if "://" in text:
        return text
    return os.path.normpath(directory.absolute() / Path(text).expanduser())


def load_reference(reference: str, hint: str = "") -> object:
    """Import what `module:Class` names.

    >>> load_reference("pathlib:Path")
    <class 'pathlib.Path'>
    """
    module, name = split_reference(reference)
    try:
        found: object = importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"{reference!r} cannot be imported: {error}. {hint}".rstrip()
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"the module {module!r} has no {part!r}, named by {reference!r}.")
        found = getattr(found, part)
    return found
