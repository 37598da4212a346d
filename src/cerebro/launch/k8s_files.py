"""What travels with a job of Kubernetes: the experiment file as it is carried out, and its code."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from cerebro.config.recipe import is_recipe
from cerebro.config.yaml import write_yaml
from cerebro.errors import UsageError
from cerebro.launch.k8s import K8sJob
from cerebro.storage.remote_names import redact
from cerebro.types import Json

#: Where pods find them, and under which name the experiment file.
FOLDER, FILE = "/experiment", "experiment.yaml"
#: A ConfigMap has a mebibyte for everything in it.
MOST_BYTES = 900_000
_KEY = re.compile(r"[A-Za-z0-9._-]+")


def adapt(tree: Json, job: K8sJob, name: str) -> dict[str, Json]:
    """An experiment as pods carry it out: with the job's backend, and paths that pods have.

    Args:
        name: Of the file, after which a recipe's run is named.

    >>> job = K8sJob(name="a", image="i", volume="claim")
    >>> adapt({"data": "digits", "store": "s3://bucket/runs"}, job, "a")
    {'data': '/store/digits', 'store': 's3://bucket/runs', 'backend': 'ray'}
    """
    found = dict(cast("dict[str, Json]", tree))
    found.pop("launch", None)
    kept = {"output_dir": f"runs/{name}"} if is_recipe(tree) else {"data": None, "store": "runs"}
    for key, default in {**kept, "learn_from": None}.items():
        place = found.get(key, default)
        if isinstance(place, str):
            found[key] = _place(key, place, job)
    file, _, task = str(found.get("task", "")).rpartition(":")
    if job.workdir is not None and file.endswith(".py"):
        found["task"] = f"{posixpath.join(job.workdir, file)}:{task}"
    if job.is_ray or found.get("backend") not in (None, "inline", "local"):
        found["backend"] = "ray" if job.is_ray else "local"
    return found


def _place(key: str, text: str, job: K8sJob) -> str:
    if "://" in text:
        parts = urlsplit(text)
        if parts.password or parts.query:
            raise UsageError(
                f"`{key}` must hold no credentials, but {redact(text)} may. Give them as a Secret "
                "of Kubernetes: --secret NAME."
            )
        return text
    is_result = key in ("store", "output_dir")
    base = job.mount if job.volume is not None else None if is_result else job.workdir
    if base is None and not posixpath.isabs(text):
        raise UsageError(
            f"`{key}` must be a URL or a path in the pods, but got {text!r}. Give a URL, as in "
            f"{key}=s3://bucket/{key}, or --volume CLAIM, below which it is then."
        )
    path = posixpath.normpath(posixpath.join(base or "/", text))
    is_kept = job.volume is not None and posixpath.commonpath([path, job.mount]) == job.mount
    if is_result and not is_kept:
        raise UsageError(
            f"`{key}` must outlast the pods, but {text!r} does not. Give a URL, as in "
            f"{key}=s3://bucket/runs, or --volume CLAIM and a path below {job.mount}."
        )
    return path


def collect_files(experiment: Path, tree: Mapping[str, Json], job: K8sJob) -> dict[str, str]:
    """Names and texts of what is mounted at `FOLDER`: the experiment, and the code beside it."""
    files = {FILE: write_yaml(dict(tree))}
    task = str(tree.get("task", ""))
    where = task.rpartition(":")[0]
    if job.workdir is not None or not where:
        return files
    folder = experiment.absolute().parent
    if where.endswith(".py") and Path(folder, where).parent != folder:
        raise UsageError(
            f"code that travels with a job must lie beside {experiment.name}, but the task is in "
            f"{where!r}. Put it into the image, and give --workdir."
        )
    for path in sorted(folder.glob("*.py")):
        if _KEY.fullmatch(path.name):
            files[path.name] = path.read_text(encoding="utf-8")
    size = sum(len(text.encode()) for text in files.values())
    if size > MOST_BYTES:
        raise UsageError(
            f"code that travels with a job has at most {MOST_BYTES} bytes, but the Python files "
            f"beside {experiment.name} have {size}. Put them into the image, and give --workdir."
        )
    return files
