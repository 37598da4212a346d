"""A Docker of the tests' own: a server on a socket in a directory, with images made here."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.cluster.downloads import CACHE
from tests.processes import wait_for

START_S = 60.0
#: The most that building an image may take.
BUILD_S = 600.0
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_NEEDED = ("docker", "dockerd", "debootstrap")
#: What the base image of the tests has of Debian.
_PACKAGES = ("python3-venv", "wget")


def why_no_docker() -> str | None:
    """Why there can be no Docker here; None if there can."""
    missing = [name for name in _NEEDED if shutil.which(name, path=_PATH) is None]
    if missing:
        return f"needs {', '.join(missing)} (Debian: docker.io and debootstrap; `make docker`)"
    return None if os.geteuid() == 0 else "dockerd is started by root"


class Docker:
    """A server; `run` speaks to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {
            **os.environ,
            "PATH": _PATH,
            "DOCKER_HOST": f"unix://{folder}/docker.sock",
            "DOCKER_CONFIG": str(folder / "config"),
            # The other builder is a plugin, which not everyone has.
            "DOCKER_BUILDKIT": "0",
        }

    def run(self, *words: object, stdin: Path | None = None, timeout_s: float = 120.0) -> str:
        """What `docker` writes; it must succeed."""
        with open(stdin or os.devnull, "rb") as file:
            done = subprocess.run(
                ["docker", *map(str, words)],
                env=self._environment,
                stdin=file,
                capture_output=True,
                timeout=timeout_s,
                check=False,
            )
        said = (done.stdout + done.stderr).decode(errors="replace")
        assert done.returncode == 0, f"docker {' '.join(map(str, words))}: {said[-5000:]}"
        return done.stdout.decode(errors="replace")

    def build(self, context: Path, dockerfile: str, tag: str, given: Mapping[str, str]) -> None:
        """Build an image without a network."""
        arguments = [f"--build-arg={name}={value}" for name, value in given.items()]
        self.run(
            *("build", "--network=none", "--tag", tag, "--file", context / dockerfile),
            *(*arguments, context),
            timeout_s=BUILD_S,
        )


@contextlib.contextmanager
def docker_server(folder: Path) -> Iterator[Docker]:
    """A server for a while; its images go with it."""
    command = [
        *("dockerd", "--host", f"unix://{folder}/docker.sock", "--data-root", f"{folder}/data"),
        *("--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/docker.pid"),
        *("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"),
        "--ip-masq=false",
    ]
    with (folder / "docker.log").open("wb") as log:
        server = subprocess.Popen(
            command,
            env={**os.environ, "PATH": _PATH},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        docker = Docker(folder)
        wait_for(lambda: _is_answering(docker, server), f"Docker; see {folder}", START_S)
        yield docker
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        shutil.rmtree(folder / "data", ignore_errors=True)


def _is_answering(docker: Docker, server: subprocess.Popen[bytes]) -> bool:
    assert server.poll() is None, "dockerd has ended; see its log"
    try:
        docker.run("version")
    except AssertionError:
        return False
    return True


def import_base(docker: Docker, tag: str) -> None:
    """A small Debian with Python as an image; fetched once."""
    archive = CACHE / "debian.tar"
    if not archive.exists():
        _make_debian(archive)
    docker.run("import", "-", tag, stdin=archive)


def _make_debian(archive: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="cerebro-debian-", dir="/var/tmp") as name:
        root, partial = Path(name, "root"), Path(name, "root.tar")
        packages = ",".join(_PACKAGES)
        try:
            _call(["debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", root])
        finally:
            # Where it was ended in the middle, it has left them mounted.
            for folder in ("proc", "sys"):
                subprocess.run(["umount", "-q", root / folder], capture_output=True, check=False)
        _call(["tar", "--directory", root, "--create", "--file", partial, "."])
        shutil.move(partial, archive)


def _call(command: Sequence[str | Path]) -> None:
    done = subprocess.run(
        command,
        env={**os.environ, "PATH": _PATH, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    said = f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {said}"
