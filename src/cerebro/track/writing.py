"""How the files of trackers are written: never synced, for a resumed run writes them anew."""

from __future__ import annotations

import os
from pathlib import Path


def append(path: str | Path, data: bytes) -> None:
    """Add to the end of a file, opened for just that.

    A thousand trials must not hold a thousand descriptors.
    """
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
    finally:
        os.close(file)


def replace(path: Path, text: str) -> None:
    """Put a new file in the place of an old one: readers see either, never a part."""
    # A lone surrogate has no UTF-8; its escape is what JSON would write.
    replace_bytes(path, text.encode(errors="backslashreplace"))


def replace_bytes(path: Path, data: bytes) -> None:
    """The same with bytes."""
    temporary = path.with_name(f".tmp-{os.getpid()}-0-{path.name}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
