"""What to say when the memory of this machine is not enough."""

from __future__ import annotations

import os
import resource
import sys

#: A unit of `ru_maxrss`.
_MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024


def gigabytes(size: int) -> str:
    """A number of bytes for people.

    >>> gigabytes(3 << 29)
    '1.5 GiB'
    """
    return f"{size / 2**30:.1f} GiB"


def host_memory() -> str:
    """The most that this process has used, and what there is."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES
    return f"at most {gigabytes(peak)} of the host's {gigabytes(host_bytes())}"


def host_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def explain_memory(used: str, error: BaseException, hint: str) -> str:
    """The message of an `OutOfMemory`."""
    lines = str(error).splitlines()
    said = f": {lines[0]}" if lines and lines[0] else ""
    return (
        f"out of memory: the worker had used {used} when it asked for more "
        f"({type(error).__name__}{said}). {hint}"
    )
