"""One gang on several machines: network namespaces with addresses and names of their own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.namespaces import Machine, machines, why_not
from tests.cluster.ranks import (
    Started,
    cerebro,
    digest,
    followers_of,
    make_project,
    started,
    train_here,
    visits_of,
)
from tests.processes import hold, is_alive, wait_for

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Machine]]:
    with machines(["h0", "h1", "h2"]) as found:
        yield found


@pytest.fixture(scope="module")
def pair_digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    return train_here(tmp_path_factory.mktemp("pair"), 2)


def on(host: Machine, experiment: Path, *, node: int, nodes: int) -> list[str]:
    """The command for one node, as a person types it there."""
    flags = ["-n", nodes, "-np", 1, "-nr", node, "--master", "h0:29500"]
    return host.command(*cerebro("run", experiment, *flags))


def wait_for_visits(experiment: Path, count: int, process: Started) -> None:
    wait_for(
        lambda: process.process.poll() is not None or visits_of(experiment) >= count,
        f"{count} visits; rank 0 said:\n{process.said()}",
        300.0,
    )


def test_three_machines_finish_though_one_comes_late_and_others_are_killed(hosts, tmp_path):
    expected = train_here(tmp_path / "here", 3, epochs=5)
    experiment = make_project(tmp_path / "there", epochs=5)
    gates = [hold(experiment.parent, epoch) for epoch in (1, 3)]
    commands = [on(host, experiment, node=node, nodes=3) for node, host in enumerate(hosts)]
    with (
        started(commands[0], tmp_path / "0") as leading,
        started(commands[2], tmp_path / "2") as third,
    ):
        wait_for(lambda: "rank 2 of 3 on" in third.said(), "the third machine", 300.0)
        with started(commands[1], tmp_path / "1") as late:
            wait_for_visits(experiment, 2, leading)
            (rank,) = followers_of(third)
            rank.kill()
            gates[0].unlink()
            wait_for_visits(experiment, 6, leading)
        # By now the whole agent of the second machine is killed.
        gates[1].unlink()
        with started(commands[1], tmp_path / "1") as again:
            codes = [process.wait() for process in (leading, again, third)]
            said = [process.said() for process in (leading, again, third)]
    assert codes == [0, 0, 0], "\n---\n".join(said)
    assert "rank 2 starts again: it was killed by SIGKILL" in said[2]
    assert "left with rank 1: the run waits for it" in said[0]
    for number, text in enumerate(said):
        assert f"rank {number} of 3 on" in text
        assert "val_loss" in text
    assert not is_alive(rank)
    assert late.process.poll() is not None
    assert digest(experiment) == expected


def test_a_signal_to_any_machine_stops_all_and_the_same_commands_resume(
    hosts, tmp_path, pair_digest
):
    experiment = make_project(tmp_path / "run")
    gate = hold(experiment.parent, 1)
    for attempt, expected in enumerate((130, 0)):
        commands = [on(hosts[node], experiment, node=node, nodes=2) for node in (0, 1)]
        with (
            started(commands[0], tmp_path / f"0.{attempt}") as leading,
            started(commands[1], tmp_path / f"1.{attempt}") as following,
        ):
            if expected:
                wait_for_visits(experiment, 2, leading)
                os.kill(following.process.pid, signal.SIGINT)
                wait_for(lambda: "stopping after" in leading.said(), leading.said())
                gate.unlink()
            codes = [leading.wait(), following.wait()]
            assert codes == [expected, expected], leading.said() + following.said()
    assert digest(experiment) == pair_digest


def test_torchrun_starts_the_ranks_of_one_machine(tmp_path, pair_digest):
    """A script, not a file: the ranks that do not drive have the result, too."""
    experiment = make_project(tmp_path / "run")
    script = tmp_path / "run" / "script.py"
    script.write_text(
        "from cerebro import Experiment\n"
        "from tasks import Clouds\n"
        f"here = {str(experiment.parent)!r}\n"
        "e = Experiment(name='clouds', data=here + '/data', store=here + '/runs')\n"
        "r = e.run_fit(Clouds(), {'lr': [0.01]}, 3, metric='val_loss',\n"
        "    mode='min', global_batch_size=16, parallel='ddp', device='cpu')\n"
        # In one piece: two ranks write into the same file.
        "print(f'best {r.best.id}', flush=True)\n"
    )
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", str(script)]
    with started(command, tmp_path / "log") as process:
        assert process.wait() == 0, process.said()
        assert process.said().count("best t0000") == 2
    assert digest(experiment) == pair_digest


def test_torchrun_on_two_machines(hosts, tmp_path, pair_digest):
    experiment = make_project(tmp_path / "run")

    def command(node: int) -> list[str]:
        where = ["--nnodes", "2", "--node-rank", str(node), "--master-addr", "h0"]
        words = [*TORCHRUN, *where, "--nproc-per-node", "1", "-m", "cerebro"]
        return hosts[node].command(*words, "run", str(experiment))

    with (
        started(command(0), tmp_path / "0") as leading,
        started(command(1), tmp_path / "1") as following,
    ):
        codes = [leading.wait(), following.wait()]
        assert codes == [0, 0], leading.said() + following.said()
        assert "rank 1 of 2 on" in following.said()
    assert digest(experiment) == pair_digest
