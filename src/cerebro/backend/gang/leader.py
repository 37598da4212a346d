"""Rank 0 of a gang: one worker to the driver, and to the other ranks the one who says what."""

from __future__ import annotations

import contextlib
import gc
import logging
import socket
import time
from dataclasses import replace
from typing import Any, cast

from cerebro.backend.base import Setup
from cerebro.backend.gang.ends import RankFailed, RankLost, unpack_failure
from cerebro.backend.gang.follower import AGAIN, JOIN_S, FollowerProcess, start_follower
from cerebro.backend.gang.identity import identify, require_join
from cerebro.backend.gang.interface import address_towards, listening_address
from cerebro.backend.gang.message import pack_call
from cerebro.backend.gang.rendezvous import split_address
from cerebro.backend.limits import Limits
from cerebro.errors import UsageError, WorkerError
from cerebro.train.gang.group import Gang, GangBroken
from cerebro.train.gang.meeting import Identity, Meeting
from cerebro.train.gang.place import GangPlace
from cerebro.train.runner import VisitRunner
from cerebro.train.visit import Allocate, Diverged, State, VisitCall, VisitReport
from cerebro.types import Json

logger = logging.getLogger("cerebro.backend")

_PATIENCE = 0.9
_LOOPBACK = "127.0.0.1"
#: How long a rank that has left may take to say why, or to end.
_LAST_WORDS_S = 5.0
#: How long followers may take to end when told to.
_STOP_S = 5.0


class GangRunner(VisitRunner):
    """Runs visits together with followers, which it starts on this machine and waits for on others.

    A gang in which a rank fails, or dies, is given up; the next visit begins with a new one.
    """

    def __init__(self, setup: Setup, worker: int) -> None:
        if setup.gang is None:
            raise UsageError("a gang must have a place, but got none.")
        self._setup = setup
        self._place: GangPlace = setup.gang
        self._first_seat = worker * self._place.local
        self._followers: list[FollowerProcess] = []
        self._meeting: Meeting | None = None
        self._gang: Gang | None = None
        end: Exception | None = None
        try:
            # They open the task and the data while this process does.
            self._call_together()
            super().__init__(
                setup.task,
                setup.data,
                data_digest=setup.data_digest,
                store=setup.store,
                device=setup.device,
                threads=setup.threads,
                worker=self._first_seat,
                ranks=self._place.size,
            )
            require_join(self)
            self._connect()
        except GangBroken as broken:
            end = self._find_end(str(broken))
            self._give_up()
        except BaseException:
            self._give_up()
            raise
        if end is not None:
            raise end

    def run(
        self, call: VisitCall, state: State | None, allocate: Allocate
    ) -> tuple[State | None, VisitReport]:
        if call.is_alone:
            return super().run(call, state, allocate)
        began, end = time.perf_counter(), None
        try:
            self._send({"visit": pack_call(replace(call, probe=False))}, state)
            sent_s = time.perf_counter() - began
            after, report = super().run(call, state, allocate)
        except Diverged:
            # All ranks have seen it, at the same step.
            raise
        except GangBroken as broken:
            end = self._find_end(str(broken))
            self._give_up()
        except BaseException:
            self._give_up()
            raise
        if end is not None:
            # Not as the broken gang's consequence: what that refers to would be kept.
            raise end
        return after, replace(report, hop_s=report.hop_s + sent_s)

    def free(self) -> None:
        super().free()
        if self._gang is not None:
            with contextlib.suppress(GangBroken):
                self._gang.send({"free": True})

    def close(self) -> None:
        if self._gang is not None:
            with contextlib.suppress(GangBroken):
                self._gang.send(None)
            deadline = time.monotonic() + _STOP_S
            for follower in self._followers:
                follower.wait(max(0.0, deadline - time.monotonic()))
        self._give_up()
        super().close()

    def _send(self, message: dict[str, Json], state: State | None) -> None:
        """Tell all ranks, in a new gang if the old one is gone."""
        if self._gang is not None and all(f.poll() is None for f in self._followers):
            try:
                self._gang.send(message, state)
            except GangBroken:
                pass
            else:
                return
        self._give_up()
        try:
            self._call_together()
            self._connect().send(message, state)
        except WorkerError as error:
            # No fault of the trial: the next leader may have more luck.
            self._give_up()
            raise RankLost() from error
        except GangBroken:
            # What has become of which rank is still to be found out.
            raise
        except BaseException:
            self._give_up()
            raise

    def _call_together(self) -> None:
        """Listen for the ranks, and start those of this machine."""
        place = self._place
        host, port = split_address(place.address) if place.address else (_LOOPBACK, 0)
        bound = listening_address(host)
        own_host = address_towards(host)
        # An error that somebody keeps may hold on to the last gang.
        gc.collect()
        listener = _listen(bound, port, place.address)
        # The number of a port that the system chose.
        port = listener.getsockname()[1]
        reached = bound or own_host
        self._meeting = Meeting(listener, reached, own_host, place.size)
        for rank in range(1, place.local):
            self._followers.append(
                start_follower(
                    self._setup,
                    rank,
                    seat=self._first_seat + rank,
                    address=f"[{reached}]:{port}" if ":" in reached else f"{reached}:{port}",
                    join_s=JOIN_S,
                )
            )

    def _connect(self) -> Gang:
        meeting, place = cast(Meeting, self._meeting), self._place
        # A little less than the driver waits for this worker, so that the reason is told.
        patience_s = _PATIENCE * Limits.from_environment().start_s
        ranks = meeting.assemble(identify(self, place, 0), patience_s, self._watch)
        for rank, identity in enumerate(ranks):
            if "failure" in identity:
                failed = cast("dict[str, Json]", identity["failure"])
                raise RankFailed(rank, unpack_failure(failed, rank))
        meeting.compare(ranks)
        self._gang = meeting.open(place.check_every, _road(ranks))
        cast(Any, self.framework).join(self._gang)
        return self._gang

    def _watch(self) -> None:
        """Raise if a follower of this machine has ended before it came."""
        for follower in self._followers:
            code = follower.poll()
            if code is not None:
                raise RankLost(follower.rank, code)

    def _find_end(self, broken: str) -> Exception:
        """What has become of the rank that left."""
        meeting, deadline = cast(Meeting, self._meeting), time.monotonic() + _LAST_WORDS_S
        while time.monotonic() < deadline:
            if (found := meeting.failure()) is not None:
                rank, failure = found
                return RankFailed(rank, unpack_failure(failure, rank))
            codes = {follower.rank: follower.poll() for follower in self._followers}
            for rank, code in codes.items():
                if code not in (None, AGAIN):
                    return RankLost(rank, code)
            if self._place.local == self._place.size and None not in codes.values():
                break
            time.sleep(0.01)
        logger.warning("%s", broken)
        return RankLost()

    def _give_up(self) -> None:
        """Leave the gang, and end the followers of this machine."""
        if self._gang is not None:
            cast(Any, self.framework).join(None)
            self._gang.close()
        for follower in self._followers:
            follower.kill()
        self._gang, self._meeting, self._followers = None, None, []


def _road(ranks: list[Identity]) -> str:
    """What gradients go over: NCCL needs a GPU for each rank."""
    devices = [str(identity["accelerator"]) for identity in ranks]
    return "nccl" if all(devices) and len(set(devices)) == len(devices) else "gloo"


def _listen(bound: str, port: int, address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # The last gang may have listened here a moment ago.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((bound, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"rank 0 of a gang must be able to listen at {address or bound}, but cannot "
            f"({error.strerror}). Choose another port."
        ) from error
    return listener
