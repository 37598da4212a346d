"""On a machine without rank 0: starts the ranks of this machine, anew where needed, until the end.

The agent reports to the muster of rank 0 (`cerebro.backend.gang.muster`) and hears from it where
the gang meets, and how the run has ended. Ranks themselves talk to the leader of the gang alone.
"""

from __future__ import annotations

import logging
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

from cerebro.backend.base import Setup
from cerebro.backend.gang import follower as followers
from cerebro.backend.gang.muster import announce, surroundings
from cerebro.backend.gang.outcome import word_of
from cerebro.backend.gang.post import WORD, Post, clean_line
from cerebro.backend.gang.ranks import Rank
from cerebro.backend.gang.rendezvous import Kind, Rendezvous
from cerebro.backend.gang.seek import find_muster
from cerebro.backend.process import cause_of
from cerebro.errors import CerebroError, RunInterrupted, WorkerError

#: How long rank 0 may take to save and end after this machine was asked to stop.
STOP_S = 45.0
#: How long a rank that was told to end waits for the word that the run is over.
WORD_S = 2.0
#: The same of one whose gang broke: it may have been left in the middle of a visit.
AGAIN_S = 1.0
#: How long rank 0 may take to tell why it did not want a rank of ours.
BLAME_S = 30.0
_LOOK_S = 0.2
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

logger = logging.getLogger("cerebro.gang")


def serve(rendezvous: Rendezvous, run: str, make_setup: Callable[[str], Setup]) -> None:
    """Give a run the ranks of this machine; returns when it has ended well.

    Args:
        rendezvous: Of a process without rank 0.
        run: The name of the run.
        make_setup: What ranks open, for the address where the gang meets.

    Raises an error with the exit code of rank 0 if that has ended with one.
    """
    with _Signals() as signals, surroundings(rendezvous.patience_s):
        agent = _Agent(rendezvous, run, make_setup, signals)
        rendezvous.met.set()
        try:
            code = agent.serve()
        finally:
            agent.close()
    if code:
        raise _ended(code)


def _with_threads(setup: Setup, threads: int) -> Setup:
    """The same with as many threads for each rank as rank 0 has: what a run is recorded with."""
    if threads > setup.threads:
        logger.warning(
            "each rank has %d threads, as rank 0 has, but here there would be cores for %d: ranks "
            "wait for each other. As many ranks on each machine, or fewer threads "
            "(device.intra_threads, threads_per_worker), are faster.",
            *(threads, setup.threads),
        )
    return replace(setup, threads=threads)


def _ended(code: int) -> CerebroError:
    """What this process ends with, as rank 0 has."""
    error: CerebroError
    if code in (75, 130):
        error = RunInterrupted("stopped, as rank 0 is; its state is saved there.")
    else:
        error = WorkerError(f"rank 0 has ended with code {code}; it says why.")
    error.exit_code = code
    return error


