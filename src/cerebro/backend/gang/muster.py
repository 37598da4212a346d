"""On the machine of rank 0: where the agents of other machines report, and hear how a run ends.

A line of JSON each way, then silence until the end: the connection itself shows that both live.
Nothing that is read here is ever executed, and nobody is told more than an address and a number.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cerebro.backend.gang.hello import gives_up, name_ranks, objection
from cerebro.backend.gang.interface import address_towards, listening_address
from cerebro.backend.gang.notice import Notice
from cerebro.backend.gang.outcome import exit_code_of, is_stop
from cerebro.backend.gang.post import WORD, Post, clean_line
from cerebro.backend.gang.rendezvous import Kind, Rendezvous, join_address, split_address
from cerebro.backend.gang.torchrun import publish
from cerebro.backend.limits import START, Limits
from cerebro.errors import UsageError, WorkerError

#: At the end of a run, processes that a launcher has started are waited for so long: they would
#: wait for rank 0 in vain. Those that people start may as well wait for the next run.
LINGER_S = 30.0
#: How often it is said who is missing.
REMIND_S = 60.0
_PAUSE_S = 0.2
_ANSWER_S = 10.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

logger = logging.getLogger("cerebro.gang")


@dataclass(slots=True)
class _Agent:
    """One connection; its ranks are known once it has said hello."""

    post: Post
    since: float
    first: int = 0
    local: int = 0
    host: str = ""
    #: It knows that its ranks are not needed.
    is_spared: bool = False

    @property
    def ranks(self) -> range:
        return range(self.first, self.first + self.local)


@contextlib.contextmanager
def mustered(rendezvous: Rendezvous, run: str, threads: int = 1) -> Iterator[Muster]:
    """A muster for the time of one run; agents end with the code that this block ends with."""
    muster = Muster(rendezvous, run, patience_s=rendezvous.patience_s, threads=threads)
    rendezvous.met.set()
    code, is_stopped = 0, False
    try:
        with surroundings(rendezvous.patience_s):
            yield muster
    except BaseException as error:
        code, is_stopped = exit_code_of(error), is_stop(error)
        raise
    finally:
        muster.dismiss(code, is_stopped=is_stopped)


@contextlib.contextmanager
def surroundings(patience_s: float) -> Iterator[None]:
    """What the processes of ranks are to find in their environment, where the user says nothing.

    A leader waits for the last rank, which may come when patience is almost over and then starts.
    PyTorch warns of every peer whose address has no name, which is no one's concern.
    """
    start_s = Limits.start_for(patience_s + Limits().start_s)
    wanted = {START: str(start_s), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


class Muster:
    """Waits at the address of a rendezvous for the agents of all ranks that are not here.

    Args:
        rendezvous: Of the process with rank 0.
        run: The name of the run: agents of another are sent away.
        patience_s: How long it may take until all have come; then the run must end.
        threads: Of each rank, wherever it is: sums depend on it.
    """

    def __init__(
        self, rendezvous: Rendezvous, run: str, *, patience_s: float = math.inf, threads: int = 1
    ) -> None:
        self._rendezvous = rendezvous
        self._threads = threads
        self._run = run
        self._patience_s = patience_s
        host, port = split_address(rendezvous.address)
        own = address_towards(host)
        if rendezvous.is_borrowed:
            host, port = own, 0
        bound = listening_address(host)
        self._server = _listen(bound, port, host)
        self._agents: list[_Agent] = []
        self._code: int | None = None
        #: Where agents report.
        self.address = join_address(host, self._server.getsockname()[1])
        #: Where the ranks of the gang meet: told to agents.
        self.gang = join_address(own, _free_port(bound))
        self._stops: Notice[int] = Notice()
        self._failures: Notice[WorkerError] = Notice()
        #: What people on the other machines are told at the end.
        self.word = ""
        self._is_stopping = False
        self._is_alone = False
        #: Some have been waited for long enough.
        self._is_given_up = False
        self._came: set[int] = set()
        self._refusals: set[str] = set()
        self._wake, waker = socket.socketpair()
        self._waker = waker
        if rendezvous.is_borrowed:
            publish(rendezvous, run, self.address)
        self._thread = threading.Thread(target=self._serve, name="muster", daemon=True)
        self._thread.start()
        if rendezvous.kind is Kind.FLAGS:
            others = range(rendezvous.local, rendezvous.world)
            logger.info("waiting for %s at %s", name_ranks(others), self.address)

    @property
    def on_stop(self) -> Callable[[int], None]:
        """Called on the muster's thread with the first signal that an agent got.

        What came before it was set is told at once, even if another callback was told, too.
        """
        return self._stops.tell

    @on_stop.setter
    def on_stop(self, callback: Callable[[int], None]) -> None:
        self._stops.hand_to(callback)

    @property
    def on_failure(self) -> Callable[[WorkerError], None]:
        """The same, with an error that the run must end with."""
        return self._failures.tell

    @on_failure.setter
    def on_failure(self, callback: Callable[[WorkerError], None]) -> None:
        def pass_on(error: WorkerError) -> None:
            # It may have been told before it was known who is needed.
            if self._is_alone:
                logger.info("%s It is not needed.", error)
            else:
                callback(error)

        self._failures.hand_to(pass_on)

    def hold(self) -> None:
        """Nobody listens for now: what agents tell is kept for the next callbacks."""
        self._stops.keep()
        self._failures.keep()

    def spare(self) -> None:
        """Tell all agents, now or when they come, that their ranks are not needed."""
        self._is_alone = True
        self._waker.send(b"x")

    def dismiss(self, code: int, *, is_stopped: bool) -> None:
        """Tell all agents how the run has ended; those on their way are waited for a little.

        Args:
            is_stopped: All processes were asked to end: nobody is on the way.
        """
        is_launched = self._rendezvous.kind is not Kind.FLAGS
        is_awaited = is_launched and not is_stopped and not self._is_given_up
        linger_s = LINGER_S if is_awaited else _PAUSE_S
        deadline = time.monotonic() + linger_s
        try:
            # A signal to stop ends the waiting; how the run has ended stays what it is.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                while self._missing(self._came) and time.monotonic() < deadline:
                    time.sleep(0.05)
        finally:
            self._code = code
            self._waker.send(b"x")
            self._thread.join()
            self._wake.close()
            self._waker.close()
            self._server.close()

    def _serve(self) -> None:
        reminder, end = time.monotonic() + REMIND_S, time.monotonic() + self._patience_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while self._code is None:
                for key, _ in selector.select(timeout=1.0):
                    if key.fileobj is self._server:
                        self._accept(selector)
                    elif key.data is not None:
                        self._hear(key.data, selector)
                    else:
                        self._wake.recv(64)
                self._spare_all()
                self._drop_the_silent(selector)
                if time.monotonic() > reminder:
                    reminder = time.monotonic() + REMIND_S
                    self._remind()
                if time.monotonic() > end:
                    end = math.inf
                    self._lose_patience()
        for agent in self._agents:
            agent.post.say({"done": self._code, "word": self.word[:WORD]})
            agent.post.close()

    def _spare_all(self) -> None:
        for agent in self._agents if self._is_alone else []:
            if agent.local and not agent.is_spared:
                agent.is_spared = True
                agent.post.say({"spare": True})

    def _accept(self, selector: selectors.BaseSelector) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._server.accept()
            connection.settimeout(_ANSWER_S)
            agent = _Agent(Post(connection), time.monotonic())
            self._agents.append(agent)
            selector.register(agent.post, selectors.EVENT_READ, agent)

    def _hear(self, agent: _Agent, selector: selectors.BaseSelector) -> None:
        try:
            while (message := agent.post.hear(0.0)) is not None:
                if agent.local:
                    self._listen_to(agent, message)
                    continue
                refusal = self._enlist(agent, message)
                if refusal is not None:
                    agent.post.say({"refused": refusal})
                    self._tell_of_refusal(message, refusal)
                    self._forget(agent, selector)
                    return
                agent.post.say({"gang": self.gang, "threads": self._threads})
        except EOFError:
            self._forget(agent, selector)

    def _listen_to(self, agent: _Agent, message: Mapping[str, Any]) -> None:
        """An agent asks for the end of the run, or tells that it lost a rank or cannot go on."""
        number, failed, again = (message.get(key) for key in ("stop", "failed", "again"))
        if number in _STOP_SIGNALS and not self._is_stopping:
            self._is_stopping = True
            logger.info("%s was asked to stop: so is the run.", agent.host)
            self._stops.tell(int(number))
        elif isinstance(failed, str):
            self._failures.tell(WorkerError(f"{agent.host}: {clean_line(failed, WORD)}"))
        elif isinstance(again, str):
            logger.warning("%s: %s", agent.host, clean_line(again, WORD))

    def _enlist(self, agent: _Agent, hello: Mapping[str, Any]) -> str | None:
        """Take an agent's ranks; or why not."""
        against = objection(hello, self._rendezvous, self._run)
        if against is not None:
            return against
        first, local = hello["first"], hello["local"]
        ranks = range(first, first + local)
        taken = next(
            (a for a in self._agents if a is not agent and set(a.ranks) & set(ranks)), None
        )
        if taken is not None:
            before = name_ranks(taken.ranks)
            return f"{name_ranks(ranks)} must come once, but {before} came from {taken.host}."
        agent.first, agent.local, agent.host = first, local, clean_line(hello["host"])
        self._came |= set(ranks)
        return None

    def _tell_of_refusal(self, hello: Mapping[str, Any], refusal: str) -> None:
        """Who is sent away for good ends the run if no one starts it again."""
        if refusal not in self._refusals:
            self._refusals.add(refusal)
            logger.warning("a process is sent away: %s", refusal)
        if gives_up(hello, self._rendezvous):
            told = f"rank {hello['first']} cannot take part: {refusal}"
            self._failures.tell(WorkerError(f"{clean_line(hello['host'])}: {told}"))

    def _forget(self, agent: _Agent, selector: selectors.BaseSelector) -> None:
        selector.unregister(agent.post)
        agent.post.close()
        self._agents.remove(agent)
        if not agent.local:
            return
        told = f"{agent.host} has left with {name_ranks(agent.ranks)}"
        if self._is_alone:
            logger.info("%s: it was not needed.", told)
        elif self._is_stopping:
            logger.warning("%s.", told)
        elif self._rendezvous.kind is Kind.FLAGS:
            logger.warning("%s: the run waits for it to be started again.", told)
        else:
            # Launchers start a process once.
            self._failures.tell(WorkerError(f"{told}: it was killed, or its output says why."))

    def _drop_the_silent(self, selector: selectors.BaseSelector) -> None:
        late = time.monotonic() - _ANSWER_S
        for agent in [a for a in self._agents if not a.local and a.since < late]:
            self._forget(agent, selector)

    def _missing(self, there: set[int]) -> list[int]:
        return [n for n in range(self._rendezvous.local, self._rendezvous.world) if n not in there]

    def _remind(self) -> None:
        if self._is_alone:
            return
        missing = self._missing({rank for agent in self._agents for rank in agent.ranks})
        if missing:
            logger.warning("still waiting for %s at %s", _list("rank", missing), self.address)

    def _lose_patience(self) -> None:
        missing = self._missing(self._came)
        if self._is_alone or not missing:
            return
        self._is_given_up = True
        told = _list("rank", missing)
        if self._rendezvous.kind is Kind.FLAGS:
            machines = sorted({rank // self._rendezvous.local for rank in missing})
            told = f"{_list('machine', machines)} (-nr) with {told}"
        self._failures.tell(
            WorkerError(
                f"all must come to rank 0 at {self.address} within {self._patience_s:g} s, but "
                f"{told} did not. Start what is missing, or see there why it does not come. "
                "--patience (CEREBRO_PATIENCE_S) gives more time."
            )
        )


def announce(rank: int, world: int, pid: int | None = None, gang: int | None = None) -> None:
    """Say who a rank is; `pid` where its process is known, `gang` where there are several."""
    process = "" if pid is None else f" (pid {pid})"
    those = "" if gang is None else f" of gang {gang}"
    logger.info("rank %d of %d%s on %s%s", rank, world, those, socket.gethostname(), process)


def _list(name: str, numbers: list[int]) -> str:
    told = ", ".join(map(str, numbers[:8])) + (" …" if len(numbers) > 8 else "")
    return f"{name}{'s' if len(numbers) > 1 else ''} {told}"


def _listen(bound: str, port: int, host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((bound.strip("[]"), port))
        server.listen(128)
    except OSError as error:
        server.close()
        raise UsageError(
            f"rank 0 must be able to listen at {host}:{port}, but cannot ({error.strerror}). Is "
            "another run there? Choose another port (--master, or MASTER_PORT)."
        ) from None
    return server


def _free_port(bound: str) -> int:
    with _listen(bound, 0, bound) as probe:
        return int(probe.getsockname()[1])
