"""The monitor: what it sees, how often, and what it costs."""

from __future__ import annotations

import csv
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from cerebro.errors import UsageError
from cerebro.storage import layout
from cerebro.track.monitor import Monitor, Profile, profiling
from cerebro.track.monitor.gpu import Gpus
from cerebro.track.monitor.monitor import monitor_command
from cerebro.track.monitor.recorder import Recorder
from cerebro.track.monitor.sampler import Sample, Sampler
from cerebro.track.monitor.sinks import CsvSink, Sink, TensorBoardSink
from tests.processes import wait_for

BUSY = "import sys\nprint('up', flush=True)\nwhile True: pass"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {BUSY!r}])
try:
    sys.stdin.read()
finally:
    child.kill()
    child.wait()
"""


def read_csv(path: Path) -> dict[str, list[tuple[float, float]]]:
    """What was seen, by its name. A row that is just being written does not count."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    whole, _, _ = path.read_text().rpartition("\n")
    for row in csv.DictReader(whole.splitlines()):
        found[row["what"]].append((float(row["time"]), float(row["value"])))
    return found


def values(path: Path, what: str) -> list[float]:
    return [value for _, value in read_csv(path)[what]]


def test_a_child_of_a_child_counts_as_part_of_the_tree() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        sampler = Sampler(parent.pid)
        try:
            sampler.sample()
            wait_for(
                lambda: sampler.sample().values.get("cpu/tree", 0.0) > 5.0,
                "the grandchild's work is seen",
            )
            names = {what for what in sampler.sample().values if what.startswith("process/")}
            assert any(name.startswith(f"process/main-{parent.pid}/") for name in names)
            assert any(name.startswith("process/other-") for name in names)
        finally:
            sampler.close()
            parent.communicate()


def test_work_of_processes_that_have_ended_is_not_taken_back() -> None:
    sampler = Sampler(os.getpid())
    try:
        sampler.sample()
        for _ in range(3):
            subprocess.run([sys.executable, "-c", "sum(range(10**6))"], check=True)
            assert all(v >= 0 for w, v in sampler.sample().values.items() if w.startswith("cpu/"))
    finally:
        sampler.close()


def test_counters_of_networks_and_disks_never_go_back() -> None:
    sampler = Sampler(os.getpid())
    try:
        samples = [sampler.sample().values for _ in range(50)]
    finally:
        sampler.close()
    counters = [what for what in samples[0] if what.startswith(("network/", "disk/"))]
    assert "network/lo/in" in counters
    for what in counters:
        seen = [sample[what] for sample in samples]
        assert seen[0] == 0
        assert seen == sorted(seen)


def test_a_sample_costs_less_than_a_hundredth_of_a_core_at_one_a_second(tmp_path: Path) -> None:
    sampler = Sampler(os.getpid())
    sinks: list[Sink] = [
        CsvSink(tmp_path / "resources.csv"),
        TensorBoardSink(tmp_path / "tb", every_s=0.0),
    ]
    recorder = Recorder(sampler, sinks)
    recorder.tick()
    began = time.process_time()
    for _ in range(50):
        recorder.tick()
    spent_s = (time.process_time() - began) / 50
    recorder.close()
    assert spent_s < 0.01


def test_being_late_once_shifts_no_later_sample() -> None:
    now = 100.0
    beats: list[float] = []

    def wait(timeout_s: float) -> bool:
        nonlocal now
        late_s = 2.3 if len(beats) == 2 else 0.004
        now += timeout_s + late_s
        beats.append(now)
        return len(beats) == 6

    recorder = Recorder(Sampler(os.getpid()), [], interval_s=1.0, clock=lambda: now)
    recorder.run(wait)
    assert beats == pytest.approx([101.004, 102.004, 105.3, 106.004, 107.004, 108.004])
    assert len(recorder.recent) == 7


