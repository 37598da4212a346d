"""Where the files of a data set are on this machine."""

from __future__ import annotations

import os

from cerebro.data.named.kinds import Form, Found, NamedData, Options
from cerebro.errors import DataError, UsageError

#: The folder of data sets, if this variable names one.
VARIABLE = "CEREBRO_DATA"
_HOME = "~/.cerebro/data"


def home() -> str:
    """Where data sets are fetched to and prepared, unless told otherwise."""
    return os.path.abspath(os.path.expanduser(os.environ.get(VARIABLE) or _HOME))


def places(source: str | None = None) -> list[str]:
    """Where is looked, in order."""
    if source is not None:
        return [_absolute(source)]
    given = os.environ.get(VARIABLE)
    return list(dict.fromkeys(_absolute(each) for each in (given, "data", _HOME) if each))


def find(data: NamedData, options: Options, source: str | None = None) -> Found:
    """The files of a data set; DataError says what is wanted and where was looked."""
    if any(options.own.get(option) is not None for option in data.given_by.values()):
        return _find_given(data, options)
    folders = _folders(data, source)
    for folder in folders:
        for form in data.forms:
            found = _match(form, folder)
            if found is not None:
                return found
    if not data.forms:
        return Found(kind="made", folder="")
    _refuse_unread(data, folders)
    raise DataError(_missing(data, source))


def is_found(data: NamedData) -> Found | None:
    """The files of a data set in the usual places, if they are there."""
    try:
        return find(data, Options())
    except DataError:
        return None


def _folders(data: NamedData, source: str | None) -> list[str]:
    # The files of some data sets have the same names: only who names a folder means it itself.
    below = data.folders if source is None else ("", *data.folders)
    found = [os.path.normpath(os.path.join(p, f)) for p in places(source) for f in below]
    return found if source is not None else [*found, *data.system_folders]


def _match(form: Form, folder: str) -> Found | None:
    files = {}
    for role, names in form.files.items():
        there = [path for name in names if os.path.exists(path := os.path.join(folder, name))]
        if not there:
            return None
        files[role] = there[0]
    return Found(form.kind, folder, files)


def _find_given(data: NamedData, options: Options) -> Found:
    files = {}
    for role, option in data.given_by.items():
        given = options.own.get(option)
        if not isinstance(given, str) or not given:
            others = " and ".join(data.given_by.values())
            raise UsageError(
                f"{data.name} needs {others} together, both paths, but {option} is {given!r}."
            )
        files[role] = _absolute(given)
        if not os.path.isdir(files[role]):
            raise DataError(f"{option} must be a folder, but there is no {files[role]}.")
    return Found(data.forms[0].kind, os.path.commonpath(list(files.values())), files)


def _refuse_unread(data: NamedData, folders: list[str]) -> None:
    for folder in folders:
        for name, why in data.refused.items():
            path = os.path.join(folder, name)
            if os.path.exists(path):
                raise DataError(f"{path} {why}")


def _missing(data: NamedData, source: str | None) -> str:
    wanted = "; or ".join(dict.fromkeys(", ".join(form.usual_names) for form in data.forms))
    looked = ", ".join([*places(source), *(data.system_folders if source is None else ())])
    below = ", ".join(folder for folder in data.folders if folder)
    itself = "" in data.folders or source is not None
    also = f" ({'there, or ' if itself else ''}in a folder {below} of it)" if below else ""
    if data.origin is not None:
        todo = f"Get them with `cerebro data get {data.name}`, or say where they are: "
        todo += "source (in a recipe data.source)."
    else:
        todo = f"Say where they are: {' and '.join(data.given_by.values())}."
    return (
        f"the files of {data.name} must be on this machine: {wanted}. They were looked for in "
        f"{looked}{also}. {todo}"
    )


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(os.path.expandvars(path)))
