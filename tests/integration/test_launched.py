"""Ranks that a launcher has started, which starts each once: they train, or all end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.cluster.ranks import (
    cerebro,
    digest,
    environment,
    make_project,
    started,
    train_here,
)
from tests.ports import free_port
from tests.unit.launch.commands import write_command

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "cifar_cnn.sh"

pytestmark = pytest.mark.timeout(180)


def test_ranks_of_a_launcher_learn_what_a_gang_on_one_machine_does(tmp_path: Path) -> None:
    experiment = make_project(tmp_path / "run", epochs=1)
    (code, said), (other_code, other_said) = run_launched(experiment, tmp_path)
    assert (code, other_code) == (0, 0), said + other_said
    assert "rank 0 of 2 on" in said
    assert "rank 1 of 2 on" in other_said
    assert "the run has ended: best t0000 with val_loss" in other_said
    progress = ("run clouds: ", "efficiency")
    assert [words for words in progress if f"\n{words}" not in said] == []
    assert [words for words in progress if f"\n{words}" in f"\n{other_said}"] == []
    assert digest(experiment) == train_here(tmp_path / "here", 2, epochs=1)


def test_a_recipe_is_shown_by_rank_0_alone(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(SMALL)
    command = cerebro("run", recipe, "--show-config")
    (code, said), (other_code, other_said) = run_both(command, command, tmp_path)
    assert (code, other_code) == (0, 0)
    assert "batch_size: 8" in said
    assert other_said == ""


def test_rank_0_ends_with_the_reason_why_another_has_no_data(tmp_path: Path) -> None:
    experiment = make_project(tmp_path / "run")
    (code, said), (own_code, own_said) = run_launched(experiment, tmp_path, serve=["data=nowhere"])
    assert (code, own_code) == (1, 2)
    nowhere = experiment.parent / "nowhere"
    told = f"override 'data=nowhere': the dataset directory '{nowhere}' does not exist."
    assert f"error: {told}" in own_said
    assert f"rank 1 cannot take part: {told}" in said


def test_the_others_end_with_the_reason_why_rank_0_has_no_data(tmp_path: Path) -> None:
    experiment = make_project(tmp_path / "run")
    (code, said), (other_code, other_said) = run_launched(
        experiment, tmp_path, lead=["data=nowhere"]
    )
    assert (code, other_code) == (2, 2)
    assert "the dataset directory" in said
    assert "the run has ended: " in other_said
    assert "the dataset directory" in other_said


SCRIPT_OF_A_USER = """
import sys
from tasks import HERE, Clouds
from cerebro import Experiment

if __name__ == "__main__":
    Experiment(name="clouds", data=sys.argv[1], store=HERE / "runs").run_fit(
        Clouds(), {"lr": [0.01]}, num_epochs=1, global_batch_size=16, parallel="ddp"
    )
"""


def test_rank_0_of_a_script_ends_with_the_reason_why_another_has_no_data(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "run").parent
    script = folder / "script.py"
    script.write_text(SCRIPT_OF_A_USER)
    lead, serve = ([sys.executable, str(script), str(folder / d)] for d in ("data", "nowhere"))
    (code, said), (own_code, own_said) = run_both(lead, serve, tmp_path)
    assert (code, own_code) == (1, 1)
    assert "nowhere" in own_said
    assert "rank 1 cannot take part: " in said
    assert str(folder / "nowhere") in said


def test_what_ends_a_run_of_which_all_have_heard_is_told_once(tmp_path: Path) -> None:
    experiment = make_project(tmp_path / "run", metric="val_luck")
    (code, said), (other_code, other_said) = run_launched(experiment, tmp_path)
    assert (code, other_code) == (2, 2)
    assert "error: " in said
    assert "val_luck" in said
    assert "telling the other processes" not in said + other_said


def damage(run: Path) -> None:
    run.mkdir(parents=True)
    (run / "run.json").write_text("no JSON")


def unmake(run: Path) -> None:
    run.parent.mkdir(parents=True)
    run.symlink_to(run)


@pytest.mark.parametrize(("spoil", "reason"), [(damage, "run.json"), (unmake, "symbolic links")])
def test_the_others_end_with_the_reason_why_rank_0_cannot_open_the_run(
    tmp_path: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    experiment = make_project(tmp_path / "run")
    spoil(tmp_path / "run" / "runs" / "clouds")
    (code, said), (other_code, other_said) = run_launched(
        experiment, tmp_path, serve=["store=elsewhere"]
    )
    assert (code, other_code) == (1, 1)
    assert reason in said
    assert "the run has ended: " in other_said
    assert reason in other_said


SMALL = """
output_dir: runs/small
data: {name: dummy, input_shape: [16, 16, 3], n_train: 64, n_valid: 32}
model: {name: cnn, input_shape: [16, 16, 3], n_classes: 1}
optimizer: {name: Adam, lr: 0.001}
training: {batch_size: 8, n_epochs: 1, loss: binary_crossentropy, metrics: [accuracy]}
"""


def test_a_batch_script_on_one_node_trains_with_one_rank_however_many_cores_that_has(
    tmp_path: Path,
) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "cifar10_cnn.yaml").write_text(SMALL)
    write_command(tmp_path, "srun", 'shift\nexec "$@"')
    slurm = {"JOB_ID": "7", "SUBMIT_DIR": str(tmp_path), "PROCID": "0", "STEP_ID": "0"}
    done = subprocess.run(
        ["bash", SCRIPT],
        env={
            **environment(),
            **{f"SLURM_{name}": value for name, value in slurm.items()},
            "SLURM_NTASKS": "1",
            "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "CEREBRO_DATA": str(tmp_path / "prepared"),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "of 1 worker over" in done.stdout
    with np.load(tmp_path / "configs" / "runs" / "small" / "history.npz") as curves:
        assert curves["n_ranks"] == 1


def test_all_ranks_that_torchrun_has_started_on_a_machine_are_sampled(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *("-m", "cerebro", "run", str(tmp_path / "small.yaml"), "parallel=ddp"),
            *("profile={interval: 0.05}", f"data.prepared={tmp_path / 'prepared'}"),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    samples = (tmp_path / "runs" / "small" / "resources.csv").read_text()
    assert all(f"process/{role}-" in samples for role in ("worker", "follower"))


def run_launched(
    experiment: Path, folder: Path, lead: Sequence[str] = (), serve: Sequence[str] = ()
) -> tuple[tuple[int, str], tuple[int, str]]:
    """With what code both ranks end, and what they say, long before their patience is over.

    Args:
        lead, serve: What is asked for where rank 0 is, and on the other machine.
    """
    leading, serving = (cerebro("run", experiment, *words) for words in (lead, serve))
    return run_both(leading, serving, folder)


def run_both(
    lead: Sequence[str], serve: Sequence[str], folder: Path
) -> tuple[tuple[int, str], tuple[int, str]]:
    """The same, of any commands."""
    port = free_port()

    def place(rank: int) -> dict[str, str]:
        variables = {"RANK": rank, "SIZE": 2, "LOCAL_RANK": 0, "LOCAL_SIZE": 1}
        own = {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in variables.items()}
        own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        return {**environment(), **own}

    with (
        started(serve, folder / "1", place(1)) as serving,
        started(lead, folder / "0", place(0)) as leading,
    ):
        codes = [leading.wait(120.0), serving.wait(50.0)]
    return (codes[0], leading.said()), (codes[1], serving.said())
