"""`cerebro shard`: files, tables and archives to shards with an index."""

from __future__ import annotations

import enum
import itertools
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

from cerebro.cli.table import format_bytes, format_columns
from cerebro.data.archive import FileGroups, ImageFolder, Sample, ShardIndex, expand, read_shard
from cerebro.data.archive.folder import walk
from cerebro.data.archive.images import EXTENSIONS
from cerebro.data.archive.shuffle import shuffled
from cerebro.data.archive.spec import ShardSource
from cerebro.data.archive.writer import ShardWriter, pack
from cerebro.data.order import shuffle
from cerebro.errors import DataError, UsageError
from cerebro.storage.remote import local_path, redact
from cerebro.storage.store import DirectoryStore
from cerebro.types import Json

CLASSES = "classes.json"

_T = TypeVar("_T")
_ARCHIVES = (".tar", ".tgz", ".tar.gz", ".zip")
_ARCHIVE_ENDINGS = {"gz", "tar", "tgz", "zip"}
_TABLES = (".csv", ".parquet")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_UNITS = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([kmgt]?i?)b?", re.ASCII | re.IGNORECASE)


class SourceKind(enum.StrEnum):
    """What the samples are made from."""

    IMAGES = "images"
    FILES = "files"
    TABLE = "table"
    ARCHIVES = "archives"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for."""

    source: str
    output: str
    name: str | None
    kind: SourceKind | None
    objects: str | None
    max_count: int
    max_bytes: int
    seed: int | None
    compress: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Input:
    samples: Iterable[Sample]
    what: str
    total: int | None = None
    classes: list[str] = field(default_factory=list)
    is_in_order: bool = False  # that of --shuffle, if it was given


def shard(request: Request) -> None:
    """Write the shards, and say what was written."""
    kind = request.kind or detect(request.source)
    if request.objects is not None and kind is not SourceKind.TABLE:
        raise UsageError(f"--objects goes with a CSV or Parquet file, but SOURCE is: {kind}.")
    name = request.name or _default_name(request.output)
    found = _open(kind, request, name)
    metadata: Mapping[str, Json] = {"classes": [*found.classes]} if found.classes else {}
    writer = ShardWriter(
        request.output,
        name=name,
        max_count=request.max_count,
        max_bytes=request.max_bytes,
        compress=request.compress,
        metadata=metadata,
    )
    with writer, _Progress() as progress:
        packed: Iterable[tuple[str, list[bytes]]] = map(pack, found.samples)
        if request.seed is not None and not found.is_in_order:
            packed = progress.track(packed, "shuffling", found.total)
            packed = shuffled(packed, request.seed, request.output)
        for key, parts in progress.track(packed, "writing", found.total):
            writer.write_packed(key, parts)
        if found.classes:
            text = json.dumps(found.classes, ensure_ascii=False, indent=1) + "\n"
            DirectoryStore(request.output).write(CLASSES, text.encode())
    print(_summary(found, writer.index, request.output, name))


def detect(source: str) -> SourceKind:
    """What a source is, by looking at it; an error if that is not clear."""
    path = local_path(source)
    if path is not None and os.path.isdir(path):
        return _detect_directory(path)
    is_table = source.lower().endswith(_TABLES)
    if path is not None and is_table and not os.path.exists(path):
        raise DataError(f"SOURCE must be there, but there is no {source}.")
    return SourceKind.TABLE if is_table else SourceKind.ARCHIVES


def _detect_directory(path: str) -> SourceKind:
    files = walk(path)
    if not files:
        raise DataError(f"SOURCE must hold files, but there is none in {path}.")
    top = [name for name in files if "/" not in name]
    endings = {name.rpartition(".")[2].lower() for name in top}
    if endings & _ARCHIVE_ENDINGS and endings <= {*_ARCHIVE_ENDINGS, "json", "shards"}:
        return SourceKind.ARCHIVES
    if top:
        return SourceKind.FILES
    are_images = {name.rpartition(".")[2].lower() in EXTENSIONS for name in files}
    if len(are_images) == 2:
        raise UsageError(
            f"{path} has folders with pictures and other files: say what it is with --as images "
            "(a folder for each class; other files are left out) or --as files (files with the "
            "same name up to the first dot are one sample)."
        )
    return SourceKind.IMAGES if are_images == {True} else SourceKind.FILES


def parse_kind(text: str) -> SourceKind:
    """A kind of source by its name.

    >>> parse_kind("images")
    <SourceKind.IMAGES: 'images'>
    """
    try:
        return SourceKind(text)
    except ValueError:
        raise UsageError(f"unknown --as {text[:40]!r}. Known: {', '.join(SourceKind)}.") from None


def parse_size(text: str) -> int:
    """A number of bytes with or without a unit.

    >>> parse_size("1GB"), parse_size("1.5 MiB"), parse_size("4096")
    (1000000000, 1572864, 4096)
    """
    match = _SIZE.fullmatch(text.strip())
    unit = match[2].lower() if match else "?"
    factor = _UNITS.get(unit) or _BINARY_UNITS.get(unit)
    if match is None or factor is None or (size := int(float(match[1]) * factor)) < 1:
        raise UsageError(f"a size must be written like 1GB, 500MB or 64MiB, but got {text[:40]!r}.")
    return size


def _open(kind: SourceKind, request: Request, name: str) -> _Input:
    if kind is SourceKind.ARCHIVES:
        return _open_archives(request, name)
    path = local_path(request.source)
    if path is None:
        raise UsageError(
            f"{kind} must be on this machine, but got {redact(request.source)}. Copy them first; "
            "archives are read from anywhere."
        )
    if kind is SourceKind.TABLE:
        from cerebro.data.archive.table import TableRows

        return _Input(samples=TableRows(path, request.objects), what="rows of a table")
    root, output = os.path.realpath(path), os.path.realpath(request.output)
    if os.path.commonpath([root, output]) == root:
        raise UsageError(
            f"OUTPUT_DIR must not be inside SOURCE, where it would be read as well the next time, "
            f"but got {request.output}."
        )
    files = ImageFolder(path) if kind is SourceKind.IMAGES else FileGroups(path)
    entries = files.entries
    if request.seed is not None:
        order = shuffle(len(entries), seed=request.seed, split="shard")
        entries = [entries[number] for number in order]
    classes = files.classes if isinstance(files, ImageFolder) else []
    what = f"pictures of {len(classes)} classes" if classes else "files by their names"
    if isinstance(files, ImageFolder) and files.ignored:
        what += f" ({files.ignored} other files left out)"
    return _Input(
        samples=map(files.load, entries),
        what=what,
        total=len(entries),
        classes=classes,
        is_in_order=True,
    )


def _open_archives(request: Request, name: str) -> _Input:
    source, path = request.source, local_path(request.source)
    if path is not None and os.path.isdir(path):
        inside = sorted(n for n in os.listdir(path) if n.lower().endswith(_ARCHIVES))
        if not inside:
            raise DataError(f"SOURCE must hold archives, but there is none in {path}.")
        sources = [ShardSource(urls=(f"{path.rstrip('/')}/{n}",)) for n in inside]
    else:
        sources = expand(source)
    ours = re.compile(rf"{re.escape(name)}-\d{{6}}\.(tar|tgz)")
    output = os.path.realpath(request.output)
    for url in itertools.chain.from_iterable(shard.urls for shard in sources):
        folder, base = os.path.split(os.path.realpath(local_path(url) or "/"))
        if folder == output and ours.fullmatch(base):
            raise UsageError(
                f"shards must not be replaced while they are read, but {folder}/{base} would be. "
                "Choose another OUTPUT_DIR or --name."
            )
    counts = [shard.samples for shard in sources]
    total = None if None in counts else sum(count or 0 for count in counts)
    samples = itertools.chain.from_iterable(map(read_shard, sources))
    return _Input(samples=samples, what=f"samples of {len(sources)} archives", total=total)


def _default_name(output: str) -> str:
    """The output directory's name, as far as it can be one."""
    name = os.path.basename(os.path.abspath(output))
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".-")[:60] or "shard"


def _summary(found: _Input, index: ShardIndex, output: str, name: str) -> str:
    files = [entry.urls[0] for entry in index.shards]
    sizes = [entry.bytes or 0 for entry in index.shards]
    shards = files[0] if len(files) == 1 else f"{files[0]} to {files[-1]}"
    rows = [
        ["from", found.what],
        ["samples", str(index.total_samples)],
        ["shards", f"{len(files)}: {shards}"],
        ["size", f"{format_bytes(sum(sizes))}, at most {format_bytes(max(sizes))} a shard"],
        ["index", os.path.join(output, f"{name}.shards")],
    ]
    if found.classes:
        rows.append(["classes", os.path.join(output, CLASSES)])
    return format_columns(rows)


class _Progress:
    """Bars on a terminal; nothing elsewhere."""

    def __enter__(self) -> Self:
        self._bars = None
        if sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            self._bars = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TextColumn("samples"),
                progress.TimeElapsedColumn(),
                progress.TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def track(self, items: Iterable[_T], label: str, total: int | None) -> Iterator[_T]:
        """The items, counted."""
        if self._bars is None:
            yield from items
            return
        task = self._bars.add_task(label, total=total)
        for item in items:
            yield item
            self._bars.advance(task)
