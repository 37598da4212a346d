"""Rank 0 of a gang: one worker to the driver, and to the other ranks the one who says what."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from cerebro.backend.base import Setup
from cerebro.backend.gang.ends import RankFailed, RankLost, unpack_failure
from cerebro.backend.gang.follower import AGAIN, FollowerProcess
from cerebro.backend.gang.gathering import Gathering
from cerebro.backend.gang.identity import identify, require_join
from cerebro.backend.gang.message import pack_call
from cerebro.backend.limits import Limits
from cerebro.errors import WorkerError
from cerebro.train.gang.group import Gang, GangBroken
from cerebro.train.gang.meeting import Identity, Meeting
from cerebro.train.gang.place import GangPlace
from cerebro.train.runner import VisitRunner
from cerebro.train.visit import (
    Allocate,
    Diverged,
    State,
    Survey,
    SurveyCall,
    VisitCall,
    VisitReport,
)
from cerebro.types import Json

logger = logging.getLogger("cerebro.backend")

#: How long a rank that has left may take to say why, or to end.
_LAST_WORDS_S = 5.0
#: How long followers may take to end when told to.
_STOP_S = 5.0


class GangRunner(VisitRunner):
    """Runs visits together with followers, which it starts on this machine and waits for on others.

    A gang in which a rank fails, or dies, is given up; the next visit begins with a new one.
    """

    def __init__(self, setup: Setup, gathering: Gathering, first_seat: int) -> None:
        self._setup = setup
        self._place = cast(GangPlace, setup.gang)
        self._first_seat = first_seat
        self._followers: list[FollowerProcess] = []
        self._meeting: Meeting | None = None
        self._gang: Gang | None = None
        end: Exception | None = None
        try:
            self._meet(gathering)
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
            with self._alone():
                return super().run(call, state, allocate)
        began, end = time.perf_counter(), None
        try:
            self._send({"visit": pack_call(replace(call, probe=False))}, state)
            sent_s = time.perf_counter() - began
            with cast(Gang, self._gang).whole():
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
        return after, replace(report, hop_s=report.hop_s + sent_s, send_s=sent_s)

    def survey(self, call: SurveyCall) -> Survey:
        with self._alone():
            return super().survey(call)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """The task is told what it would be told without a gang."""
        self._tell_facts(1)
        try:
            yield
        finally:
            self._tell_facts(self._place.size)

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
            self._meet(Gathering(self._setup, self._first_seat))
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

    def _meet(self, gathering: Gathering) -> None:
        self._followers = gathering.followers
        self._meeting = Meeting(
            gathering.listener, gathering.host, gathering.own_host, self._place.size
        )

    def _connect(self) -> Gang:
        meeting, place = cast(Meeting, self._meeting), self._place
        patience_s = Limits.from_environment().gather_s
        ranks = meeting.assemble(identify(self, place, 0), patience_s, self._watch)
        for rank, identity in enumerate(ranks):
            if "failure" in identity:
                failed = cast("dict[str, Json]", identity["failure"])
                raise RankFailed(rank, unpack_failure(failed, rank))
        meeting.compare(ranks)
        self._gang = meeting.open(place.check_every, _road(ranks), self._watch)
        cast(Any, self.framework).join(self._gang)
        return self._gang

    def _watch(self) -> None:
        """Raise if a follower of this machine has ended before it came."""
        for follower in self._followers:
            code = follower.poll()
            if code is not None:
                raise RankLost(follower.rank, code)

    def _find_end(self, broken: str) -> Exception:
        """Leave, too, and find out what has become of the rank that left."""
        self._leave()
        meeting, deadline = cast(Meeting, self._meeting), time.monotonic() + _LAST_WORDS_S
        while time.monotonic() < deadline:
            # In this order: who has ended has said before what there was to say.
            codes = {follower.rank: follower.poll() for follower in self._followers}
            if (found := meeting.failure()) is not None:
                rank, failure = found
                return RankFailed(rank, unpack_failure(failure, rank))
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
        self._leave()
        for follower in self._followers:
            follower.kill()
        self._meeting, self._followers = None, []

    def _leave(self) -> None:
        if self._gang is not None:
            cast(Any, self.framework).join(None)
            self._gang.close()
        self._gang = None


def _road(ranks: list[Identity]) -> str:
    """What gradients go over: NCCL needs a GPU for each rank."""
    devices = [str(identity["accelerator"]) for identity in ranks]
    return "nccl" if all(devices) and len(set(devices)) == len(devices) else "gloo"
