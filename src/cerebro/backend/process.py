"""A worker process of the local backend as its driver sees it: start, end, what became of it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import BinaryIO

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from cerebro.backend.worker import main; main(*map(int, sys.argv[2:]))"
)
_STOP_S = 2.0


class WorkerProcess:
    """One process with a pipe to talk to it.

    Args:
        arena_fd: The shared memory of states.
        setup_fd: A file with the pickled `Setup`.
        log: Where its output goes; default to ours.
    """

    def __init__(
        self, index: int, *, arena_fd: int, setup_fd: int, threads: int, log: BinaryIO | None
    ) -> None:
        ours, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        passed = [theirs.fileno(), arena_fd, setup_fd, lifeline]
        paths = json.dumps([os.path.abspath(path) for path in sys.path])
        arguments = [str(value) for value in (index, *passed, os.getpid())]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, paths, *arguments],
                pass_fds=passed,
                env=_environment(threads),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        finally:
            theirs.close()
            os.close(lifeline)
        self.connection = Connection(ours.detach())
        #: Readable once the process has ended, even if the other end of its pipe lives on in a
        #: process that the task has forked; None where the system has no such thing.
        self.ended_fd = os.pidfd_open(self._process.pid) if sys.platform == "linux" else None

    def kill(self) -> None:
        """End it at once, and all that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def reap(self) -> str:
        """End it if it does not end by itself, and all that it has started; how it ended."""
        with contextlib.suppress(OSError):
            self.connection.close()
        if self.ended_fd is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_S)
        else:
            # Not reaped before its group is ended: so long the group's number is its own.
            with selectors.DefaultSelector() as selector:
                selector.register(self.ended_fd, selectors.EVENT_READ)
                selector.select(_STOP_S)
            os.close(self.ended_fd)
        self.kill()
        code = self._process.wait()
        os.close(self._lifeline)
        return _cause_of(code)


def _environment(threads: int) -> dict[str, str]:
    """OpenMP threads that spin for each other across processes cost 10-30x: fix their number.

    The order of sets of strings is fixed too: a task's vocabulary must not depend on its worker.
    """
    count = str(threads)
    fixed = {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "PYTHONHASHSEED": "0"}
    return {**os.environ, **fixed}


def _cause_of(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
