"""`cerebro run`: what it says of a run that was stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cerebro.backend.gang.rendezvous import Kind, read_flags
from cerebro.cli.run import resumable
from cerebro.errors import DiskFullError, RunInterrupted

SPOT = read_flags(nodes=2, procs=1, node=1, master="n0:29500")


@pytest.mark.parametrize("stop", [RunInterrupted("stopped."), DiskFullError("no space left.")])
def test_the_command_that_resumes_a_run_is_told(stop: RunInterrupted | DiskFullError) -> None:
    stop.exit_code = 75
    with pytest.raises(type(stop)) as caught, resumable(Path("a.yaml"), ["epochs=2"], SPOT):
        raise stop
    command = "cerebro run a.yaml epochs=2 -n 2 -np 1 -nr 1 --master n0:29500"
    assert str(caught.value) == f"{stop} To resume: {command}"
    assert caught.value.exit_code == 75


def test_what_a_launcher_has_started_it_resumes() -> None:
    stop = RunInterrupted("stopped.")
    spot = replace(SPOT, kind=Kind.SLURM)
    with pytest.raises(RunInterrupted) as caught, resumable(Path("a.yaml"), [], spot):
        raise stop
    assert caught.value is stop
    # Whoever follows the causes of an error comes to an end.
    assert caught.value.__cause__ is None
