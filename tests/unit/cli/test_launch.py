from __future__ import annotations

import pytest
import yaml

from cerebro.cli import launch
from cerebro.errors import UsageError
from tests.experiments import make_toy_data


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_toy_data(tmp_path / "data")
    (tmp_path / "tasks.py").write_text("class Net: pass\n")
    asked = {
        "name": "toy",
        "task": "tasks.py:Net",
        "data": "data",
        "epochs": 2,
        "batch_size": 8,
        "metric": "val_loss",
        "mode": "min",
        "parallel": "ddp",
        "space": {"lr": [0.1]},
        "launch": {"nodes": 4, "time": "2:00:00", "qos": "regular"},
    }
    (tmp_path / "my_toy.yaml").write_text(yaml.safe_dump(asked))
    return tmp_path / "my_toy.yaml"


def test_a_dry_run_shows_the_script_and_does_nothing(experiment, capsys):
    launch.slurm(experiment, ["epochs=3"], qos="debug", dry_run=True)
    script = capsys.readouterr().out
    for line in ("job-name=my-toy", "nodes=4", "time=2:00:00", "qos=debug"):
        assert f"#SBATCH --{line}\n" in script
    assert f"-m cerebro run {experiment} epochs=3\n" in script
    assert not (experiment.parent / "logs").exists()


def test_sections_can_be_overridden(experiment, capsys):
    launch.slurm(experiment, ["launch.nodes=2"], dry_run=True)
    assert "#SBATCH --nodes=2\n" in capsys.readouterr().out


def test_a_key_of_the_section_that_does_not_exist_is_told_where_it_is(experiment):
    with pytest.raises(UsageError, match=r"^override 'launch\.env=1': unknown key of launch 'env'"):
        launch.slurm(experiment, ["launch.env=1"], dry_run=True)


def test_many_ranks_of_trials_that_hop_are_refused(experiment):
    with pytest.raises(UsageError, match=r"4 ranks .* but .*my_toy.yaml says mop"):
        launch.slurm(experiment, ["parallel=mop"], dry_run=True)


def test_one_node_may_run_what_it_likes(experiment, capsys):
    launch.slurm(experiment, ["parallel=mop"], nodes=1, dry_run=True)
    assert "#SBATCH --nodes=1\n" in capsys.readouterr().out


GOAL = ["goal={target: 0.1, devices: cpu, max_nodes: 3}", "launch.nodes=2"]


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """The tools of both systems: they leave a file if they are called."""
    for name in ("sbatch", "kubectl"):
        (tmp_path / name).write_text(f"#!/bin/sh\n: > {tmp_path}/called\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("dry_run", [True, False], ids=["shown", "handed in"])
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"nodes": 8},
            "`nodes <= goal.max_nodes` must hold, but got 8 nodes and max_nodes=3. Change --nodes "
            "or goal.max_nodes.",
        ),
        (
            {"nodes": 8, "on": "ray"},
            "got 8 nodes and max_nodes=3. Change --nodes or goal.max_nodes.",
        ),
        (
            {"gpus_per_node": 4},
            "the goal allows cpu only, but got gpus_per_node=4. Leave gpus_per_node out, or change "
            "goal.devices.",
        ),
    ],
    ids=["nodes", "nodes of ray", "gpus"],
)
def test_slurm_is_not_asked_for_more_than_the_goal_allows(
    experiment, capsys, asked, message, dry_run
):
    with pytest.raises(UsageError) as caught:
        launch.slurm(experiment, GOAL, **asked, dry_run=dry_run)
    assert str(caught.value).startswith("override 'goal=")
    assert message in str(caught.value)
    assert capsys.readouterr().out == ""
    assert not (experiment.parent / "logs").exists()
    assert not (experiment.parent / "called").exists()


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("dry_run", [True, False], ids=["shown", "handed in"])
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"nodes": 4}, "got 4 nodes and max_nodes=3. Change --nodes or goal.max_nodes."),
        ({"gpus": 1}, "the goal allows cpu only, but got gpus=1. Leave gpus out, or change goal.d"),
    ],
    ids=["nodes", "gpus"],
)
def test_kubernetes_is_not_asked_for_more_than_the_goal_allows(
    experiment, capsys, asked, message, dry_run
):
    given = {"image": "cerebro:1", "volume": "claim", "dry_run": dry_run}
    with pytest.raises(UsageError) as caught:
        launch.k8s(experiment, GOAL, **given, **asked)
    assert message in str(caught.value)
    assert capsys.readouterr().out == ""
    assert not (experiment.parent / "called").exists()


