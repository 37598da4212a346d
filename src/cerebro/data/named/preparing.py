"""From the files of a data set to shards, once."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

import numpy as np

from cerebro.data.columns import Array
from cerebro.data.manifest import FILE
from cerebro.data.named.catalogue import lookup
from cerebro.data.named.finding import find, home
from cerebro.data.named.kinds import COMMON, Found, NamedData, Options, Rows, Scratch, draw
from cerebro.data.named.waiting import sole_maker
from cerebro.data.writers import from_arrays
from cerebro.errors import DataError, UsageError
from cerebro.storage.store import explain
from cerebro.types import Json, Split

#: Part of the name of what is prepared: a new number where the same options give other bytes.
_FORMAT = 2
PREPARED = "prepared"


def prepare(
    name: str,
    source: str | os.PathLike[str] | None = None,
    into: str | os.PathLike[str] | None = None,
    *,
    say: Callable[[str], None] = lambda text: None,
    **options: Json,
) -> str:
    """The path of a named data set as shards, which are made unless they are there.

    Any number of processes, on any number of machines that share a disk, may ask at once: one makes
    the shards, the others wait for it. The same files and options give the same bytes everywhere.
    Columns are `x`, uint8 (channels, height, width), and `y`, int64; both are float32 in `dummy`.

    Args:
        name: `cifar10`, `dummy`, `fashion-mnist`, `imagenet`, `mnist` or `svhn`.
        source: The folder with its files; by default the usual places are looked at. Nothing is
            fetched: that is what `cerebro data get` is for.
        into: The folder for prepared data sets; by default `prepared` in `$CEREBRO_DATA` or in
            `~/.cerebro/data`.
        say: Hears what is going on.
        options: `shards` (8) and `seed` (0) of all; `n_train` and `n_valid` for so many rows,
            drawn at random; others as docs/datasets.md has them.

    Raises:
        UsageError: the name or an option is not known, or has no such value.
        DataError: the files are missing, damaged or not what they should be.

    >>> path = prepare("dummy", into="prepared", input_shape=[8, 8, 3], n_train=16, n_valid=8)
    >>> from cerebro.data import open_dataset
    >>> data = open_dataset(path)
    >>> data.rows("train"), data.schema["x"]
    (16, Column(kind=<Kind.TENSOR: 'tensor'>, dtype='float32', shape=(3, 8, 8)))
    """
    data = lookup(name)
    chosen = check_options(data, options)
    found = find(data, chosen, None if source is None else os.fspath(source))
    folder = os.path.join(home(), PREPARED) if into is None else os.path.abspath(os.fspath(into))
    return _prepare(data, chosen, found, folder, say)


def check_options(data: NamedData, options: Mapping[str, Json]) -> Options:
    """All options of a data set: those given, and defaults for the others.

    >>> check_options(lookup("mnist"), {"n_train": 100})
    Options(n_train=100, n_valid=None, shards=8, seed=0, own={})
    """
    known = data.defaults
    for option in options:
        if option not in known:
            raise UsageError(
                f"data set {data.name!r} has no option {option!r}. Its options: "
                f"{', '.join(sorted(known))}."
            )
    chosen = {**known, **options}
    checked = Options(
        n_train=None if chosen["n_train"] is None else _count("n_train", chosen),
        n_valid=None if chosen["n_valid"] is None else _count("n_valid", chosen),
        shards=_count("shards", chosen),
        seed=_count("seed", chosen, least=0),
        own={option: value for option, value in chosen.items() if option not in COMMON},
    )
    for option, value in checked.own.items():
        if option.endswith("_shape"):
            checked.shape(option, 3 if option == "input_shape" else None)
        elif isinstance(known[option], bool) and not isinstance(value, bool):
            raise UsageError(f"{option} must be true or false, but is {value!r}.")
    return checked


def _count(option: str, chosen: Mapping[str, Json], *, least: int = 1) -> int:
    value = chosen[option]
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"`{option} >= {least}` must hold, but got {option}={value!r}.")
    return value


def prepared_name(data: NamedData, options: Options, found: Found) -> str:
    """The name of the folder that these options and files become."""
    # Where folders are decides nothing, what is in them does.
    own = {k: v for k, v in options.own.items() if k not in data.given_by.values()}
    chosen = asdict(replace(options, own=own))
    what = {"format": _FORMAT, "name": data.name, "options": chosen, "files": found.marks()}
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
    return f"{data.name}-{digest[:12]}"


def prepared_paths(data: NamedData) -> list[str]:
    """What is prepared of a data set in the usual folder, with whatever options."""
    folder = os.path.join(home(), PREPARED)
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    pattern = re.compile(rf"{re.escape(data.name)}-[0-9a-f]{{12}}")
    paths = [os.path.join(folder, name) for name in names if pattern.fullmatch(name)]
    return [path for path in paths if os.path.exists(os.path.join(path, FILE))]


def _prepare(
    data: NamedData, options: Options, found: Found, folder: str, say: Callable[[str], None]
) -> str:
    name = prepared_name(data, options, found)
    path = os.path.join(folder, name)

    def is_made() -> bool:
        return os.path.exists(os.path.join(path, FILE))

    if is_made():
        return path
    with sole_maker(folder, f".{name}.lock", path, is_made, say) as is_ours:
        if is_ours:
            say(f"preparing {data.name} in {path}")
            _make(data, options, found, path)
    return path


def _make(data: NamedData, options: Options, found: Found, path: str) -> None:
    def scratch(shape: tuple[int, ...]) -> Array:
        return _on_disk(os.path.dirname(path), shape)

    try:
        loaded = data.load(found, options, scratch)
    except FileNotFoundError as error:
        raise DataError(f"{error.filename} was there and is gone. Get it again.") from error
    train = _drawn(data, loaded.train, Split.TRAIN, options, scratch)
    valid = _drawn(data, loaded.valid, Split.VAL, options, scratch)
    from_arrays(
        path,
        {"x": train.x, "y": train.y},
        {"x": valid.x, "y": valid.y},
        shards=options.shards,
        seed=options.seed,
    )


def _drawn(data: NamedData, rows: Rows, split: Split, options: Options, scratch: Scratch) -> Rows:
    """All, or so many drawn at random: the first ones of sorted files would be of one class."""
    option = "n_train" if split is Split.TRAIN else "n_valid"
    count, there = getattr(options, option), len(rows.x)
    if count is None or count == there:
        return rows
    if count > there:
        raise UsageError(
            f"`{option} <= {there}` must hold for {data.name}, but got {option}={count}."
        )
    index = draw(there, count, options.seed, split)
    x = np.take(rows.x, index, axis=0, out=scratch((count, *rows.x.shape[1:])))
    return Rows(x, rows.y[index])


def _on_disk(folder: str, shape: tuple[int, ...]) -> Array:
    """An array of bytes whose memory is a file without a name: whoever dies leaves nothing."""
    size = max(1, math.prod(shape))
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            # Writing to a map of a file that the disk has no room for would be the end of us.
            os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, np.uint8, "r+", shape=shape)
    except OSError as error:
        raise explain(error, "write a scratch file in", folder, size) from error
