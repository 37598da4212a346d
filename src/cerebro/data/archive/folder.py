"""Samples that are plain files in directories: one folder a class, or files that share a name."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass

from cerebro.data.archive.errors import quote
from cerebro.data.archive.images import EXTENSIONS
from cerebro.data.archive.samples import Sample, is_metadata, split_name
from cerebro.errors import DataError, UsageError
from cerebro.storage.remote import local_path, redact


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One sample: its files by field, and its class in an image folder."""

    key: str
    paths: tuple[tuple[str, str], ...]
    label: int | None = None


class _Files:
    """Samples in a fixed order; files are opened when a sample is asked for."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = _directory(root)
        self.entries: list[FileEntry] = []

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Sample]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> Sample:
        return self.load(self.entries[number])

    def load(self, entry: FileEntry) -> Sample:
        """Read the files of a sample: bytes, and its class as an integer `cls`."""
        sample: Sample = {"__key__": entry.key, "__source__": self.root}
        for field, path in entry.paths:
            try:
                with open(path, "rb") as file:
                    sample[field] = file.read()
            except OSError as error:
                raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
        if entry.label is not None:
            sample["cls"] = entry.label
        return sample


class ImageFolder(_Files):
    """Pictures in one folder a class: `root/cat/1.jpg` is a sample with key `cat/1`, jpg and cls.

    Classes are numbered in the order of their sorted names, samples come sorted by class and path.
    Hidden files and files that are no pictures are left out; folders in a class belong to it.

    >>> from pathlib import Path
    >>> for name in ("dog", "cat"):
    ...     os.makedirs(f"pets/{name}")
    ...     _ = Path(f"pets/{name}/1.JPG").write_text(name)
    >>> pets = ImageFolder("pets")
    >>> pets.classes, [(s["__key__"], s["jpg"], s["cls"]) for s in pets]
    (['cat', 'dog'], [('cat/1', b'cat', 0), ('dog/1', b'dog', 1)])
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(root)
        #: Names by number.
        self.classes = [name for name in _names(self.root) if os.path.isdir(f"{self.root}/{name}")]
        if not self.classes:
            raise DataError(f"an image folder must have a folder for each class: {self.root}.")
        #: How many files are no pictures.
        self.ignored = 0
        for label, name in enumerate(self.classes):
            found = list(self._class_entries(name, label))
            if not found:
                raise DataError(
                    f"every class needs a picture ({', '.join(EXTENSIONS)}), but there is none in "
                    f"{self.root}/{name}. Remove the folder if it is no class."
                )
            self.entries += found

    def _class_entries(self, name: str, label: int) -> Iterator[FileEntry]:
        last = None
        for path in walk(f"{self.root}/{name}"):
            stem, _, extension = path.rpartition(".")
            if extension.lower() not in EXTENSIONS or not os.path.basename(stem):
                self.ignored += 1
                continue
            folder, slash, base = stem.rpartition("/")
            key = f"{name}/{folder}{slash}{base.replace('.', '_')}"
            if key == last:
                raise DataError(
                    f"pictures must differ in more than extension and dots, but {key} comes twice "
                    f"in {self.root}. Rename one."
                )
            last = key
            file = f"{self.root}/{name}/{path}"
            yield FileEntry(key, ((extension.lower(), file),), label)


class FileGroups(_Files):
    """Files that share their name up to the first dot, as they would stand in an archive.

    >>> from pathlib import Path
    >>> os.makedirs("scenes")
    >>> for name in ("2.txt", "1.seg.png", "1.txt"):
    ...     _ = Path(f"scenes/{name}").write_text(name)
    >>> [sorted(sample)[2:] for sample in FileGroups("scenes")]
    [['seg.png', 'txt'], ['txt']]
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(root)
        named = []
        for path in walk(self.root):
            if is_metadata(path):
                continue
            key, field, fault = split_name(path)
            if fault is not None:
                raise DataError(f"{self.root}: {fault}")
            named.append((key, field, f"{self.root}/{path}"))
        for key, group in itertools.groupby(sorted(named), key=lambda entry: entry[0]):
            paths = tuple((field, path) for _, field, path in group)
            if len(dict(paths)) < len(paths):
                raise DataError(
                    f"a field must come once, but the files of {quote(key)} in {self.root} do not "
                    "differ in more than capitals. Rename one."
                )
            self.entries.append(FileEntry(key, paths))
        if not self.entries:
            raise DataError(f"there must be a file to read, but there is none in {self.root}.")


def walk(root: str) -> list[str]:
    """The files below a directory that are not hidden, sorted, relative to it."""
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        inner = os.path.relpath(folder, root)
        found += [
            name if inner == "." else f"{inner}/{name}"
            for name in files
            if not name.startswith(".")
        ]
    return sorted(found)


def _names(root: str) -> list[str]:
    return sorted(name for name in os.listdir(root) if not name.startswith("."))


def _directory(root: str | os.PathLike[str]) -> str:
    path = local_path(root)
    if path is None:
        raise UsageError(
            f"a folder of files must be on this machine, but got {redact(root)}. Copy it, or pack "
            "it as archives, which are read from anywhere."
        )
    if not os.path.isdir(path):
        raise DataError(f"there must be a directory {path}, but there is none.")
    return path.rstrip("/") or "/"