class _Agent:
    def __init__(
        self,
        rendezvous: Rendezvous,
        run: str,
        make_setup: Callable[[str], Setup],
        signals: _Signals,
    ) -> None:
        self._rendezvous = rendezvous
        self._run = run
        self._make_setup = make_setup
        self._signals = signals
        self._ranks: dict[int, Rank] = {}
        #: Rank 0 knows why this process ends.
        self._is_told = False

    def serve(self) -> int:
        """The exit code of rank 0."""
        while True:
            with find_muster(self._rendezvous, self._run, self._signals.check_alone) as post:
                try:
                    code = self._work(post)
                except (CerebroError, OSError) as error:
                    self._tell(post, error)
                    raise
            self.close()
            if code is not None:
                return code
            self._signals.check_alone()
            if self._rendezvous.kind is not Kind.FLAGS:
                # Launchers start a process once.
                raise WorkerError("rank 0 is gone without a word: it was killed, or has crashed.")
            logger.warning("rank 0 is gone without a word: waiting for it to be started again.")

    def _tell(self, post: Post, error: CerebroError | OSError) -> None:
        """Let rank 0 know why this process ends, unless people start it again or stop it."""
        is_launched = self._rendezvous.kind is not Kind.FLAGS
        if is_launched and not self._is_told and not isinstance(error, RunInterrupted):
            post.say({"failed": f"rank {self._rendezvous.first} cannot go on: {word_of(error)}"})

    def close(self) -> None:
        for rank in self._ranks.values():
            rank.end()
        self._ranks.clear()

    def _work(self, post: Post) -> int | None:
        """Keep ranks going; the code of rank 0, or None if it is gone."""
        setup = _with_threads(self._make_setup(post.gang), post.threads)
        own = self._rendezvous
        for number in range(own.first, own.first + own.local):
            seat = own.position + number - own.first
            rank = Rank(setup, number, seat, post.gang, own.patience_s)
            self._ranks[number] = rank
            announce(number, own.world, rank.pid)
        is_asked = False
        limit = _Limit()
        while True:
            try:
                word = post.hear(_LOOK_S)
            except EOFError:
                return None
            if word is not None and isinstance(word.get("done"), int):
                if word.get("word"):
                    logger.info("the run has ended: %s", clean_line(str(word["word"]), WORD))
                return int(word["done"])
            if word is not None and "spare" in word:
                logger.info("rank 0 trains alone: this machine waits for the end of the run.")
                self.close()
            if self._signals.number is not None and not is_asked:
                is_asked = True
                logger.info("asked to stop: rank 0 saves and ends the run. Again: ends at once.")
                post.say({"stop": self._signals.number})
                limit.set(STOP_S, self._signals.interruption())
            limit.check()
            for rank in self._ranks.values():
                self._look_after(rank, post, limit)

    def _look_after(self, rank: Rank, post: Post, limit: _Limit) -> None:
        """Start a rank that has ended again, unless that is of no use."""
        code = rank.poll()
        if code is None or rank.is_given_up:
            return
        word_s = {followers.STOPPED: WORD_S, followers.AGAIN: AGAIN_S}.get(code, 0.0)
        if rank.seconds_since_end() < word_s:
            return
        if code == followers.REFUSED or rank.has_failed(code):
            rank.is_given_up = True
            told = f"rank {rank.number} on {socket.gethostname()} cannot join the gang"
            post.say({"failed": f"{told}; its output there says why."})
            self._is_told = True
            limit.set(BLAME_S, WorkerError(f"{told}; see above."))
            return
        if code != followers.STOPPED:
            how = "its gang broke" if code == followers.AGAIN else f"it {cause_of(code)}"
            told = f"rank {rank.number} starts again: {how}."
            logger.warning("%s", told)
            if code != followers.AGAIN:
                post.say({"again": told})
        rank.start()
        logger.info("rank %d is started again (pid %d)", rank.number, rank.pid)


class _Limit:
    """A time after which waiting ends with an error; the first that is set counts."""

    def __init__(self) -> None:
        self._deadline: float | None = None
        self._error: BaseException | None = None

    def set(self, seconds: float, error: BaseException) -> None:
        if self._deadline is None:
            self._deadline, self._error = time.monotonic() + seconds, error

    def check(self) -> None:
        is_over = self._deadline is not None and time.monotonic() > self._deadline
        if is_over and self._error is not None:
            raise self._error


class _Signals:
    """Remembers the first request to stop; a second one ends this process at once."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in _STOP_SIGNALS}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check_alone(self) -> None:
        """There is nobody to tell: end."""
        if self.number is not None:
            raise self.interruption()

    def interruption(self) -> RunInterrupted:
        error = RunInterrupted("stopped; rank 0 is not on this machine and may go on waiting.")
        error.exit_code = 130 if self.number == signal.SIGINT else 75
        return error

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            raise self.interruption()
        self.number = number
