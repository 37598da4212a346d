"""The modules of the driver's program, for nodes that do not see its files."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from cerebro.errors import UsageError

#: Large programs are told how to say what they need.
_MAX_FILES = 5000


def pack_modules(target: Path, folders: list[Path]) -> int:
    """Copy all Python files below these folders, those of the first last; how many there are.

    Hidden folders, environments and what is installed are left out.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (Path(folder) / "tasks.py").write_text("x = 1")
    ...     pack_modules(Path(folder) / "parcel", [Path(folder)])
    5
    1
    """
    names: set[Path] = set()
    for folder in reversed(folders):
        for path in _modules(folder):
            if len(names) >= _MAX_FILES:
                raise UsageError(
                    f"at most {_MAX_FILES} Python files travel to other machines, but {folder} has "
                    "more. Start in a smaller folder, or say what they need with "
                    "runtime_env={'working_dir': ...}."
                )
            name = path.relative_to(folder)
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / name)
            names.add(name)
    return len(names)


def program_folders() -> list[Path]:
    """Where modules are found that are not installed: beside the script, and here."""
    found = [Path(sys.path[0] or os.curdir), Path.cwd()] if sys.path else [Path.cwd()]
    unique = dict.fromkeys(path.resolve() for path in found if path.is_dir())
    return [path for path in unique if not _is_installed(path) and path.parent != path]


def own_package() -> Path:
    """The folder of this package."""
    return Path(__file__).resolve().parents[2]


def _modules(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith((".", "__pycache__"))
            and not os.path.exists(os.path.join(place, name, "pyvenv.cfg"))
            and name not in ("site-packages", "node_modules")
        )
        found = [name for name in sorted(files) if name.endswith(".py") and name[0] != "."]
        yield from (path for name in found if (path := Path(place) / name).is_file())


def _is_installed(path: Path) -> bool:
    return "site-packages" in path.parts or path.is_relative_to(sys.prefix)
