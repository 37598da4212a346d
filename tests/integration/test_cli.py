"""The `cerebro` command, as a user runs it."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
from importlib.util import find_spec

import pytest

from cerebro.cli.doctor import show_run
from cerebro.storage import DirectoryStore
from cerebro.testing.history import check
from tests.integration.project import CONTROL_CODE, Project, interrupt, wait_until


def test_a_run_prints_leaderboard_efficiency_and_where_everything_is(finished_folder):
    folder, output = finished_folder
    assert output.startswith("rank  trial  val_accuracy")
    for text in ("efficiency 0.", "report.html", "trace.json"):
        assert text in output
    assert f"tensorboard --logdir {folder}/runs/toy/tensorboard" in output
    assert ("pip install 'cerebro[tensorboard]'" in output) == (find_spec("tensorboard") is None)


def test_progress_is_on_standard_error_and_the_result_once_on_standard_output(project):
    done = project.cerebro("run", "experiment.yaml", "backend=inline")
    assert done.stderr.startswith("run toy: 2 trials x 2 epochs x 3 shards on 2 workers")
    assert "run toy" not in done.stdout
    assert done.stdout.count("rank  trial") == 1


def test_a_log_of_both_outputs_has_the_leaderboard_once(project):
    with open(project.folder / "log", "w") as log:
        command = [sys.executable, "-m", "cerebro", "run", "experiment.yaml", "backend=inline"]
        subprocess.run(command, cwd=project.folder, stdout=log, stderr=log, check=True)
    assert (project.folder / "log").read_text().count("rank  trial") == 1


def test_output_in_a_pipe_has_no_control_codes(finished_folder):
    assert CONTROL_CODE.search(finished_folder[1]) is None


def test_only_the_best_trials_keep_checkpoints_where_the_file_says_so(project):
    done = project.cerebro("run", "experiment.yaml", "backend=inline", "keep_top=1")
    assert done.returncode == 0, done.stderr
    kept = {path.parent.parent.name for path in project.run_directory.rglob("*.safetensors")}
    assert kept == {"t0000"}


def test_a_finished_run_returns_at_once_and_changes_nothing(finished):
    before = finished.content()
    done = finished.cerebro("run", "experiment.yaml")
    assert done.returncode == 0
    assert "is finished already" in done.stdout
    assert "rank  trial  val_accuracy" in done.stdout
    assert finished.content() == before


def test_fresh_starts_a_new_run_and_keeps_the_old_one(finished):
    done = finished.cerebro("run", "experiment.yaml", "--fresh", "epochs=1")
    assert done.returncode == 0, done.stderr
    assert "run toy: 2 trials x 1 epoch x" in done.stderr
    assert (finished.folder / "runs" / "toy.1" / "run.json").exists()


def test_quiet_prints_the_result_alone(project):
    done = project.cerebro("run", "experiment.yaml", "--quiet", "epochs=1")
    assert done.stdout.startswith("rank  trial  val_accuracy")
    assert done.stderr == ""


def test_a_task_beside_the_experiment_file_is_found_from_another_folder(project, tmp_path):
    elsewhere = Project(tmp_path / "elsewhere")
    elsewhere.folder.mkdir()
    done = elsewhere.cerebro("run", "../experiment.yaml", "epochs=1", "-q")
    assert done.returncode == 0, done.stderr


def test_a_task_in_the_current_folder_is_found(project, tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "experiment.yaml").rename(tmp_path / "conf" / "experiment.yaml")
    project.edit("conf/experiment.yaml", "data: data", "data: ../data")
    done = project.cerebro("run", "conf/experiment.yaml", "epochs=1", "-q")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_saves_and_the_same_command_resumes(longer, number, code):
    returncode, errors = interrupt(longer, number)
    assert returncode == code
    assert "stopping after the visits in flight; a second Ctrl-C stops at once." in errors
    assert "\nstopped; what was trained is saved" in errors
    assert "To resume: cerebro run experiment.yaml" in errors
    done = longer.cerebro("run", "experiment.yaml")
    assert done.returncode == 0, done.stderr
    assert "resuming toy" in done.stderr
    assert ", since the last resume\n" in done.stdout


def test_ctrl_c_that_ends_the_reader_of_what_is_told_loses_nothing(longer):
    """As with `cerebro run … 2>&1 | tee log`, where it ends both."""
    held = longer.hold(1)
    with longer.start("run", "experiment.yaml") as process:
        try:
            wait_until(longer.has_visits)
            for stream in (process.stdout, process.stderr):
                stream.close()
            process.send_signal(signal.SIGINT)
            held.unlink()
            assert process.wait(60) == 130
        finally:
            process.kill()
    check(longer.run_directory)
    done = longer.cerebro("run", "experiment.yaml")
    assert done.returncode == 0, done.stderr


def test_the_command_that_resumes_says_how_many_workers_there_were(longer):
    _, errors = interrupt(longer, signal.SIGINT, "-np", "3", "epochs=2")
    assert errors.endswith("To resume: cerebro run experiment.yaml epochs=2 -np 3\n")


def test_a_full_disk_exits_with_75_and_the_run_can_go_on(project):
    """A limit on the size of files, which the journal reaches, looks like a full disk."""
    code = (
        "import resource\n"
        "from cerebro.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))\n"
        "main()"
    )
    arguments = ["run", "experiment.yaml", "backend=inline", "-q"]
    full = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=project.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert full.returncode == 75, full.stderr
    assert "To resume: cerebro run experiment.yaml backend=inline" in full.stderr
    assert project.has_visits()
    done = project.cerebro(*arguments)
    assert done.returncode == 0, done.stderr


def test_status_during_a_run_names_its_driver(project):
    with project.running() as process:
        done = project.cerebro("status", "runs/toy")
        results = project.cerebro("results", "runs/toy", "--json")
        doctor = project.cerebro("doctor", "runs/toy")
    assert f"state   running: pid {process.pid} on " in done.stdout
    assert "\nrunning:\n  t0000" in done.stdout
    assert "of 12000 training visits" in done.stdout
    assert {row["status"] for row in json.loads(results.stdout)} == {"running"}
    assert "are intact" in doctor.stdout


def test_status_of_a_killed_run_says_that_it_stopped(longer):
    interrupt(longer, signal.SIGKILL)
    done = longer.cerebro("status", "runs/toy")
    assert done.returncode == 0
    assert "state   stopped: no driver is alive" in done.stdout
    assert " unfinished" in done.stdout
    assert "running" not in done.stdout
    assert "\nunfinished:\n" in done.stdout


def test_status_of_a_finished_run_tells_the_best_trial(finished):
    done = finished.cerebro("status", "runs/toy")
    assert "state   finished" in done.stdout
    assert "visits  12 of 12 training visits (100 %)" in done.stdout
    assert "best    t0000  val_accuracy 0." in done.stdout


def test_status_of_a_folder_of_runs_names_them(finished):
    done = finished.cerebro("status", "runs")
    assert done.returncode == 2
    assert "Runs in it: toy." in done.stderr


def test_results_as_json_are_ranked_trials(finished):
    rows = json.loads(finished.cerebro("results", "runs/toy", "--json").stdout)
    assert [row["rank"] for row in rows] == [1, 2]
    assert {row["params"]["lr"] for row in rows} == {0.1, 0.01}
    assert rows[0]["metrics"]["val_accuracy"] >= rows[1]["metrics"]["val_accuracy"]


def test_results_as_csv_have_a_column_a_param(finished):
    text = finished.cerebro("results", "runs/toy", "--csv").stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["trial"] for row in rows] == ["t0000", "t0001"]
    assert float(rows[0]["params.lr"]) == 0.1
    assert text == (finished.run_directory / "leaderboard.csv").read_text()


@pytest.mark.parametrize("name", ["t0001", "1"])
def test_results_of_one_trial_are_its_epochs(finished, name):
    rows = json.loads(finished.cerebro("results", "runs/toy", "--trial", name, "--json").stdout)
    assert [row["epoch"] for row in rows] == [0, 1]
    assert rows[0]["metrics"].keys() == {"train_loss", "val_loss", "val_accuracy"}


def test_results_of_one_trial_in_a_table_have_a_line_an_epoch(finished):
    lines = finished.cerebro("results", "runs/toy", "--trial", "1").stdout.splitlines()
    assert lines[0] == "t0001 finished  lr=0.01"
    assert lines[1].split() == ["epoch", "train_loss", "val_loss", "val_accuracy"]
    assert [line.split()[0] for line in lines[2:]] == ["1", "2"]


def test_results_in_a_closed_pipe_end_quietly(finished):
    with finished.start("results", "runs/toy", "--json") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_an_unknown_trial_lists_those_there_are(finished):
    done = finished.cerebro("results", "runs/toy", "--trial", "t0009")
    assert done.returncode == 2
    assert done.stderr == "error: unknown trial 't0009'. Known: t0000, t0001.\n"


def test_a_failed_trial_is_reported_and_the_run_is_done(project):
    project.edit("experiment.yaml", "lr: [0.1, 0.01]", "lr: [0.1]\n  fail: [null, raise]")
    done = project.cerebro("run", "experiment.yaml")
    assert done.returncode == 0, done.stderr
    assert "1 of 2 trials failed:\n  t0001" in done.stdout
    assert project.cerebro("run", "experiment.yaml", "--strict").returncode == 1
    shown = project.cerebro("results", "runs/toy", "--trial", "1").stdout
    assert "ValueError: this trial raises on purpose" in shown


def test_a_run_whose_trials_all_failed_has_failed(project):
    project.edit("experiment.yaml", "lr: [0.1, 0.01]", "lr: [0.1]\n  fail: nan_loss")
    done = project.cerebro("run", "experiment.yaml")
    assert done.returncode == 1
    assert done.stderr.endswith("error: all 1 trials failed.\n")


def test_run_does_as_the_file_says(project):
    options = ("epochs=9", "seeds=2", "goal={target: 0.0}", "constraints={val_loss: 100}")
    done = project.cerebro("run", "experiment.yaml", *options, "-q")
    assert done.returncode == 0, done.stderr
    trials = list(
        csv.DictReader(io.StringIO(project.cerebro("results", "runs/toy", "--csv").stdout))
    )
    assert len(trials) == 4
    assert {trial["status"] for trial in trials} == {"stopped"}
    shown = project.cerebro("results", "runs/toy", "--trial", "best").stdout
    assert "\nstopped: " in shown
    assert "error" not in shown


def test_doctor_tells_versions_and_verifies_a_run(finished):
    done = finished.cerebro("doctor", "runs/toy")
    assert done.returncode == 0
    assert f"{sys.version_info.major}.{sys.version_info.minor}." in done.stdout
    assert "run.json, journal and" in done.stdout


def test_doctor_finds_a_flipped_bit_in_a_checkpoint(finished, capsys):
    path = next(finished.run_directory.rglob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert show_run(DirectoryStore(finished.run_directory)) == 1
    assert f"{path.name} is damaged: its SHA-256 must be" in capsys.readouterr().out


def test_doctor_finds_a_damaged_journal(finished, capsys):
    path = finished.run_directory / "journal.jsonl"
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    assert show_run(DirectoryStore(finished.run_directory)) == 1
    assert "damaged at byte 0" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["plan", "experiment.yaml"]])
def test_a_command_loads_no_torch(finished, arguments):
    code = (
        "import sys, contextlib\n"
        "from cerebro.cli import main\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=finished.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stderr.split())
    assert "torch" not in loaded
    if arguments[-1] == "--help":
        assert loaded.isdisjoint({"numpy", "pyarrow", "rich", "psutil", "yaml"})


def test_a_run_loads_no_torch_in_its_driver(project):
    """The backend is local, so the task is imported by workers alone."""
    project.write("tasks.py", "import torch\n" + (project.folder / "tasks.py").read_text())
    code = (
        "import sys\n"
        "from cerebro.cli import main\n"
        "try: main()\n"
        "finally: print('torch' in sys.modules, 'tasks' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "experiment.yaml", "epochs=1"],
        cwd=project.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "False False"


def test_version_is_one_line(project):
    done = project.cerebro("--version")
    assert done.stdout.split()[0] == "cerebro"
    assert done.stdout.count("\n") == 1


def test_a_missing_argument_is_a_usage_error(project):
    assert project.cerebro("run").returncode == 2
