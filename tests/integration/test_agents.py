"""Ranks in processes that were started one by one, as on several machines, on this one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from cerebro.results import Result
from tests.cluster.ranks import (
    cerebro,
    digest,
    followers_of,
    make_project,
    started,
    train_here,
    visits_of,
)
from tests.ports import free_port
from tests.processes import hold, wait_for

#: So long, on a machine however busy.
AFTER = r"after [\d.]+ (s|min)"


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
def test_two_ranks_on_each_of_two_machines_are_a_gang_of_four(tmp_path):
    two = ["-np", "2"]
    experiment = make_project(tmp_path / "run", epochs=1)
    leading, serving = run_together(experiment, tmp_path, lead=two, serve=two)
    for said, ranks in ((leading, [0, 1]), (serving, [2, 3])):
        assert [int(rank) for rank in re.findall(r"rank (\d) of 4 on", said)] == ranks
    assert digest(experiment) == train_here(tmp_path / "here", 4, epochs=1)


@pytest.mark.timeout(180)
def test_a_goal_that_is_reached_ends_both_in_the_middle_of_a_visit(tmp_path):
    """The next begins before the goal is known to be reached, and would never end."""
    goal = {"metric": "val_loss", "mode": "min", "target": 1000.0}
    experiment = make_project(tmp_path / "run", epochs=3, goal=goal)
    hold(experiment.parent, 1)
    leading, serving = run_together(experiment, tmp_path)
    reached = rf"goal reached: t0000 reached val_loss [\d.]+ <= 1000 in epoch 1, {AFTER}"
    first, second = (re.search(reached, told) for told in (leading, serving))
    assert first
    assert second
    assert first[0] == second[0]
    assert digest(experiment)


@pytest.mark.timeout(180)
def test_both_hear_that_a_goal_was_missed_and_after_how_long(tmp_path):
    goal = {"metric": "val_loss", "mode": "min", "target": 0.0}
    for told in run_together(make_project(tmp_path / "run", goal=goal), tmp_path):
        assert re.search(rf"goal not reached: no trial has val_loss <= 0, {AFTER}", told)


@pytest.mark.timeout(180)
def test_each_rank_has_as_many_threads_as_rank_0(tmp_path):
    """A machine with fewer ranks has more cores for each."""
    experiment = make_project(tmp_path / "run", epochs=1)
    _, serving = run_together(experiment, tmp_path, serve=["threads_per_worker=2"])
    assert "must be the same" not in serving
    result = Result.open(experiment.parent / "runs" / "clouds")
    assert result.document.spec["threads_per_worker"] == 1


@pytest.mark.timeout(180)
def test_a_machine_with_fewer_cores_for_each_rank_says_so(tmp_path):
    experiment = make_project(tmp_path / "run", epochs=1)
    _, serving = run_together(experiment, tmp_path, lead=["threads_per_worker=2"])
    assert "each rank has 2 threads, as rank 0 has, but here there would be cores for 1" in serving
    result = Result.open(experiment.parent / "runs" / "clouds")
    assert result.document.spec["threads_per_worker"] == 2


#: Every row, or every batch, takes its time, by a clock that moves on in its own process.
SLOW = """

import time


class Slow(Clouds):
    ahead_s, by = 0.0, "{by}"

    def loss(self, model, batch, params):
        found = time.perf_counter
        if found.__name__ == "perf_counter":
            time.perf_counter = lambda: found() + Slow.ahead_s
        if model.training:
            Slow.ahead_s += 100.0 * (len(batch["x"]) if self.by == "row" else 1)
        return super().loss(model, batch, params)
