"""Modules that the user wrote: those beside the script and below, not installed ones."""

from __future__ import annotations

import ast
import contextlib
import functools
import glob
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator
from types import ModuleType

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_INSTALLED = ("site-packages", "dist-packages")


class UserModules:
    """Tells modules of the user from others.

    They lie below the current directory, the directory of the script, or that of one of `files`.
    One without a file, such as that of a notebook, is the user's, too.
    """

    def __init__(self, *files: str) -> None:
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        places = [os.path.dirname(os.path.abspath(file)) for file in (*files, script) if file]
        self._roots = tuple(dict.fromkeys(_folder(place) for place in (*places, os.getcwd())))
        paths = sysconfig.get_paths()
        self._others = tuple(
            _folder(place) for place in (_OURS, *(paths[key] for key in ("stdlib", "platstdlib")))
        )

    def is_users(self, module: ModuleType | None) -> bool:
        """Whether its code may change from one run to the next. None: nobody knows the module."""
        if module is None or module.__name__ == "__main__":
            return True
        if module.__name__.split(".")[0] in sys.stdlib_module_names:
            return False
        path = getattr(module, "__file__", None)
        if path is None:
            spec = getattr(module, "__spec__", None)
            return spec is None or spec.origin not in ("built-in", "frozen")
        return self._is_below(path)

    def sources(self, module: ModuleType | None) -> Iterator[tuple[str, str]]:
        """Name and text of a module and of all of the user's that it imports, each once."""
        path = getattr(module, "__file__", None)
        if module is None or path is None:
            return
        package = getattr(module, "__package__", None) or ""
        waiting, seen = [(module.__name__, path, package)], {path}
        while waiting:
            name, path, package = waiting.pop(0)
            try:
                with open(path, "rb") as file:
                    content = file.read()
            except OSError:
                continue
            yield name, content.decode(errors="backslashreplace")
            for found in _imports(content, package):
                origin = _origin(found)
                if origin is not None and origin not in seen and self._is_below(origin):
                    seen.add(origin)
                    is_package = os.path.basename(origin) == "__init__.py"
                    inside = found if is_package else found.rpartition(".")[0]
                    waiting.append((found, origin, inside))

    def _is_below(self, path: str) -> bool:
        path = os.path.abspath(path)
        if not path.startswith(self._roots) or path.startswith(self._others):
            return False
        if any(f"{os.sep}{name}{os.sep}" in path for name in _INSTALLED):
            return False
        folder, name = os.path.split(path)
        while name and path.startswith(self._roots):
            if name in _installed_in(folder):
                return False
            path = folder
            folder, name = os.path.split(path)
        return True


@functools.cache
def _installed_in(folder: str) -> frozenset[str]:
    """What pip has put into a folder of the user's, as `pip install --target` does."""
    found: set[str] = set()
    for record in glob.glob(os.path.join(glob.escape(folder), "*.dist-info", "RECORD")):
        with contextlib.suppress(OSError), open(record, encoding="utf-8", errors="replace") as file:
            found.update(line.partition(",")[0].partition("/")[0] for line in file)
    return frozenset(found)


def _folder(path: str) -> str:
    return os.path.join(os.path.abspath(path), "")


def _imports(content: bytes, package: str) -> list[str]:
    """Names of modules that a text imports, at the top or in functions; some may be none."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):
        return []
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                found.update((".".join(parts[:n]), None) for n in range(1, len(parts) + 1))
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                outer = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*outer, *([base] if base else [])])
            parts = base.split(".")
            found.update((".".join(parts[:n]), None) for n in range(1, len(parts) + 1))
            found.update((f"{base}.{alias.name}", None) for alias in node.names)
    return [name for name in found if name and not name.startswith(".")]


def _origin(name: str) -> str | None:
    """The file of a module, loaded or not; nothing is run to find it."""
    if name.split(".")[0] in sys.stdlib_module_names:
        return None
    loaded = sys.modules.get(name)
    if loaded is not None:
        path = getattr(loaded, "__file__", None)
        return path if path is None or path.endswith(".py") else None
    outer, _, last = name.rpartition(".")
    if outer:
        parent = _origin(outer)
        if parent is None or os.path.basename(parent) != "__init__.py":
            return None
        stem = os.path.join(os.path.dirname(parent), last)
        places = (f"{stem}.py", os.path.join(stem, "__init__.py"))
        return next((place for place in places if os.path.isfile(place)), None)
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    origin = None if spec is None else spec.origin
    return origin if origin is not None and origin.endswith(".py") else None
