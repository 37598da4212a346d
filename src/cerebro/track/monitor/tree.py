"""The processes that a process has started, and theirs: what they compute, hold and read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container, Iterator
from dataclasses import dataclass

from cerebro.track.monitor.files import ProcFile

#: After so many looks every process of the system is looked at again: a number may have been given
#: to another process meanwhile.
_LOOKS = 60
#: What a command line says about the part that a process has.
_ROLES = ((b"cerebro.backend.worker", "worker"), (b"cerebro.backend.gang", "follower"))
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Stat:
    """The line of a process in /proc, as far as it is wanted."""

    state: bytes
    parent: int
    cpu_s: float
    started: int
    rss_bytes: int


def parse_stat(line: bytes) -> Stat:
    """The content of /proc/PID/stat; a name may have spaces and brackets.

    >>> line = b"7 (a) b) S 3 7 7 0 -1 0 9 0 0 0 150 50 0 0 20 0 1 0 4711 8192 25 " + b"0 " * 28
    >>> parse_stat(line).parent, parse_stat(line).started
    (3, 4711)
    """
    fields = line[line.rindex(b")") + 2 :].split(None, 22)
    return Stat(
        state=fields[0],
        parent=int(fields[1]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICK,
        started=int(fields[19]),
        rss_bytes=int(fields[21]) * _PAGE,
    )


class Process:
    """A process of the tree; `read` says whether it is still there."""

    def __init__(self, pid: int, role: str | None) -> None:
        self.pid = pid
        self.role = role or _find_role(pid)
        # One that has just been forked still looks like its parent: look twice.
        self._is_settled = role is not None
        self._stat = ProcFile(f"/proc/{pid}/stat")
        self._io: ProcFile | None = None
        # Not everyone may see what processes of other people read.
        with contextlib.suppress(OSError):
            self._io = ProcFile(f"/proc/{pid}/io")
        try:
            self.started = parse_stat(self._stat.read()).started
        except OSError:
            self.close()
            raise
        self.cpu_s = 0.0
        self.rss_bytes = 0
        self.read_bytes = 0
        self.written_bytes = 0

    def read(self) -> bool:
        """Look at it anew."""
        try:
            stat = parse_stat(self._stat.read())
            if stat.state in b"ZX" or stat.started != self.started:
                return False
            self.cpu_s, self.rss_bytes = stat.cpu_s, stat.rss_bytes
            if self._io is not None:
                self._read_io(self._io)
        except OSError:
            return False
        if not self._is_settled:
            self.role, self._is_settled = _find_role(self.pid), True
        return True

    def pss_bytes(self) -> int:
        """Its memory, of shared pages its share; 0 where the system does not tell."""
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
        return 0

    def close(self) -> None:
        self._stat.close()
        if self._io is not None:
            self._io.close()

    def _read_io(self, io: ProcFile) -> None:
        for line in io.read().splitlines():
            name, _, value = line.partition(b": ")
            if name == b"read_bytes":
                self.read_bytes = int(value)
            elif name == b"write_bytes":
                self.written_bytes = int(value)


class Tree:
    """A process and all that come from it, found by their parents.

    Reading all processes of a machine each time would be most of the cost: only those are looked
    at that are new since the last time, and only if the system has started any.

    Args:
        skip: Processes that do not count.
    """

    def __init__(self, root: int, skip: Container[int] = ()) -> None:
        self._skip = skip
        self._members = {root: Process(root, "main")}
        self._strangers: set[int] = set()
        self._loadavg = ProcFile("/proc/loadavg")
        self._newest = b""
        self._looks = 0
        #: Of those that have ended.
        self.ended_cpu_s: dict[str, float] = {}
        self.ended_read_bytes = 0
        self.ended_written_bytes = 0

    def read(self) -> list[Process]:
        """Those that are there, read anew."""
        self._look_for_new()
        for pid, process in list(self._members.items()):
            if not process.read():
                self._end(pid)
        return list(self._members.values())

    def close(self) -> None:
        for process in self._members.values():
            process.close()
        self._loadavg.close()

    def _end(self, pid: int) -> None:
        process = self._members.pop(pid)
        ended = self.ended_cpu_s
        ended[process.role] = ended.get(process.role, 0.0) + process.cpu_s
        self.ended_read_bytes += process.read_bytes
        self.ended_written_bytes += process.written_bytes
        process.close()

    def _look_for_new(self) -> None:
        # The last word is the number that was given out last.
        newest = self._loadavg.read().rsplit(None, 1)[-1]
        if newest == self._newest:
            return
        self._newest = newest
        self._looks += 1
        if self._looks % _LOOKS == 0:
            self._strangers.clear()
        present = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
        self._strangers &= present
        parents = dict(self._parents(present - self._strangers - self._members.keys()))
        ours = self._descendants(parents)
        self._strangers |= parents.keys() - ours
        for pid in ours:
            # It may be gone already.
            with contextlib.suppress(OSError):
                self._members[pid] = Process(pid, None)

    def _parents(self, pids: set[int]) -> Iterator[tuple[int, int]]:
        for pid in pids:
            if pid in self._skip:
                continue
            with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb", 0) as file:
                yield pid, parse_stat(file.read(1024)).parent

    def _descendants(self, parents: dict[int, int]) -> set[int]:
        found: set[int] = set()
        while new := {
            pid
            for pid, parent in parents.items()
            if pid not in found and (parent in self._members or parent in found)
        }:
            found |= new
        return found


def _find_role(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        command = file.read(4096)
        return next((role for sign, role in _ROLES if sign in command), "other")
    return "other"
