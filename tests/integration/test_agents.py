"""Ranks in processes that were started one by one, as on several machines, on this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.ranks import cerebro, digest, make_project, started
from tests.ports import free_port
from tests.processes import hold


@pytest.mark.timeout(180)
def test_two_processes_train_together_and_both_hear_what_came_of_it(tmp_path):
    experiment = make_project(tmp_path / "run", epochs=1)
    leading, serving = run_together(experiment, tmp_path)
    assert "rank 0 of 2 on" in leading
    assert "rank 1 of 2 on" in serving
    assert "the run has ended: best t0000 with val_loss" in serving
    # The rank that leads shows how far it is, and nobody else does.
    assert "x 1 epoch x" in leading
    assert "x 1 epoch x" not in serving
    assert digest(experiment)


@pytest.mark.timeout(180)
def test_a_goal_that_is_reached_ends_both_in_the_middle_of_a_visit(tmp_path):
    """The next begins before the goal is known to be reached, and would never end."""
    goal = {"metric": "val_loss", "mode": "min", "target": 1000.0}
    experiment = make_project(tmp_path / "run", epochs=3, goal=goal)
    hold(experiment.parent, 1)
    leading, serving = run_together(experiment, tmp_path)
    assert "goal reached" in leading
    assert "goal reached" in serving
    assert digest(experiment)


def run_together(experiment: Path, folder: Path) -> tuple[str, str]:
    """What both processes have said; they end well."""
    flags = ["-n", 2, "--master", f"127.0.0.1:{free_port()}"]
    with (
        started(cerebro("run", experiment, *flags, "-nr", 1), folder / "1") as serving,
        started(cerebro("run", experiment, *flags, "-nr", 0), folder / "0") as leading,
    ):
        codes = [leading.wait(120.0), serving.wait(50.0)]
    assert codes == [0, 0], leading.said() + serving.said()
    return leading.said(), serving.said()
