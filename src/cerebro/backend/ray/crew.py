"""The workers of one start of the Ray backend, the calls they have and the states they left."""

from __future__ import annotations

import itertools
import logging
import queue
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, cast

from cerebro.backend.base import (
    Answered,
    Done,
    Event,
    Failed,
    Failure,
    FailureKind,
    Job,
    Joined,
    Lost,
    Posted,
    Source,
    StateRef,
)
from cerebro.backend.failure import describe_failure
from cerebro.backend.ray.cluster import Cluster, call
from cerebro.backend.ray.gang import GangMember
from cerebro.backend.ray.member import Ear, Flight, Member, Told
from cerebro.backend.ray.objects import Held
from cerebro.backend.ray.orders import (
    Answer,
    Blind,
    Charter,
    Commit,
    Ended,
    Handle,
    Order,
    Present,
    Refused,
    Visited,
)
from cerebro.backend.ray.relay import RayRelay
from cerebro.backend.ray.rounds import Rounds
from cerebro.backend.ray.trouble import cause_of, has_lost_actor, has_lost_state
from cerebro.backend.ray.vacancy import Vacancy, room, waiting
from cerebro.backend.wire import JobDone, VisitFailed
from cerebro.errors import CerebroError, StoreError, UsageError, WorkerError
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.train.visit import VisitCall

#: Actors that die in a row before they are ready, after which no other is made.
_START_ATTEMPTS = 3
_STOP_S = 5.0

logger = logging.getLogger("cerebro.backend")


