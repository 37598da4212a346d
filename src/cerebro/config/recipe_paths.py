"""Paths in a recipe: variables of the environment, and where the run goes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from cerebro.config.resolve import check_run_name, resolve_path
from cerebro.errors import UsageError
from cerebro.search.wording import show

#: Defaults that may be in braces of others.
_DEPTH = 4


def _inside(depth: int) -> str:
    """What stands in braces, which may have braces of its own."""
    return rf"(?:[^{{}}]|\{{{_inside(depth - 1)}\}})*" if depth else r"[^{}]*"


_INSIDE = _inside(_DEPTH - 1)
_VARIABLE = re.compile(rf"\$(?:(?P<bare>[A-Za-z_]\w*)|\{{(?P<braced>{_INSIDE})\}}|\{{)")
_BRACED = re.compile(r"(?P<name>[A-Za-z_]\w*)(?::-(?P<default>.*))?")
#: What a job's variables stand for where there is no SLURM.
OUTSIDE_SLURM: Mapping[str, str] = {
    "SLURM_JOB_ID": "local",
    "SLURM_JOBID": "local",
    "SLURM_JOB_NAME": "local",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_NNODES": "1",
    "SLURM_NTASKS": "1",
}


def expand(text: str, environment: Mapping[str, str] | None = None) -> str:
    """A path with $NAME, ${NAME} and ${NAME:-default} replaced; an unset one is an error.

    >>> expand("$SCRATCH/hello-${SLURM_JOB_ID}", {"SCRATCH": "/scratch"})
    '/scratch/hello-local'
    >>> expand("${SCRATCH}/hello", {})
    Traceback (most recent call last):
    cerebro.errors.UsageError: '${SCRATCH}/hello' needs the environment variable SCRATCH, which is \
not set. Set it, or write ${SCRATCH:-/some/default}.
    """
    known = os.environ if environment is None else environment

    def value(match: re.Match[str]) -> str:
        inside = _BRACED.fullmatch(match["bare"] or match["braced"] or "")
        if inside is None:
            raise UsageError(
                f"{show(text)} must name a variable in {match[0]}, as in ${{HOME}}, and close its "
                f"braces, of which at most {_DEPTH} may be in each other."
            )
        name, default = inside["name"], inside["default"]
        found = known.get(name) or expand(default or "", known) or OUTSIDE_SLURM.get(name)
        if not found:
            raise UsageError(
                f"{show(text)} needs the environment variable {name}, which is not set. Set it, or "
                f"write ${{{name}:-/some/default}}."
            )
        return found

    return _VARIABLE.sub(value, text)


def find_path(text: str, file: Path) -> str:
    """What a path in a recipe means; one that is not absolute is relative to the file."""
    return resolve_path(expand(text), file.absolute().parent)


def split_output(output_dir: str | None, file: Path) -> tuple[str, str]:
    """The store and the name of the run that goes to this directory.

    >>> split_output("/scratch/cifar/cnn-N1", Path("/home/me/cnn.yaml"))
    ('/scratch/cifar', 'cnn-N1')
    >>> split_output(None, Path("/home/me/cnn.yaml"))
    ('/home/me/runs', 'cnn')
    """
    text = f"runs/{file.stem}" if output_dir is None else expand(output_dir)
    where = resolve_path(text, file.absolute().parent).rstrip("/")
    store, _, name = where.rpartition("/")
    return store or "/", check_run_name(name)
