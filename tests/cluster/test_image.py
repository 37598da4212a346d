"""The image of docker/Dockerfile: built for real, and what pods do with it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cerebro import __version__
from cerebro.launch.k8s_manifest import RAY_VERSION, USER
from tests.cluster.dockers import Docker, docker_server, import_base, why_no_docker
from tests.cluster.downloads import CACHE
from tests.cluster.ranks import cerebro, digest, make_project
from tests.processes import ROOT

pytestmark = [
    pytest.mark.skipif(why_no_docker() is not None, reason=str(why_no_docker())),
    pytest.mark.timeout(900),
]

#: What the image of the tests has; `torch` is the CPU's.
EXTRAS = "torch,optuna,ray,s3"
#: What builds the package itself.
BUILDERS = ("hatchling",)
IMAGE = "cerebro:test"


@pytest.fixture(scope="module")
def docker() -> Iterator[Docker]:
    # Sockets have short names, and images are too large to be kept.
    with (
        tempfile.TemporaryDirectory(prefix="cerebro-docker-", dir="/var/tmp") as name,
        docker_server(Path(name)) as server,
    ):
        import_base(server, "debian:test")
        context = Path(name, "context")
        make_context(context)
        given = {"BASE": "debian:test", "EXTRAS": EXTRAS, "PIP_NO_INDEX": "1"}
        server.build(context, "docker/Dockerfile", IMAGE, given)
        shutil.rmtree(context)
        yield server


def make_context(folder: Path) -> None:
    """What `docker build` is given in a checkout, and wheels of all that is needed."""
    for name in ("LICENSE", "README.md", "constraints.txt", "pyproject.toml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    for name in ("src", "docker"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "notebooks").mkdir()
    shutil.copy(ROOT / "notebooks" / "experiment.ipynb", folder / "notebooks")
    wheels = CACHE / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += [
        "--constraint",
        "constraints.txt",
        "--dest",
        str(wheels),
        "--find-links",
        str(wheels),
    ]
    subprocess.run(
        [*command, f".[{EXTRAS}]", "ray[default]", *BUILDERS], cwd=folder, check=True, timeout=600
    )
    shutil.copytree(wheels, folder / "wheels")


def say(docker: Docker, *command: str) -> str:
    return docker.run("run", "--rm", "--network=none", IMAGE, *command)


def test_the_image_has_cerebro_and_ray_also_in_login_shells(docker):
    assert say(docker, "cerebro", "--version").split() == ["cerebro", __version__]
    # As KubeRay starts them.
    shown = say(docker, "bash", "-lc", "ray --version && cerebro --version && command -v wget")
    assert RAY_VERSION in shown
    assert __version__ in shown


def test_the_image_is_of_a_user_without_rights(docker):
    assert say(docker, "id", "-u").strip() == str(USER)
    shown = say(docker, "sh", "-c", "touch /opt/cerebro/x /usr/x 2>&1; true")
    assert shown.count("ermission denied") == 2


def test_a_run_in_a_container_ends_as_one_outside(docker, tmp_path):
    inside, outside = (
        make_project(tmp_path / name, parallel="mop", space={"lr": [0.01, 0.1]}, workers=2)
        for name in ("inside", "outside")
    )
    folder = inside.parent
    (folder / "runs").mkdir()
    for path in (folder, folder / "runs"):
        path.chmod(0o777)
    docker.run(
        *("run", "--rm", "--network=none", "--volume", f"{folder}:/work", "--workdir", "/work"),
        *("--cap-drop=ALL", "--security-opt=no-new-privileges", IMAGE),
        *("cerebro", "run", inside.name),
        timeout_s=240,
    )
    subprocess.run(
        cerebro("run", outside, "backend=inline"), check=True, capture_output=True, timeout=120
    )
    assert digest(inside) == digest(outside)
