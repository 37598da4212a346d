from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cerebro.run.spec import RunSpec
from tests import experiments
from tests.experiments import fast_folder, fit_toy, make_toy_data, toy_spec
from tests.unit.run.runs import fit_until


@pytest.fixture(scope="session")
def data() -> Iterator[Path]:
    """A dataset of two train shards and one validation shard; nobody writes to it."""
    with fast_folder() as path:
        make_toy_data(path / "data")
        yield path / "data"


@pytest.fixture(scope="session")
def spec(data: Path) -> RunSpec:
    """Two trials, two epochs of two visits each."""
    return toy_spec(data, stack=False)


@pytest.fixture
def folder() -> Iterator[Path]:
    with fast_folder() as path:
        yield path


@pytest.fixture
def root(folder: Path) -> Path:
    """Where a run may be."""
    return folder / "run"


@pytest.fixture
def finished(root: Path, spec: RunSpec) -> Path:
    fit_toy(root, spec)
    return root


@pytest.fixture
def unfinished(root: Path, spec: RunSpec) -> Path:
    """A run whose trial 0 has done three of its four visits."""
    fit_until(root, spec, 3)
    return root


@pytest.fixture(scope="package", autouse=True)
def _unstacked() -> Iterator[None]:
    """Tests of runs say themselves whether trials are stacked: they count visits and files."""
    before, experiments.STACK = experiments.STACK, False
    yield
    experiments.STACK = before
