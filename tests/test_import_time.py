"""`import cerebro` is light: heavy packages load at first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

FRAMEWORKS = ["keras", "optuna", "pyspark", "ray", "torch"]
HEAVY = [*FRAMEWORKS, "pandas", "pyarrow", "pydantic", "rich", "typer"]


def loaded_by(statement: str) -> set[str]:
    """Top-level packages in a fresh interpreter after one statement."""
    code = f"import sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def packages() -> set[str]:
    return loaded_by("import cerebro")


@pytest.mark.parametrize("package", HEAVY)
def test_import_cerebro_does_not_load(package, packages):
    assert package not in packages


def test_declaring_an_experiment_and_a_space_loads_no_framework():
    statement = "from cerebro import Experiment, Task, tune; tune.choice([1, 2])"
    assert loaded_by(statement).isdisjoint(FRAMEWORKS)
