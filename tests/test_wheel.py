"""The wheel carries the whole package: installed alone, it runs the example of the README."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = re.compile(r"^<!-- example -->\n+```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, ROOT, cwd=folder)
    (path,) = folder.glob("cerebro-*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with nothing of ours in it but the wheel.

    Other people's packages come from the environment of the tests, through a path file: that saves
    downloading a gigabyte, and does not carry over the development install of this package.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    run(*PIP, "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "third-party.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    return python


def test_the_wheel_holds_every_file_of_the_package(wheel):
    source = ROOT / "src"
    written = {
        path.relative_to(source).as_posix()
        for path in (source / "cerebro").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        assert {*written, "cerebro/launch/experiment.ipynb"} <= set(archive.namelist())


def test_the_package_comes_from_the_wheel(python, tmp_path):
    where = run(python, "-c", "import cerebro; print(cerebro.__file__)", cwd=tmp_path)
    assert Path(where).is_relative_to(python.parent.parent)


def test_the_command_is_installed(python, tmp_path):
    assert "Usage" in run(python.parent / "cerebro", "--help", cwd=tmp_path)


def test_the_readme_example_runs_from_the_wheel(python, tmp_path):
    (example,) = EXAMPLE.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    (tmp_path / "example.py").write_text(example, encoding="utf-8")
    run(python, "example.py", cwd=tmp_path)
