"""Whether the system ends processes for want of memory: the counts it keeps of that."""

from __future__ import annotations

import re
from pathlib import Path

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def count_kills(root: Path = Path("/")) -> int:
    """Processes of this one's control group that were killed for want of memory so far.

    Where the group keeps no count, those of the whole machine; 0 where nobody counts.
    """
    for path in _counters(root):
        try:
            found = _COUNT.search(path.read_text())
        except (OSError, UnicodeError):
            continue
        if found:
            return int(found[1])
    return 0


def _counters(root: Path) -> list[Path]:
    """Files that may hold a count, the best first: of control groups 2, of 1, of the machine."""
    groups = root / "sys/fs/cgroup"
    found: list[Path] = []
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, UnicodeError):
        lines = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        # Inside a container the group may be mounted as the root of all.
        inside = (path.lstrip("/"), "")
        if not controllers:
            found += [groups / part / "memory.events" for part in inside]
        elif "memory" in controllers.split(","):
            found += [groups / "memory" / part / "memory.oom_control" for part in inside]
    return [*found, root / "proc/vmstat"]


class Killer:
    """Tells deaths for want of memory from others; each that was counted explains one death."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._explained = self.count()

    def count(self) -> int:
        """To be asked when a process starts."""
        return count_kills(self._root)

    def has_struck(self, before: int) -> bool:
        """Whether a process that was killed, and began at that count, died for want of memory."""
        if self.count() <= max(before, self._explained):
            return False
        self._explained += 1
        return True
