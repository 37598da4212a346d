"""Ranks in processes that were started one by one, as on several machines, on this one."""

from __future__ import annotations

import socket

import pytest

from tests.cluster.ranks import cerebro, digest, make_project, started


@pytest.mark.timeout(180)
def test_two_processes_train_together_and_both_hear_what_came_of_it(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        flags = ["-n", 2, "--master", f"127.0.0.1:{probe.getsockname()[1]}"]
    experiment = make_project(tmp_path / "run", epochs=1)
    with (
        started(cerebro("run", experiment, *flags, "-nr", 1), tmp_path / "1") as serving,
        started(cerebro("run", experiment, *flags, "-nr", 0), tmp_path / "0") as leading,
    ):
        codes = [leading.wait(120.0), serving.wait(30.0)]
    assert codes == [0, 0], leading.said() + serving.said()
    assert "rank 0 of 2 on" in leading.said()
    assert "rank 1 of 2 on" in serving.said()
    assert "the run has ended: best t0000 with val_loss" in serving.said()
    assert digest(experiment)
