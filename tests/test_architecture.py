"""The shape of the package, enforced from the tables below."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "cerebro"

# A module imports its own package and lower rows, never a sibling on its row. Lowest row first.
LAYERS = (
    {"errors", "types", "version"},
    {"task", "spec", "etl_spec"},
    {"mop", "storage"},
    {"search", "data", "track", "zoo"},
    {"train"},
    {"backend"},
    {"run", "testing", "result_rows"},
    {"config", "etl", "results", "scores", "steering"},
    {"fitting", "scoring"},
    {"experiment"},
    {"estimators"},
    {"keras", "torch", "tune"},
    {"bench", "launch"},
    {"cli"},
    {"__init__", "__main__"},
)

# Third-party package -> the modules or packages that may import it.
THIRD_PARTY = {
    "PIL": {"bench.png", "data.archive.images"},
    "cloudpickle": {"backend"},
    "fsspec": {"storage.remote", "testing.bucket"},
    "jupyterlab": {"launch.jupyter"},
    "keras": {"estimators.keras", "train.keras"},
    "numpy": {
        *("backend", "data", "estimators", "run", "search", "storage", "testing", "track", "train")
    },
    "optuna": {"search.optuna"},
    "psutil": {"backend", "cli", "launch", "steering", "train.stack.survey"},
    "pyarrow": {"data", "estimators.spark"},
    "pydantic": {"config"},
    "pydantic_core": {"config"},
    "pyspark": {"backend.spark", "estimators.spark"},
    "ray": {"backend.ray", "launch.ray"},
    "rich": {"cli", "track.console"},
    "tensorboard": {"launch.tensorboard"},
    "torch": {
        *("backend.gang.torchrun", "estimators.torch", "train.gang", "train.spec"),
        *("train.stack", "train.torch", "zoo"),
    },
    "typer": {"cli"},
    "yaml": {"config.yaml"},
}

# Import name -> name in pyproject.toml, where they differ.
DISTRIBUTIONS = {"PIL": "pillow", "pydantic_core": "pydantic", "yaml": "pyyaml"}

# Modules that resolve names to objects or delay a heavy import; elsewhere imports are at the top.
LAZY_MODULES = {
    *("__init__", "cli", "config.resolve", "data.tables", "search.sampler"),
    *("bench.png", "data.archive.images", "backend.spark.context"),
    *("backend.ray.cluster", "backend.ray.connection"),
    *("backend.gang.torchrun", "estimators.keras"),
    *("train.stack.conv_ops", "train.stack.ops", "train.stack.machine"),
}

MAX_LINES = 400
DRAWERS = {"common", "helper", "helpers", "manager", "misc", "util", "utils"}


class Import(NamedTuple):
    """One imported thing, as written at one line of one module."""

    module: str
    line: int
    target: str
    name: str | None
    in_function: bool
    typing_only: bool


def module_name(path: Path) -> str:
    """The dotted name below the package: `storage.journal`; a package is named by its directory.

    >>> module_name(SOURCE / "storage" / "journal.py")
    'storage.journal'
    """
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}
BESIDE = {
    str(path.relative_to(ROOT)): path
    for folder in ("tests", "benchmarks", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
}


class ImportVisitor(ast.NodeVisitor):
    """Collects every import of a module with the place it stands in."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.found: list[Import] = []
        self.depth = 0
        self.typing_only = False

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_If(self, node: ast.If) -> None:
        outer = self.typing_only
        self.typing_only = outer or "TYPE_CHECKING" in ast.unparse(node.test)
        for child in node.body:
            self.visit(child)
        self.typing_only = outer
        for child in node.orelse:
            self.visit(child)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.add(node, alias.name, None)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self.add(node, node.module or "", alias.name)

    def add(self, node: ast.stmt, target: str, name: str | None) -> None:
        self.found.append(
            Import(self.module, node.lineno, target, name, self.depth > 0, self.typing_only)
        )


def imports_of(module: str) -> list[Import]:
    visitor = ImportVisitor(module)
    visitor.visit(ast.parse(MODULES[module].read_text(encoding="utf-8")))
    return visitor.found


IMPORTS = [found for module in MODULES for found in imports_of(module)]