class Crew:
    """Gives orders to actors and makes events of what they answer. For the driver's thread.

    Args:
        count: Workers to ask for at once.
        most: Up to so many are there in the end, if Ray finds room for them.
    """

    def __init__(self, cluster: Cluster, charter: Charter, count: int, most: float) -> None:
        self.cluster = cluster
        self.charter = charter
        self.batches = 0
        self._ear = Ear()
        self._charter: Handle = cluster.put(charter)
        #: An actor on this machine, for nodes that do not see the store or the dataset.
        self.relay: Handle | None = None
        self._most = most
        self._has_joined = False
        self._ready_by = time.monotonic() + charter.limits.start_s
        #: What became of the last worker that was lost.
        self._trouble = ""
        self._rounds = Rounds(charter.limits.heartbeat_s)
        self._vacancy = Vacancy()
        self._failed_starts: dict[int, int] = {}
        self._members: dict[int, Member] = {}
        self._held: dict[int, Held] = {}
        self._keys = itertools.count()
        #: Done when the workers are ended.
        self._over: Future[None] = Future()
        #: Calls for workers that had been lost by then.
        self._late: list[Event] = []
        for index in range(count):
            self._make(index)
        self._look_for_more()

    def submit(self, worker: int, call: VisitCall | Job, source: Source, *, consume: bool) -> None:
        held = None
        if isinstance(source, StateRef):
            held = self._held.pop(source.key) if consume else self._held[source.key]
        member = self._members.get(worker)
        if member is None or not member.is_ready:
            # It was lost after the caller last looked.
            cause = "was lost before the visit reached it"
            self._late.append(Lost(worker, call, cause, is_machine=True))
            return
        start = source if isinstance(source, CheckpointRef) else None
        if held is None:
            member.run(Order(life=member.life, call=call, source=start), None)
        else:
            member.run(Order(life=member.life, call=call, source=held.in_store), held.ref)

    def wait(self) -> list[Event]:
        """What happened since; waits until there is something."""
        while not self._late:
            said = self._next()
            if isinstance(said, Posted):
                return [said]
            if said is None:
                self._look_after()
                continue
            event = self._hear(said)
            if event is not None:
                return [event]
        found, self._late = self._late, []
        return found

    def post(self, posted: Posted) -> None:
        """Let it be among the events; from any thread."""
        self._ear.told.put(posted)

    def held(self, state: StateRef) -> Held:
        """Where a state is."""
        return self._held[state.key]

    def savings(self, held: Held, commit: Commit) -> Iterator[tuple[Member | None, Handle]]:
        """Ask one after another to write a state into the store; those next to it first.

        Whoever was asked, unless it was the relay, and the answer.
        """
        found = [member for member in list(self._members.values()) if member.sees_store]
        found = [member for member in found if member.is_ready]
        found.sort(key=lambda m: (m.index != held.worker, m.node != held.node, m.index))
        for member in found:
            actor = member.actor
            if actor is not None:
                yield member, call(actor, "save", commit, held.ref)
        if self.relay is not None:
            # Ray would ask it again unseen, and leave what it had half written.
            yield None, call(self.relay, "save", commit, held.ref, retries=0)

    def fetch(self, ref: Handle) -> Any:
        """What a reference stands for; from any thread, which waits no longer than there are
        workers.
        """
        answer: Future[Any] = ref.future()
        wait([answer, self._over], return_when=FIRST_COMPLETED)
        if not answer.done():
            raise StoreError("a state must be saved before the workers end, but was not.")
        return answer.result()

    def release(self, state: StateRef) -> None:
        del self._held[state.key]

    def stop(self) -> None:
        """End all workers, those too that were never placed."""
        self._over.set_result(None)
        placed = [member for member in self._members.values() if member.placed is not None]
        closing = [ref for member in placed for ref in member.close()]
        if closing:
            self.cluster.wait(closing, _STOP_S)
        for member in self._members.values():
            member.kill(self.cluster)
        if self.relay is not None:
            self.cluster.kill(self.relay)
        self._members.clear()
        self._held.clear()
        self._charter = self.relay = None
        self._ear.close(_STOP_S)

    def _make(self, index: int) -> None:
        if self.charter.gang is None:
            member = Member(index, self.cluster.make(index), self._ear)
        else:
            member = GangMember(index, self.cluster, self.charter.gang, self._ear)
        self._members[index] = member
        member.begin(self._charter)

    def _look_for_more(self) -> None:
        """Ask for one more worker than there is room for, as long as more may come."""
        if len(self._members) < self._most and all(m.placed for m in self._members.values()):
            self._make(max(self._members, default=-1) + 1)

    def _next(self) -> Told | Posted | None:
        """What comes next, if anything does before it is time to look after the actors."""
        is_vacant = not any(member.placed for member in self._members.values())
        if self._vacancy.note(time.monotonic(), is_vacant=is_vacant):
            logger.warning("%s", waiting(self.cluster, len(self._members), self._ranks))
        due = min(self._rounds.due if self._has_joined else self._ready_by, self._vacancy.due)
        try:
            return self._ear.told.get(timeout=max(0.0, due - time.monotonic()))
        except queue.Empty:
            return None

    def _look_after(self) -> None:
        """Nobody has said anything for a while."""
        now = time.monotonic()
        if self._has_joined and now >= self._rounds.due:
            self._go_round(now)
        elif not self._has_joined and now >= self._ready_by:
            raise WorkerError(
                f"a worker must be ready within {self.charter.limits.start_s:g} s, but none was. "
                f"{self._trouble or f'Does Ray have room? {room(self.cluster, self._ranks)}.'} "
                "CEREBRO_START_S gives it more time."
            )

    @property
    def _ranks(self) -> int:
        return 1 if self.charter.gang is None else self.charter.gang.size

    def _go_round(self, now: float) -> None:
        """Replace actors that do not answer any more."""
        patience_s = self.charter.limits.heartbeat_s
        for member in self._rounds.go(now, list(self._members.values())):
            event = self._replace(member, f"hung: no heartbeat for {patience_s:g} s")
            if event is not None:
                self._late.append(event)

    def _hear(self, told: Told) -> Event | None:
        member = told.member
        if self._members.get(member.index) is not member:
            # Of an actor that has been replaced.
            return None
        error = told.answer.exception()
        if error is not None:
            return self._miss(told, error)
        answer = told.answer.result()
        if told.what == "ping":
            self._rounds.hear(member)
            return None
        if told.what == "place":
            member.settle(answer, self._charter)
            self._look_for_more()
            return None
        if told.what == "join":
            return self._join(member, answer)
        if isinstance(member, GangMember) and told.what == "follow":
            cause = member.hear(told.rank, answer, self._charter, self._find_relay)
            # It may have been the task that ended a rank.
            return self._replace(member, cause, is_machine=False) if cause else None
        if told.what == "watch":
            return self._end(member, answer)
        return self._answer(member, told, answer)

    def _join(self, member: Member, said: Present | Refused | Blind) -> Event | None:
        if isinstance(said, Blind):
            try:
                relay = self._find_relay(said.host)
            except UsageError as error:
                if not self._has_joined:
                    raise
                return self._replace(member, f"could not start: {error}")
            member.join(self._charter, relay)
            return None
        if isinstance(said, Refused):
            if not self._has_joined and not said.is_of_node:
                raise said.error
            return self._replace(member, f"could not start: {said.error}", error=said.error)
        self._has_joined = True
        self._failed_starts.pop(member.index, None)
        if member.life < 0:
            # Later it is known better: whoever sees it may not write.
            member.sees_store = said.sees_store
        member.info, member.life = said.info, said.life
        member.watch()
        return Joined(said.info)

    def _find_relay(self, host: str) -> Handle:
        """Whoever reads and writes on the driver's machine for nodes that do not see the same."""
        if self.relay is None:
            places = {name: place.url for name, place in self.charter.places.items()}
            self.relay = self.cluster.make_near(RayRelay, places)
            logger.warning(
                "%s does not see %s as this machine does: shards and checkpoints go through Ray's "
                "object store. A store that all nodes see is faster.",
                host,
                " and ".join(places.values()),
            )
        return self.relay

    def _answer(self, member: Member, told: Told, answer: Answer) -> Event | None:
        self.batches += answer.batches
        flight = told.flight
        if flight is None or member.flight is not flight:
            return None
        message = answer.message
        if isinstance(message, Ended):
            return self._end(member, message)
        member.flight = None
        if isinstance(message, VisitFailed):
            return Failed(member.index, flight.call, message.failure)
        if isinstance(message, JobDone):
            return Answered(member.index, cast(Job, flight.call), message.answer)
        return self._done(member, flight, message)

    def _done(self, member: Member, flight: Flight, message: Visited) -> Done:
        state = None
        if message.state is not None:
            size, meta = message.state.bytes, message.state.meta
            state = StateRef(next(self._keys), size, meta)
            self._held[state.key] = Held(flight.result, size, meta, member.index, member.node)
        host = member.placed.host if member.placed is not None else ""
        return Done(member.index, cast(VisitCall, flight.call), message.report, state, host=host)

    def _end(self, member: Member, ended: Ended) -> Event | None:
        """The process of a worker has ended; its actor starts another."""
        if not member.is_ready or ended.life != member.life:
            return None
        cause = member.explain(ended.cause)
        event = self._lose(member, cause, is_memory=ended.is_memory, is_machine=ended.is_machine)
        member.rejoin(self._charter)
        return event

    def _miss(self, told: Told, error: BaseException) -> Event | None:
        """An actor is gone, or could not do what it was asked."""
        member, flight = told.member, told.flight
        if flight is not None:
            self.cluster.hush(flight.result)
        if not has_lost_actor(error) and flight is not None and member.flight is flight:
            member.flight = None
            return Failed(member.index, flight.call, _failure_of(error))
        cause, is_memory = cause_of(error)
        return self._replace(member, member.explain(cause, told.rank), is_memory=is_memory)

    def _replace(
        self,
        member: Member,
        cause: str,
        *,
        is_memory: bool = False,
        is_machine: bool = True,
        error: CerebroError | None = None,
    ) -> Event | None:
        """Another actor for a worker whose actor is of no use any more."""
        # The actor runs no code of the user's: it went with its node, or with what Ray has there.
        is_machine = is_machine and not is_memory
        event = self._lose(member, cause, is_memory=is_memory, is_machine=is_machine)
        member.kill(self.cluster)
        del self._members[member.index]
        if event is None:
            count = self._failed_starts.get(member.index, 0) + 1
            self._failed_starts[member.index] = count
            if count >= _START_ATTEMPTS:
                # Room is not what lacks: another would be started there, and fail too.
                self._most = min(self._most, len(self._members))
                self._give_up(count, error)
                return None
        self._make(member.index)
        return event

    def _lose(
        self, member: Member, cause: str, *, is_memory: bool, is_machine: bool = False
    ) -> Lost | None:
        """A worker is not ready any more."""
        self._trouble = f"The last one {cause}."
        if not member.is_ready:
            return None
        flight, member.flight, member.info = member.flight, None, None
        call = flight.call if flight else None
        return Lost(member.index, call, cause, is_memory, is_machine)

    def _give_up(self, count: int, error: CerebroError | None) -> None:
        """No other worker in that one's place; the run goes on while any is left."""
        text = f"workers must be able to start, but {count} in a row could not. {self._trouble}"
        # What a node lacks, another may have: who waits for room is still a hope then.
        left = self._members.values()
        if not any(member.is_ready or member.placed or error is not None for member in left):
            raise error or WorkerError(text)
        logger.warning("the run goes on with fewer workers: %s", text)


def _failure_of(error: BaseException) -> Failure:
    if has_lost_state(error):
        return Failure(
            kind=FailureKind.LOST_STATE,
            message="the state it was to start from is gone, with the node that had it",
            traceback="",
            signature="lost state",
            error=type(error).__name__,
        )
    return describe_failure(error)
