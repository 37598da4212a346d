from __future__ import annotations

import signal
from pathlib import Path

import pytest

from cerebro.backend.killer import Killer, count_kills
from cerebro.backend.local_worker import LocalWorker

V2 = "low 0\nhigh 0\nmax 31\noom 4\noom_kill {}\noom_group_kill 0\n"
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"


@pytest.fixture
def root(tmp_path) -> Path:
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_control_groups_2_count(root):
    write(root / "proc/self/cgroup", "0::/user.slice/job\n")
    write(root / "sys/fs/cgroup/user.slice/job/memory.events", V2.format(3))
    assert count_kills(root) == 3


def test_control_groups_1_count(root):
    write(root / "proc/self/cgroup", "12:cpu,cpuacct:/x\n4:memory:/slurm/job_7\n0::/other\n")
    write(root / "sys/fs/cgroup/memory/slurm/job_7/memory.oom_control", V1.format(2))
    assert count_kills(root) == 2


def test_in_a_container_the_group_may_be_the_root_of_what_is_seen(root):
    write(root / "proc/self/cgroup", "0::/../../kubepods/pod1/abc\n")
    write(root / "sys/fs/cgroup/memory.events", V2.format(1))
    assert count_kills(root) == 1


def test_without_a_group_the_machine_counts(root):
    write(root / "proc/vmstat", "nr_free_pages 1\noom_kill 9\nthp_fault_alloc 2\n")
    assert count_kills(root) == 9


def test_where_nobody_counts_there_are_none(root):
    assert count_kills(root) == 0


def test_this_machine_can_be_asked():
    assert count_kills() >= 0


def test_a_death_is_explained_by_a_count_that_rose_since_the_process_began(root):
    write(root / "proc/vmstat", "oom_kill 5\n")
    killer = Killer(root)
    before = killer.count()
    assert not killer.has_struck(before)
    write(root / "proc/vmstat", "oom_kill 6\n")
    assert killer.has_struck(before)
    # Somebody else has killed the next one.
    assert not killer.has_struck(before)


def test_two_deaths_at_once_are_both_explained(root):
    write(root / "proc/vmstat", "oom_kill 0\n")
    killer = Killer(root)
    write(root / "proc/vmstat", "oom_kill 2\n")
    assert killer.has_struck(0)
    assert killer.has_struck(0)
    assert not killer.has_struck(0)
    assert not killer.has_struck(killer.count())


class Ended:
    """A process that has ended with this code."""

    def __init__(self, code):
        self.code = code

    def reap(self):
        return self.code


@pytest.mark.parametrize(
    ("code", "kills", "ending", "told"),
    [
        (-signal.SIGKILL, 1, "", ("was killed: out of memory", True)),
        (-signal.SIGKILL, 0, "", ("was killed by SIGKILL", False)),
        (-signal.SIGSEGV, 1, "", ("was killed by SIGSEGV", False)),
        (-signal.SIGKILL, 1, "hung: no batch for 600 s", ("hung: no batch for 600 s", False)),
    ],
)
def test_a_worker_tells_what_became_of_it(root, code, kills, ending, told):
    write(root / "proc/vmstat", "oom_kill 0\n")
    killer = Killer(root)
    worker = LocalWorker(Ended(code), None, ready_by=0.0, kills=killer.count())
    worker.ending = ending
    write(root / "proc/vmstat", f"oom_kill {kills}\n")
    assert worker.reap(killer) == told
