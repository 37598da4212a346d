"""One look at everything: the machine, a tree of processes, the GPUs."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import dataclass, field

from cerebro.errors import UsageError
from cerebro.track.monitor.files import ProcFile, Total
from cerebro.track.monitor.gpu import Gpus
from cerebro.track.monitor.tree import Process, Tree

_TICK = os.sysconf("SC_CLK_TCK")
_SECTOR = 512
#: Of less time than this the ticks of processors say nothing.
_SHORT_S = 0.05
#: Devices that stand for others, or for memory.
_VIRTUAL = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
#: Shares of shared pages are dear to count: at most this part of the time goes into that.
_PSS_SHARE = 0.004
#: Quantities that are totals since the monitor began; all others are what is now.
COUNTERS = ("disk/", "network/")


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen at one moment.

    Processors are in percent of one core, memory, disks and networks in bytes, power in watts.
    Disks and networks are totals since the monitor began.
    """

    time_s: float
    host: str
    values: dict[str, float] = field(default_factory=dict)


class Sampler:
    """Looks at a machine and at the tree below `pid`.

    >>> sampler = Sampler(os.getpid(), host="here")
    >>> sample = sampler.sample()
    >>> sample.host, sample.values["memory/tree_rss"] > 1e6
    ('here', True)
    >>> sampler.close()
    """

    def __init__(self, pid: int, *, host: str | None = None) -> None:
        if not os.path.exists(f"/proc/{pid}/stat"):
            raise UsageError(
                f"a process to look at must be in /proc, but process {pid} is not: it has ended, "
                "or this system is not Linux."
            )
        self._host = host or socket.gethostname()
        self._tree = Tree(pid, skip={os.getpid()} - {pid})
        self._gpus = Gpus()
        self._stat = ProcFile("/proc/stat")
        self._memory = ProcFile("/proc/meminfo")
        # Through the process: it may have a network of its own, which ends with it.
        self._network: ProcFile | None = None
        with contextlib.suppress(OSError):
            self._network = ProcFile(f"/proc/{pid}/net/dev")
        self._disks = ProcFile("/proc/diskstats")
        self._whole = set(os.listdir("/sys/block")) if os.path.isdir("/sys/block") else set()
        self._totals: dict[str, Total] = {}
        self._last: tuple[float, float] | None = None
        self._cpu_s: dict[str, float] = {}
        self._pss_due = 0.0
        self._pss_bytes = 0.0

    @property
    def gpus(self) -> int:
        return self._gpus.count

    def sample(self) -> Sample:
        """Look now. Processors are told from the second time on: of the time since the first."""
        values: dict[str, float] = {}
        now = time.monotonic()
        processes = self._tree.read()
        self._look_at_cpu(now, processes, values)
        self._look_at_memory(values)
        if processes:
            self._look_at_tree_memory(now, processes, values)
        self._look_at_disks(processes, values)
        self._look_at_networks(values)
        values.update(self._gpus.read())
        return Sample(time.time(), self._host, values)

    def close(self) -> None:
        self._tree.close()
        self._gpus.close()
        for file in (self._stat, self._memory, self._network, self._disks):
            if file is not None:
                file.close()

    def _look_at_cpu(self, now: float, processes: list[Process], into: dict[str, float]) -> None:
        system_s = _busy_s(self._stat.read())
        spent = {f"cpu/{role}": s for role, s in self._tree.ended_cpu_s.items()}
        for process in processes:
            key = f"cpu/{process.role}"
            spent[key] = spent.get(key, 0.0) + process.cpu_s
        if processes:
            spent["cpu/tree"] = sum(spent.values())
        for process in processes:
            spent[f"process/{process.role}-{process.pid}/cpu"] = process.cpu_s
        if self._last is not None:
            then, before_s = self._last
            passed = now - then
            if passed < _SHORT_S:
                return
            into["cpu/system"] = max(0.0, 100 * (system_s - before_s) / passed)
            for what, seconds in spent.items():
                # A process whose part was found out late takes what it had done along.
                gained = seconds - self._cpu_s.get(what, 0.0 if "process" in what else seconds)
                into[what] = max(0.0, 100 * gained / passed)
        self._last, self._cpu_s = (now, system_s), spent

    def _look_at_memory(self, into: dict[str, float]) -> None:
        total = available = 0
        for line in self._memory.read().split(b"\n", 4)[:4]:
            if line.startswith(b"MemTotal:"):
                total = int(line.split()[1])
            elif line.startswith(b"MemAvailable:"):
                available = int(line.split()[1])
        into["memory/system_used"] = 1024.0 * (total - available)

    def _look_at_tree_memory(
        self, now: float, processes: list[Process], into: dict[str, float]
    ) -> None:
        into["memory/tree_rss"] = float(sum(process.rss_bytes for process in processes))
        for process in processes:
            into[f"process/{process.role}-{process.pid}/rss"] = float(process.rss_bytes)
        if now >= self._pss_due:
            began = time.thread_time()
            self._pss_bytes = float(sum(process.pss_bytes() for process in processes))
            self._pss_due = now + (time.thread_time() - began) / _PSS_SHARE
        into["memory/tree_pss"] = self._pss_bytes

    def _look_at_disks(self, processes: list[Process], into: dict[str, float]) -> None:
        read = written = 0
        for line in self._disks.read().splitlines():
            fields = line.split(None, 10)
            name = fields[2].decode()
            if name in self._whole and not name.startswith(_VIRTUAL):
                read += int(fields[5]) * _SECTOR
                written += int(fields[9]) * _SECTOR
        tree = self._tree
        ours = sum(p.read_bytes for p in processes) + tree.ended_read_bytes
        ours_written = sum(p.written_bytes for p in processes) + tree.ended_written_bytes
        for what, count in (
            ("disk/read", read),
            ("disk/written", written),
            ("disk/tree_read", ours),
            ("disk/tree_written", ours_written),
        ):
            into[what] = self._total(what, count)

    def _look_at_networks(self, into: dict[str, float]) -> None:
        if self._network is None:
            return
        try:
            lines = self._network.read().splitlines()[2:]
        except OSError:  # the process has ended, and its network with it
            return
        for line in lines:
            name, _, rest = line.partition(b":")
            fields = rest.split(None, 9)
            what = f"network/{name.decode().strip()}"
            into[f"{what}/in"] = self._total(f"{what}/in", int(fields[0]))
            into[f"{what}/out"] = self._total(f"{what}/out", int(fields[8]))

    def _total(self, what: str, count: int) -> float:
        return float(self._totals.setdefault(what, Total()).follow(count))


def _busy_s(stat: bytes) -> float:
    """Seconds that all processors together were not idle; guests are counted as users."""
    fields = [int(field) for field in stat.split(b"\n", 1)[0].split()[1:9]]
    user, nice, system, _, _, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / _TICK
