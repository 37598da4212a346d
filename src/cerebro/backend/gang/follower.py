"""A rank of a gang in a process of its own, as whoever starts it sees it.

A follower opens the task and the data of a `Setup`, comes to its leader (rank 0) at an address,
and then does what that says. It ends with one of the codes below. The leader starts those of its
own machine; an agent on another machine starts the others there, and starts one anew for as long
as it ends with `AGAIN`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import BinaryIO, Protocol

from cerebro.backend.arena import create_arena
from cerebro.backend.base import Opening, Setup
from cerebro.backend.opening import pack
from cerebro.backend.process import worker_environment
from cerebro.errors import UsageError
from cerebro.train.gang.place import GangPlace

#: The leader said that the work is over.
STOPPED = 0
#: It could not start, or found no leader in time; what went wrong is on its stderr.
FAILED = 1
#: It must not be started again as it is: it differs from its leader, and says so on its stderr.
REFUSED = 2
#: The gang broke: a rank died, or the task failed in one of them. The leader forms it anew.
AGAIN = 75

#: How long a follower looks for its leader.
JOIN_S = 300.0

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from cerebro.backend.gang.rank import main; main(sys.argv[2])"
)


class Parcel(Opening, Protocol):
    """A `Setup` inside of something that only the process which opens it looks into."""

    @property
    def gang(self) -> GangPlace | None: ...

    def unpack(self) -> Opening: ...


class FollowerProcess:
    """A follower's process. It ends with the process, and the thread, that started it."""

    def __init__(self, process: subprocess.Popen[bytes], lifeline: int, rank: int) -> None:
        self._process = process
        self._lifeline = lifeline
        self.rank = rank

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code (minus the signal that ended it), or None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Its exit code, or None if it still runs after so many seconds."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> int:
        """End it at once, with all that it has started, and give back what it held."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        return code


def start_follower(
    setup: Setup | Parcel,
    rank: int,
    *,
    seat: int,
    address: str = "",
    join_s: float = JOIN_S,
    log: BinaryIO | None = None,
) -> FollowerProcess:
    """Start one rank of the gang that `setup.gang` describes; returns at once.

    Args:
        setup: What the leader has, too; it goes to the process through memory that both share.
        rank: Its place in the gang, from 1 on.
        seat: Its place among the ranks of this machine, from 0 on: ranks with different seats use
            different devices, and the one with seat 0 compares shards with their digests.
        address: "host:port" of the leader; default that of `setup.gang`.
        join_s: How long it looks for its leader before it ends with `FAILED`.
        log: Where its output goes; default to ours.
    """
    gang = setup.gang
    if gang is None or not 1 <= rank < gang.size:
        size = 1 if gang is None else gang.size
        raise UsageError(f"`1 <= rank < {size}` must hold for a follower, but got rank={rank}.")
    setup_fd = create_arena()
    lifeline, ours = os.pipe()
    try:
        with open(setup_fd, "wb", closefd=False) as file:
            file.write(pack(setup))
        told = {
            "rank": rank,
            "seat": seat,
            "address": address or gang.address,
            "join_s": join_s,
            "setup_fd": setup_fd,
            "lifeline_fd": lifeline,
            "parent": os.getpid(),
        }
        paths = json.dumps([os.path.abspath(path) for path in sys.path])
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, paths, json.dumps(told)],
            pass_fds=[setup_fd, lifeline],
            env=worker_environment(setup.threads),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(setup_fd)
        os.close(lifeline)
    return FollowerProcess(process, ours, rank)
