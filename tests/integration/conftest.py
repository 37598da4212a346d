from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.experiments import fast_folder
from tests.integration.project import Project, make_project


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder, in memory where possible."""
    with fast_folder() as path:
        yield path


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path)


@pytest.fixture(scope="module")
def finished_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a finished run, and what the run printed."""
    project = make_project(tmp_path_factory.mktemp("finished"))
    done = project.cerebro("run", "experiment.yaml")
    assert done.returncode == 0, done.stderr
    return project.folder, done.stdout


@pytest.fixture
def finished(finished_folder: tuple[Path, str], tmp_path: Path) -> Project:
    shutil.copytree(finished_folder[0], tmp_path, dirs_exist_ok=True)
    return Project(tmp_path)


@pytest.fixture
def longer(project: Project) -> Project:
    """A project with more visits in an epoch than can be in flight."""
    project.edit("experiment.yaml", "lr: [0.1, 0.01]", "lr: [0.1, 0.01, 0.001]")
    return project