def test_what_the_goal_allows_is_launched(experiment, capsys):
    launch.slurm(experiment, GOAL, nodes=3, dry_run=True)
    assert "#SBATCH --nodes=3\n" in capsys.readouterr().out
    given = {"image": "cerebro:1", "volume": "claim", "nodes": 3, "gpus": 0, "dry_run": True}
    launch.k8s(experiment, GOAL, **given)
    carried = yaml.safe_load(
        next(yaml.safe_load_all(capsys.readouterr().out))["data"]["experiment.yaml"]
    )
    assert carried["goal"]["max_nodes"] == 3


def test_on_ray_trials_hop_between_all_nodes(experiment, capsys):
    launch.slurm(experiment, ["parallel=mop", "epochs=3"], on="ray", dry_run=True)
    script = capsys.readouterr().out
    assert "RAY_AUTH_MODE=token" in script
    expected = f"-m cerebro launch ray {experiment} parallel=mop epochs=3 backend=ray\n"
    assert expected in script


def test_the_same_file_is_for_kubernetes_too(experiment, capsys):
    given = {"image": "cerebro:1", "volume": "claim", "dry_run": True}
    launch.k8s(experiment, ["parallel=mop", "epochs=3"], nodes=2, gpus=1, **given)
    files, made = yaml.safe_load_all(capsys.readouterr().out)
    carried = yaml.safe_load(files["data"]["experiment.yaml"])
    assert (carried["epochs"], carried["backend"], carried["data"]) == (3, "ray", "/store/data")
    assert "launch" not in carried
    assert files["data"]["tasks.py"] == "class Net: pass\n"
    assert (made["kind"], made["metadata"]["name"]) == ("RayJob", "my-toy")
    (group,) = made["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert group["replicas"] == 2


def test_data_of_pods_need_not_be_on_this_machine(experiment, capsys):
    places = ["data=/store/there", "store=s3://bucket/runs"]
    launch.k8s(experiment, places, kind="job", image="cerebro:1", dry_run=True)
    assert "kind: Job\n" in capsys.readouterr().out


def test_without_a_place_that_lasts_nothing_is_made(experiment):
    with pytest.raises(UsageError, match="--volume CLAIM"):
        launch.k8s(experiment, image="cerebro:1", dry_run=True)


def test_what_is_wrong_with_a_file_is_found_before_pods_are(experiment):
    with pytest.raises(UsageError, match="epochs"):
        launch.k8s(experiment, ["epochs=0"], image="cerebro:1", volume="claim", dry_run=True)


def test_what_is_wrong_with_a_file_is_found_before_the_job(experiment):
    with pytest.raises(UsageError, match="epochs"):
        launch.slurm(experiment, ["epochs=0"], dry_run=True)


@pytest.mark.parametrize("wrong", [{"launch": 5}, [1]], ids=str)
def test_a_file_that_is_wrong_as_a_whole_is_refused_before_the_job(wrong, experiment):
    whole = {**yaml.safe_load(experiment.read_text()), **wrong} if "launch" in wrong else wrong
    experiment.write_text(yaml.safe_dump(whole))
    with pytest.raises(UsageError, match="must be a mapping"):
        launch.slurm(experiment, time="10", dry_run=True)


def test_a_job_is_shown_with_the_end_of_its_log(tmp_path, monkeypatch, capsys):
    log = tmp_path / "toy-7.out"
    log.write_text("rank 0 of 2 on n1 (pid 7)\n")
    found = f"JobId=7 JobName=toy JobState=RUNNING NodeList=n[1-2] Restarts=1 StdOut={log}"
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho '{found}'\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    launch.show_job(7)
    shown = capsys.readouterr().out
    for words in ("running", "n[1-2]", "rank 0 of 2 on n1"):
        assert words in shown