def test_the_mean_cadence_is_within_five_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long each sample takes, and however late it is, within a beat."""
    rng = random.Random(0)
    now = 100.0
    times: list[float] = []

    def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds

    def sample(sampler: Sampler) -> Sample:
        times.append(now)
        pass_time(rng.uniform(0.0, 0.1))
        return Sample(now, "here")

    def wait(timeout_s: float) -> bool:
        pass_time(timeout_s + rng.uniform(0.0, 0.25))
        return len(times) == 100

    monkeypatch.setattr(Sampler, "sample", sample)
    Recorder(Sampler(os.getpid()), [], interval_s=0.4, clock=lambda: now).run(wait)
    mean = (times[-1] - times[0]) / (len(times) - 1)
    assert mean == pytest.approx(0.4, rel=0.05)


@pytest.mark.slow
def test_the_monitor_keeps_to_its_interval(tmp_path: Path) -> None:
    with Monitor(tmp_path, interval_s=0.4):
        wait_for(lambda: len(values(tmp_path / "resources.csv", "disk/read")) > 11, "samples")
    # The last one is taken at the end. Others may be late, but are never early.
    first, *times = [second for second, _ in read_csv(tmp_path / "resources.csv")["disk/read"]][:-1]
    assert all(time_s - first >= 0.4 * beat - 0.01 for beat, time_s in enumerate(times))


def test_the_monitor_writes_csv_and_tensorboard_and_leaves_no_process(tmp_path: Path) -> None:
    with Monitor(tmp_path, interval_s=0.05, sinks=("csv", "tensorboard"), host="here"):
        wait_for(lambda: values(tmp_path / "resources.csv", "cpu/tree"), "a second sample")
    found = read_csv(tmp_path / "resources.csv")
    assert {"cpu/system", "cpu/tree", "memory/tree_rss", "memory/system_used"} <= set(found)
    (events,) = (tmp_path / "tensorboard" / "profiler").iterdir()
    assert b"profiler/here/cpu/tree" in events.read_bytes()


def test_the_monitor_ends_with_who_started_it(tmp_path: Path) -> None:
    script = (
        "import os, sys\nfrom cerebro.track.monitor import Monitor\n"
        f"monitor = Monitor({str(tmp_path)!r}, interval_s=0.05).__enter__()\n"
        "print(monitor._process.pid, flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        wait_for(lambda: not os.path.exists(f"/proc/{pid}"), "the monitor is gone")


def test_what_asks_a_run_to_stop_does_not_end_its_samples(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Monitor(tmp_path, interval_s=0.05) as monitor:
        assert monitor._process is not None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            os.kill(monitor._process.pid, number)
    assert not caplog.records


def test_a_command_is_sampled_and_its_exit_code_given(tmp_path: Path) -> None:
    command = [*monitor_command(tmp_path, interval_s=0.05), "--"]
    done = subprocess.run([*command, sys.executable, "-c", "raise SystemExit(3)"], check=False)
    assert done.returncode == 3
    assert "memory/system_used" in read_csv(tmp_path / "resources.csv")


def test_a_command_that_ends_before_it_is_looked_at_has_a_sample_too() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as command:
        os.waitid(os.P_PID, command.pid, os.WEXITED | os.WNOWAIT)
        sampler = Sampler(command.pid)
        found = sampler.sample().values
        sampler.close()
    assert "memory/system_used" in found
    assert "memory/tree_rss" not in found


def test_a_command_is_ended_when_the_lifeline_breaks(tmp_path: Path) -> None:
    command = [*monitor_command(tmp_path, interval_s=0.05), "--lifeline", "--"]
    with subprocess.Popen(
        [*command, sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as monitor:
        assert monitor.stdout is not None
        monitor.stdout.readline()
        monitor.communicate(timeout=60)
    assert monitor.returncode == 128 + signal.SIGTERM


def test_a_command_is_ended_where_samples_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    command = [*monitor_command(tmp_path / "file" / "below", interval_s=0.05), "--"]
    monitor = [*command, sys.executable, "-c", BUSY]
    # Its output is at its end once nobody has it any more, the command included.
    done = subprocess.run(monitor, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "NotADirectoryError" in done.stderr


def test_without_a_gpu_there_is_no_gpu_in_a_sample() -> None:
    gpus = Gpus("libdoesnotexist.so.1")
    assert (gpus.count, gpus.read()) == (0, {})


def test_tensorboard_gets_means_on_its_own_beat_and_rates_of_counters(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path, every_s=30.0)
    for second in range(0, 91):
        sink.write(Sample(1000.0 + second, "here", {"network/lo/in": 100.0 * second}))
    sink.close()
    (path,) = tmp_path.iterdir()
    assert path.read_bytes().count(b"profiler/here/network/lo/in") == 3


@pytest.mark.parametrize("interval_s", [0.5, 1, 2, 5, 10, 30])
def test_tensorboard_gets_a_point_each_half_minute_however_late_samples_are(
    tmp_path: Path, interval_s: float
) -> None:
    rng = random.Random(0)
    sink = TensorBoardSink(tmp_path)
    for beat in range(int(3600 / interval_s) + 1):
        now = beat * interval_s + rng.uniform(0.0, 0.25)
        sink.write(Sample(now, "here", {"memory/used": 1.0}))
    (path,) = tmp_path.iterdir()
    assert path.read_bytes().count(b"profiler/here/memory/used") == pytest.approx(120, rel=0.05)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"interval": 0}, "profile.interval must be a number of seconds"),
        ({"interval": True}, "profile.interval must be a number of seconds"),
        ({"sinks": ["csb"]}, "profile.sinks must be a list of csv and tensorboard"),
        ({"every": 1}, "unknown key of profile 'every'. Known: interval, sinks."),
        ("yes", "profile must be true, false or a mapping"),
    ],
    ids=["zero", "not-a-number", "sink", "key", "word"],
)
def test_a_wrong_profile_is_refused_with_what_must_hold(value: object, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace(".", r"\.")):
        Profile.parse(value)  # type: ignore[arg-type]


def test_nodes_of_one_run_write_files_of_their_own(tmp_path: Path) -> None:
    profile = Profile(interval_s=0.05, sinks=("csv",))
    for node in (0, 1):
        with profiling(profile, str(tmp_path), node=node):
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "resources-node1.csv",
        layout.RESOURCES,
    ]


def test_a_process_that_is_not_there_cannot_be_sampled() -> None:
    with pytest.raises(UsageError, match="must be in /proc"):
        Sampler(2**22 + 1)