"""


def make_slow(folder: Path, by: str) -> Path:
    changes = {"task": "tasks.py:Slow", "parallel": "auto", "stack": False, "epochs": 1}
    experiment = make_project(folder, **changes)
    with (folder / "tasks.py").open("a") as file:
        file.write(SLOW.format(by=by))
    return experiment


@pytest.mark.timeout(180)
def test_a_trial_is_shared_by_several_machines_where_that_is_measured_to_pay(tmp_path):
    experiment = make_slow(tmp_path / "run", "row")
    leading, serving = run_together(experiment, tmp_path)
    before = r"parallel ddp: 1 gang of 2 workers, as there is one trial, and a step takes \S+ ms"
    assert re.search(before, leading)
    assert re.search(r"a step took .*; predicted: \S+ ms", leading)
    assert "the run has ended: best t0000" in serving
    # Again, it is as it was: nothing is measured, for which the other would be waited for.
    code, said = lead(experiment, tmp_path / "again", 2)
    assert code == 0
    assert re.search(before, said)


@pytest.mark.timeout(180)
def test_one_machine_trains_alone_where_sharing_costs_more_and_the_other_hears_of_it(tmp_path):
    experiment = make_slow(tmp_path / "run", "batch")
    leading, serving = run_together(experiment, tmp_path)
    assert "as sharing its batches costs the one trial more than it saves" in leading
    assert "rank 0 of 2 on" in leading
    assert "rank 0 trains alone: this machine waits for the end of the run" in serving
    assert "the run has ended: best t0000" in serving
    assert Result.open(experiment.parent / "runs" / "clouds").document.spec["gang"] == 1
    code, said = lead(experiment, tmp_path / "again", 2)
    assert code == 0
    assert "as sharing its batches costs the one trial more than it saves" in said


@pytest.mark.timeout(180)
def test_a_shared_run_does_not_go_on_with_another_number_of_machines(tmp_path):
    experiment = make_slow(tmp_path / "run", "row")
    run_together(experiment, tmp_path)
    code, said = lead(experiment, tmp_path / "other", 3)
    assert code == 2
    assert "gang was 2 and is 3" in said


@pytest.mark.timeout(180)
def test_several_trials_are_trained_by_all_machines_one_after_the_other(tmp_path):
    space = {"lr": [0.01, 0.02]}
    experiment = make_project(tmp_path / "run", parallel="auto", epochs=1, space=space)
    leading, serving = run_together(experiment, tmp_path)
    assert (
        "parallel ddp: 1 gang of 2 workers, as 2 ranks were started by flags; trials hop over "
        "several machines on Ray and Spark"
    ) in leading
    assert "rank 1 of 2 on" in serving
    assert "the run has ended: best t000" in serving
    result = Result.open(experiment.parent / "runs" / "clouds")
    assert result.document.spec["gang"] == 2
    assert [trial.status for trial in result.trials] == ["finished"] * 2


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"parallel": "mop"}, "parallel='mop'"),
        ({"parallel": "hybrid"}, "parallel='hybrid'"),
        (
            {"parallel": "auto", "workers_per_trial": "host"},
            "parallel='auto' with workers_per_trial",
        ),
    ],
    ids=["mop", "hybrid", "host"],
)
@pytest.mark.parametrize("node", [0, 1])
def test_trials_do_not_hop_between_machines_that_were_started_one_by_one(
    asked, told, node, tmp_path
):
    """Each of them says so by itself: no other is waited for."""
    experiment = make_project(tmp_path / "run", **asked)
    flags = ["-n", 2, "-nr", node, "--master", f"127.0.0.1:{free_port()}"]
    with started(cerebro("run", experiment, *flags), tmp_path / "out") as process:
        code, said = process.wait(60.0), process.said()
    assert code == 2
    assert (
        "error: 2 ranks on several machines or started one by one train each trial together, as "
        f"parallel='ddp' says, but got {told}. Trials hop between the workers of one machine."
    ) in said
    assert not (experiment.parent / "runs" / "clouds").exists()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("node", [0, 1])
def test_ranks_need_processes(node, tmp_path):
    experiment = make_project(tmp_path / "run", backend="inline", parallel="ddp")
    flags = ["-n", 2, "-nr", node, "--master", f"127.0.0.1:{free_port()}"]
    with started(cerebro("run", experiment, *flags), tmp_path / "out") as process:
        code, said = process.wait(60.0), process.said()
    assert code == 2
    assert "but got backend='inline', which has none. Use backend='local'." in said


@pytest.mark.timeout(180)
@pytest.mark.parametrize("parallel", ["ddp", "auto"])
def test_a_machine_that_does_not_come_is_named_once_patience_is_over(parallel, tmp_path):
    experiment = make_project(tmp_path / "run", parallel=parallel)
    code, said = lead(experiment, tmp_path / "0", 3, "--patience", 1)
    assert code == 1
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "within 1 s, but machines 1, 2 (-nr) with ranks 1, 2 did not" in errors[0]
    assert "Traceback" not in said


@pytest.mark.timeout(180)
def test_rank_0_tells_which_rank_another_machine_has_lost(tmp_path):
    experiment = make_project(tmp_path / "run", epochs=2)
    gate = hold(experiment.parent, 1)
    flags = ["-n", 2, "--master", f"127.0.0.1:{free_port()}"]
    with (
        started(cerebro("run", experiment, *flags, "-nr", 1), tmp_path / "1") as serving,
        started(cerebro("run", experiment, *flags, "-nr", 0), tmp_path / "0") as leading,
    ):
        wait_for(lambda: visits_of(experiment) >= 2, "the first epoch", 60.0)
        (rank,) = followers_of(serving)
        rank.kill()
        gate.unlink()
        codes = [leading.wait(120.0), serving.wait(50.0)]
    assert codes == [0, 0], leading.said() + serving.said()
    assert "rank 1 starts again: it was killed by SIGKILL" in leading.said()


def lead(experiment: Path, output: Path, nodes: int, *options: object) -> tuple[int, str]:
    """With what code rank 0 ends, and what it says, while nobody else is there."""
    flags = ["-n", nodes, "-nr", 0, "--master", f"127.0.0.1:{free_port()}", *options]
    with started(cerebro("run", experiment, *flags), output) as leading:
        return leading.wait(60.0), leading.said()


def run_together(
    experiment: Path, folder: Path, lead: Sequence[str] = (), serve: Sequence[str] = ()
) -> tuple[str, str]:
    """What both processes have said; they end well.

    Args:
        lead, serve: What is asked for where rank 0 is, and on the other machine.
    """
    flags = ["-n", 2, "--master", f"127.0.0.1:{free_port()}"]
    with (
        started(cerebro("run", experiment, *serve, *flags, "-nr", 1), folder / "1") as serving,
        started(cerebro("run", experiment, *lead, *flags, "-nr", 0), folder / "0") as leading,
    ):
        codes = [leading.wait(120.0), serving.wait(50.0)]
    assert codes == [0, 0], leading.said() + serving.said()
    return leading.said(), serving.said()
