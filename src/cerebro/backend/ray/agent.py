"""The actor that stands for a rank of a gang other than its leader: it looks after a process."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import BinaryIO

from cerebro.backend.gang.follower import JOIN_S, FollowerProcess, start_follower
from cerebro.backend.ray.arrival import Doorstep, find_unseen, log_dir_of
from cerebro.backend.ray.cluster import in_group
from cerebro.backend.ray.orders import Blind, Charter, Handle, RankEnded, Refused
from cerebro.errors import CerebroError, WorkerError


class RayAgent:
    """Starts a follower when it is told to, and tells how it has ended; the driver decides.

    Args:
        worker: The number of the gang, as a worker of the run.
        rank: Its place in the gang, from 1 on.
    """

    def __init__(self, worker: int, rank: int) -> None:
        self._worker = worker
        self._rank = rank
        self._doorstep = Doorstep()
        self._lock = threading.Lock()
        self._turn = 0
        self._process: FollowerProcess | None = None

    @in_group("watch")
    def follow(
        self, charter: Charter, address: str, turn: int, relay: Handle | None = None
    ) -> RankEnded | Refused | Blind:
        """Start a follower that comes to its leader at an address, and wait until it has ended.

        Args:
            turn: Which follower of this rank it is.
        """
        try:
            unseen = find_unseen(charter)
            if unseen and relay is None:
                return Blind(socket.gethostname())
            process = self._start(charter, address, turn, unseen, relay)
        except CerebroError as error:
            return Refused(error)
        except Exception as error:
            return Refused(WorkerError(f"rank {self._rank} of a gang cannot start: {error!r}"))
        if process is None:
            return RankEnded(turn, None)
        process.wait()
        with self._lock:
            # What the task has started ends, too.
            code = process.kill()
            self._process = None
        return RankEnded(turn, code)

    @in_group("light")
    def dismiss(self, turn: int) -> None:
        """End that follower: its leader is gone, and it may hang."""
        with self._lock:
            if turn < self._turn:
                return
            self._turn = turn + 1
            if self._process is not None:
                self._process.kill()

    @in_group("light")
    def close(self) -> None:
        """End its process, and start no other."""
        self.dismiss(1 << 62)

    def _start(
        self,
        charter: Charter,
        address: str,
        turn: int,
        unseen: frozenset[str],
        relay: Handle | None,
    ) -> FollowerProcess | None:
        """A follower; None if it was dismissed before it began."""
        assert charter.gang is not None  # noqa: S101
        place = replace(charter.gang, local=1, address=address)
        parcel = self._doorstep.prepare(charter, unseen, relay, place)
        with self._log(charter) as log, self._lock:
            if turn < self._turn:
                return None
            self._turn = turn
            # Ray gives each actor the devices that are its own, so that it has the first seat.
            self._process = start_follower(
                parcel,
                self._rank,
                seat=0,
                join_s=max(JOIN_S, charter.limits.start_s),
                log=log,
            )
            return self._process

    def _log(self, charter: Charter) -> AbstractContextManager[BinaryIO | None]:
        """On the driver's machine, what it says goes where its leader's words go."""
        folder = log_dir_of(charter)
        if folder is None:
            return nullcontext()
        return open(os.path.join(folder, f"worker-{self._worker}.log"), "ab")