def internal_target(found: Import) -> str | None:
    """The module of ours that an import loads, or None if it is not ours."""
    if found.target.split(".")[0] != "cerebro":
        return None
    target = found.target.removeprefix("cerebro").removeprefix(".")
    below = ".".join(part for part in (target, found.name) if part)
    if below in MODULES:
        return below
    return target or "__init__"


def is_within(module: str, places: set[str]) -> bool:
    """Whether a module is one of the places, inside one, or a part split off (`torch_x`)."""
    return any(module == place or module.startswith((f"{place}.", f"{place}_")) for place in places)


def row_of(module: str) -> int:
    package = module.split(".")[0]
    return next(row for row, packages in enumerate(LAYERS) if package in packages)


def describe(found: Import) -> str:
    name = f".{found.name}" if found.name else ""
    return f"{found.module}:{found.line} imports {found.target}{name}"


def internal_edges() -> Iterator[tuple[Import, str]]:
    for found in IMPORTS:
        target = internal_target(found)
        # The version is a constant of the root package, not a way back up.
        if target is not None and found.name != "__version__":
            yield found, target


def test_every_module_has_a_layer():
    known = set().union(*LAYERS)
    assert {module.split(".")[0] for module in MODULES} <= known


def test_imports_go_downwards_only():
    wrong = [
        describe(found)
        for found, target in internal_edges()
        if target.split(".")[0] != found.module.split(".")[0]
        and row_of(target) >= row_of(found.module)
    ]
    assert wrong == []


def test_only_tests_import_the_testing_package():
    wrong = [
        describe(found)
        for found, target in internal_edges()
        if target.split(".")[0] == "testing" and found.module.split(".")[0] != "testing"
    ]
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle():
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for found, target in internal_edges():
        at_import = not found.typing_only and not found.in_function
        if at_import and target in MODULES and target != found.module:
            graph[found.module].add(target)
    while free := {module for module, targets in graph.items() if not targets}:
        graph = {m: targets - free for m, targets in graph.items() if m not in free}
    assert graph == {}


def test_third_party_packages_are_imported_only_where_the_table_says():
    wrong = [
        describe(found)
        for found in IMPORTS
        if (package := found.target.split(".")[0]) not in sys.stdlib_module_names | {"cerebro"}
        and not is_within(found.module, THIRD_PARTY.get(package, set()))
    ]
    assert wrong == []


def test_declared_dependencies_are_those_imported():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    optional = [
        extras[name] for name in ("torch", "keras", "optuna", "images", "notebook", "ray", "spark")
    ]
    needs = sum(optional, project["dependencies"])
    # PySpark's own need, which it does not declare.
    declared = {need.split(">")[0].split("[")[0].lower() for need in needs} - {"pandas"}
    imported = {found.target.split(".")[0] for found in IMPORTS} & THIRD_PARTY.keys()
    assert {DISTRIBUTIONS.get(name, name).lower() for name in imported} == declared


def test_imports_inside_functions_stand_only_in_lazy_modules():
    wrong = [
        describe(found)
        for found in IMPORTS
        if found.in_function and not is_within(found.module, LAZY_MODULES)
    ]
    assert wrong == []


def test_private_names_stay_in_their_package():
    wrong = [
        describe(found)
        for found, target in internal_edges()
        if target.split(".")[0] != found.module.split(".")[0]
        and any(part.startswith("_") for part in (*target.split("."), found.name or ""))
    ]
    assert wrong == []


@pytest.mark.parametrize("module", MODULES)
def test_a_file_has_at_most_400_lines(module):
    assert len(MODULES[module].read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize("file", BESIDE)
def test_a_file_beside_the_package_has_at_most_400_lines(file):
    assert len(BESIDE[file].read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_no_module_is_a_drawer():
    assert {module.split(".")[-1] for module in MODULES} & DRAWERS == set()


def test_the_planner_neither_reads_clocks_nor_does_input_or_output():
    banned = {"asyncio", "io", "multiprocessing", "os", "pathlib", "socket", "subprocess"}
    banned |= {"tempfile", "threading", "time"}
    wrong = [
        describe(found)
        for found in IMPORTS
        if found.module.split(".")[0] == "mop" and found.target.split(".")[0] in banned
    ]
    assert wrong == []
