from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cerebro import __version__
from cerebro.errors import CerebroError, UsageError
from cerebro.launch.slurm import SlurmJob, make_job, make_log_directory, render
from cerebro.launch.slurm_commands import find_status, parse_job, submit, tail
from tests.unit.launch.commands import write_command

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = sorted((ROOT / "scripts").glob("*.sh"))
GOLDEN = Path(__file__).with_name("slurm.golden.sh")
RAY_GOLDEN = Path(__file__).with_name("slurm_ray.golden.sh")
COMMAND = ["/opt/python", "-u", "-m", "cerebro", "run", "configs/cifar10_resnet.yaml"]
FULL = SlurmJob(
    job_name="cifar-resnet",
    nodes=8,
    time="1:00:00",
    procs_per_node=4,
    cpus_per_task=16,
    gpus_per_node=4,
    constraint="gpu&hbm80g",
    qos="regular",
    account="m1234",
    partition="debug",
    reservation="dl4sci",
)


def test_a_script_reads_as_it_should():
    script = render(FULL, [*COMMAND, "optimizer.lr=0.1"], directory="/home/ann/my work")
    assert script == GOLDEN.read_text().replace("VERSION", __version__)


def test_what_is_not_asked_for_is_not_in_the_script():
    script = render(SlurmJob(job_name="a", time="10"), COMMAND, directory="/")
    for word in ("gpus", "cpus", "constraint", "qos", "account", "partition", "reservation"):
        assert word not in script


def test_words_of_a_command_stay_words(tmp_path):
    awkward = ["a b", "$(touch owned)", "`id`", "x;y", "'", '"', "#", "*", "\\"]
    job = SlurmJob(job_name="a", time="10")
    script = render(job, ["printf", "%s\\n", *awkward], directory=str(tmp_path))
    fake = tmp_path / "bin" / "srun"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nshift\nexec "$@"\n')
    fake.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": f"{fake.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == awkward
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("code", "restarts", "said"),
    [
        (75, 99, ["state saved: back into the queue", "requeue 7"]),
        (75, 100, ["state saved, but the job was put back 100 times already", "hand it in again"]),
        (0, 100, []),
        (1, 0, []),
    ],
)
def test_a_script_says_whether_the_job_comes_back(code, restarts, said, tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    write_command(folder, "srun", f"exit {code}")
    write_command(folder, "scontrol", 'echo "$@"')
    slurm = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": str(restarts)}
    done = subprocess.run(
        ["bash", "-c", render(SlurmJob(job_name="a", time="10"), COMMAND, directory=str(tmp_path))],
        env={**os.environ, **slurm, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    lines = done.stdout.splitlines()
    assert len(lines) == len(said)
    assert all(line.startswith(start) for line, start in zip(lines, said, strict=True))


@pytest.mark.parametrize("value", ["a\nb", 'a"b', "a\x00", "a\\", "", "$(id)", "a`b`"])
def test_values_that_could_leave_their_line_are_refused(value):
    with pytest.raises(UsageError, match="partition must be text"):
        SlurmJob(job_name="a", time="10", partition=value)


def test_a_value_with_blanks_stands_in_quotes():
    job = SlurmJob(job_name="a", time="10", output="my logs/%x-%j.out")
    assert '#SBATCH --output="my logs/%x-%j.out"\n' in render(job, COMMAND, directory="/")


@pytest.mark.parametrize("time", ["60", "10:30", "1:00:00", "2-12", "1-00:30:00"])
def test_times_are_those_of_slurm(time):
    assert SlurmJob(job_name="a", time=time).time == time


@pytest.mark.parametrize("time", ["", "1h", "one hour", "1:2:3:4", "-5"])
def test_other_times_are_refused(time):
    with pytest.raises(UsageError, match="H:MM:SS"):
        SlurmJob(job_name="a", time=time)


@pytest.mark.parametrize(
    ("time", "before"), [("2", 120), ("1:30", 120), ("0:01:00", 60), ("1:00:00", 70000)]
)
def test_a_job_that_would_be_stopped_as_it_begins_is_refused(time, before):
    with pytest.raises(UsageError, match=f"longer than the {before} s"):
        SlurmJob(job_name="a", time=time, signal_before=before)


@pytest.mark.parametrize("time", ["3", "2:01", "0", "0-1", "1-00:00"])
def test_a_job_with_time_to_train_is_not(time):
    assert SlurmJob(job_name="a", time=time).signal_before == 120


def test_the_section_of_a_file_gives_defaults():
    section = {"kind": "slurm", "nodes": 8, "time": 30, "qos": "regular"}
    job = make_job(section, {"nodes": 2, "qos": None, "time": None}, "cifar")
    assert (job.nodes, job.time, job.qos, job.job_name) == (2, "30", "regular", "cifar")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"kind": "pbs", "time": "1"}, "`launch.kind` must be one of slurm, k8s"),
        ({"node": 8, "time": "1"}, "unknown key of launch 'node'"),
        ({"nodes": "8", "time": "1"}, "`launch.nodes` must be a whole number"),
        ({"nodes": True, "time": "1"}, "`launch.nodes` must be a whole number"),
        ({"qos": 3, "time": "1"}, "`launch.qos` must be text"),
        ({"nodes": 0, "time": "1"}, "nodes must be at least 1"),
        ({"nodes": 8}, "--time 1:00:00"),
    ],
)
def test_a_wrong_section_is_refused(section, message):
    with pytest.raises(UsageError) as error:
        make_job(section, {}, "cifar")
    assert message in str(error.value)


