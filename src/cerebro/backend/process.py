"""A worker process of the local backend as its driver sees it: start, end, what became of it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import BinaryIO

from cerebro.backend.pulse import Pulse

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from cerebro.backend.worker import main; main(*map(int, sys.argv[2:]))"
)
_STOP_S = 2.0
#: What malloc takes from its heap, the most that it allows; and frees only once more is unused.
_MAPPED_BYTES, _KEPT_BYTES = 32 << 20, 256 << 20


class WorkerProcess:
    """One process with a pipe to talk to it.

    Args:
        arena_fd: The shared memory of states.
        beat_s: How often it shows that it lives.
        patience_s: How long it may take to go on with a message that has begun.
        setup_fd: A file with the pickled `Setup`.
        log: Where its output goes; default to ours.
    """

    def __init__(
        self,
        index: int,
        *,
        arena_fd: int,
        setup_fd: int,
        threads: int,
        beat_s: float,
        patience_s: float,
        log: BinaryIO | None,
    ) -> None:
        ours, theirs = socket.socketpair()
        limit = struct.pack("ll", int(patience_s), int(patience_s % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, limit)
        lifeline, self._lifeline = os.pipe()
        self.pulse = Pulse()
        passed = [theirs.fileno(), arena_fd, setup_fd, self.pulse.fd, lifeline]
        paths = json.dumps([os.path.abspath(path) for path in sys.path])
        beat_ms = max(1, round(beat_s * 1000))
        arguments = [str(value) for value in (index, *passed, os.getpid(), beat_ms)]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, paths, *arguments],
                pass_fds=passed,
                env=worker_environment(threads),
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

    def terminate(self) -> None:
        """Ask it to end, and all that it has started, even if it is stopped."""
        self.pulse.end()
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, and all that it has started."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def reap(self) -> int:
        """End it if it does not end by itself, and all that it has started; its exit code."""
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
        self.pulse.close()
        return code


def worker_environment(threads: int) -> dict[str, str]:
    """OpenMP threads that spin for each other across processes cost 10-30x: fix their number.

    The order of sets of strings is fixed too: a task's vocabulary must not depend on its worker.
    Memory of gradients and activations, freed after each step, stays with the process unless the
    user has said otherwise: the system would clear it, page by page, for the next one.
    """
    count = str(threads)
    fixed = {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "PYTHONHASHSEED": "0"}
    kept = {
        "MALLOC_MMAP_THRESHOLD_": str(_MAPPED_BYTES),
        "MALLOC_TRIM_THRESHOLD_": str(_KEPT_BYTES),
    }
    return {**kept, **os.environ, **fixed}


def cause_of(code: int) -> str:
    """How a process with this exit code has ended.

    >>> cause_of(-9)
    'was killed by SIGKILL'
    """
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
