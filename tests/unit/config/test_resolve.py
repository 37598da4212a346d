from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cerebro.config.resolve import (
    BACKENDS,
    backend_reference,
    load_reference,
    resolve_path,
    split_reference,
    task_reference,
)
from cerebro.errors import MissingDependencyError, UsageError


def test_the_table_of_backends_is_sorted() -> None:
    assert list(BACKENDS) == sorted(BACKENDS)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("inline", "cerebro.backend.inline:InlineBackend"),
        ("local", "cerebro.backend.local:LocalBackend"),
        ("ray", "cerebro.backend.ray.backend:RayBackend"),
        ("ray://10.0.0.7:10001", "cerebro.backend.ray.backend:RayBackend"),
        ("spark", "cerebro.backend.spark.backend:SparkBackend"),
    ],
)
def test_a_backend_has_a_reference(name: str, reference: str) -> None:
    assert backend_reference(name) == reference


@pytest.mark.parametrize("name", ["ray:", "ray://"])
def test_a_cluster_without_an_address_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="a Ray cluster is named as ray:HOST:PORT, but got"):
        backend_reference(name)


def test_a_misspelt_backend_gets_a_suggestion() -> None:
    with pytest.raises(UsageError) as caught:
        backend_reference("Lcal")
    assert str(caught.value) == (
        "unknown backend 'Lcal'. Known: inline, local, ray, spark. Did you mean 'local'?"
    )


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("module:Class", ("module", "Class")),
        ("package.module:Outer.Inner", ("package.module", "Outer.Inner")),
        ("tasks.py:Digits", ("tasks.py", "Digits")),
        ("/a dir/c:d/tasks.py:Digits", ("/a dir/c:d/tasks.py", "Digits")),
    ],
)
def test_a_reference_has_two_parts(text: str, parts: tuple[str, str]) -> None:
    assert split_reference(text) == parts


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "Digits",
        "module:",
        ":Class",
        ".py:Class",
        "a b:C",
        "a..b:C",
        "m:C()",
        "m:1",
        "m:C\n",
    ],
)
def test_a_malformed_reference_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="a class is named `module:Class`"):
        split_reference(text)


def test_a_module_is_not_looked_up(tmp_path: Path) -> None:
    reference = task_reference("no.such.module:Task", tmp_path)
    assert (reference.module, reference.file, reference.name) == ("no.such.module", None, "Task")
    assert str(reference) == "no.such.module:Task"


def test_a_task_file_is_found_from_the_directory(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("raise SystemExit('imported')")
    reference = task_reference("tasks.py:Digits", tmp_path)
    assert (reference.module, reference.file) == (None, str(tmp_path / "tasks.py"))
    assert str(reference) == f"{tmp_path}/tasks.py:Digits"


def test_a_missing_task_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=f"needs the file '{tmp_path}/tasks.py', which does not exist"
    ):
        task_reference("tasks.py:Digits", tmp_path)


@pytest.mark.parametrize(
    ("text", "path"),
    [("runs", "/base/runs"), ("../runs", "/runs"), ("/abs", "/abs"), ("s3://b/r", "s3://b/r")],
)
def test_paths_become_absolute_and_urls_stay(text: str, path: str) -> None:
    assert resolve_path(text, Path("/base")) == path


def test_the_home_directory_is_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert resolve_path("~/runs", Path("/base")) == "/home/someone/runs"


def test_a_reference_is_imported_on_request() -> None:
    assert load_reference("collections:OrderedDict.fromkeys") is not None


def test_a_module_that_cannot_be_imported_gives_the_hint() -> None:
    with pytest.raises(MissingDependencyError) as caught:
        load_reference("no_such_module:Class", "Install it with `pip install x`.")
    assert "Install it with `pip install x`." in str(caught.value)


def test_a_class_that_is_not_in_its_module_is_named() -> None:
    with pytest.raises(UsageError, match="the module 'json' has no 'Nothing'"):
        load_reference("json:Nothing")


def test_resolving_loads_neither_yaml_nor_pydantic() -> None:
    code = (
        "import sys, cerebro.config.resolve, cerebro.tune\n"
        "print([m for m in ('yaml', 'pydantic', 'numpy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