def test_a_section_for_kubernetes_is_not_ours():
    assert make_job({"kind": "rayjob", "nodes": 8, "image": "a"}, {"time": "5"}, "x").nodes == 1


RAY_COMMAND = ["/opt/python", "-u", "-m", "cerebro", "launch", "ray", "configs/search.yaml"]


def test_a_script_for_ray_reads_as_it_should():
    job = SlurmJob(job_name="search", nodes=4, time="1:00:00", cpus_per_task=8, gpus_per_node=2)
    script = render(job, RAY_COMMAND, directory="/home/ann", on_ray=True)
    assert script == RAY_GOLDEN.read_text().replace("VERSION", __version__)


def test_every_job_on_ray_gets_a_token_of_its_own(tmp_path):
    fake = tmp_path / "bin" / "srun"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "$RAY_AUTH_MODE $RAY_AUTH_TOKEN"\n')
    fake.chmod(0o755)
    job = SlurmJob(job_name="a", time="10")
    script = render(job, [sys.executable, "x"], directory=str(tmp_path), on_ray=True)
    said = {
        subprocess.run(
            ["bash", "-c", script],
            env={**os.environ, "PATH": f"{fake.parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for _ in range(2)
    }
    assert len(said) == 2
    assert all(re.fullmatch("token [0-9a-f]{64}", each) for each in said)


def test_with_ray_a_node_has_one_task():
    job = SlurmJob(job_name="a", time="10", procs_per_node=4)
    with pytest.raises(UsageError, match=r"one task.*procs_per_node=4"):
        render(job, COMMAND, directory="/", on_ray=True)


def test_the_directory_of_logs_is_made_up_to_what_slurm_fills_in(tmp_path):
    job = SlurmJob(job_name="a", time="10", output="logs/%u/%x-%j.out")
    assert make_log_directory(job, str(tmp_path)) == tmp_path / "logs"
    assert (tmp_path / "logs").is_dir()


def test_answers_of_scontrol_are_taken_apart():
    text = (
        "JobId=7 JobName=my job UserId=ann(1) JobState=PENDING Reason=Resources Restarts=2 "
        "TRES=cpu=2,node=2 AllocNode:Sid=a:1 StdOut=/home/ann/my logs/x-7.out Power=\n"
    )
    found = parse_job(text)
    assert found["JobName"] == "my job"
    assert found["StdOut"] == "/home/ann/my logs/x-7.out"
    assert found["TRES"] == "cpu=2,node=2"
    assert found["Power"] == ""


def test_the_end_of_a_log_is_found(tmp_path):
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    assert tail(str(log), 2) == ["line 98", "line 99"]
    assert tail(str(tmp_path / "none")) == []


def test_the_number_of_a_job_is_what_sbatch_says(path, tmp_path):
    write_command(path, "sbatch", 'echo "4711;cluster"')
    assert submit("#!/bin/bash\n", directory=str(tmp_path)) == 4711


def test_a_failure_of_sbatch_is_told(path, tmp_path):
    write_command(path, "sbatch", 'echo "sbatch: error: Invalid qos" >&2; exit 1')
    with pytest.raises(CerebroError, match="Invalid qos"):
        submit("#!/bin/bash\n", directory=str(tmp_path))


def test_without_slurm_it_is_said_what_is_missing(path, tmp_path):
    with pytest.raises(UsageError, match=r"`sbatch` must be on the PATH.*--dry-run"):
        submit("#!/bin/bash\n", directory=str(tmp_path))


def test_where_no_job_is_handed_in_no_script_could_be_shown(path):
    with pytest.raises(UsageError, match=r"`scontrol` must be on the PATH.*hands in jobs\.$"):
        find_status(4711)


def test_a_job_that_failed_tells_its_exit_code(path):
    line = "JobId=7 JobName=a JobState=FAILED Reason=NonZeroExitCode Restarts=0 ExitCode=2:0"
    write_command(path, "scontrol", f'echo "{line}"')
    found = find_status(7)
    assert (found.state, found.reason) == ("FAILED", "exit code 2")


def test_of_a_job_that_slurm_does_not_know_the_log_is_pointed_to(path):
    told = "slurm_load_jobs error: Invalid job id specified"
    write_command(path, "scontrol", f'echo "{told}" >&2; exit 1')
    with pytest.raises(CerebroError, match=r"must know of job 4711.*logs/\*-4711\.out"):
        find_status(4711)


def test_other_failures_of_scontrol_are_told_as_they_are(path):
    told = "slurm_load_jobs error: Unable to contact slurm controller"
    write_command(path, "scontrol", f'echo "{told}" >&2; exit 1')
    with pytest.raises(CerebroError, match=f"scontrol failed: {told}"):
        find_status(4711)


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.name for script in SCRIPTS])
def test_a_script_outside_of_slurm_says_what_to_do(script, tmp_path):
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        [script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert f"sbatch -N 8 {script}" in done.stderr
    config = re.search(r"configs/\w+\.yaml", done.stderr)
    assert config is not None
    assert (ROOT / config[0]).is_file()


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.name for script in SCRIPTS])
def test_the_scripts_ask_for_what_launch_asks_for(script):
    text = script.read_text()
    launched = render(SlurmJob(job_name="a", time="1:00:00"), COMMAND, directory="/")
    for line in launched.splitlines():
        if line.startswith("#SBATCH") and "job-name" not in line:
            assert line in text
    assert launched.partition("code=$?")[2] in text


def test_the_scripts_differ_in_their_names_and_files_alone():
    def rest(script):
        lines = script.read_text().splitlines()
        assert sum(line.startswith(("#SBATCH --job-name=", "config=")) for line in lines) == 2
        return [
            line for line in lines if not line.startswith(("# ", "#SBATCH --job-name=", "config="))
        ]

    first, *others = map(rest, SCRIPTS)
    assert {script.stem for script in SCRIPTS} == {"cifar_cnn", "cifar_resnet", "mlp6"}
    assert others == [first, first]


@pytest.mark.parametrize("cores", [None, "16"])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_ranks_of_a_script_have_the_cores_of_its_job(script, cores, tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    write_command(folder, "srun", 'printf "%s\\n" "$@"')
    slurm = {"SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(tmp_path)}
    slurm |= {} if cores is None else {"SLURM_CPUS_PER_TASK": cores}
    done = subprocess.run(
        ["bash", script],
        env={**os.environ, **slurm, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = [] if cores is None else ["--cpus-per-task=16"]
    config = f"configs/{script.stem.replace('cifar', 'cifar10')}.yaml"
    words = ["cerebro", "run", config, "parallel=ddp"]
    assert done.stdout.splitlines() == ["--kill-on-bad-exit=0", *expected, *words]
