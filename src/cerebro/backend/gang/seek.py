"""On a machine without rank 0: looks for the muster there until it answers."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from typing import Any

from cerebro.backend.gang.hello import hello_of
from cerebro.backend.gang.post import WORD, Post, clean_line
from cerebro.backend.gang.rendezvous import Rendezvous, split_address
from cerebro.backend.gang.torchrun import look_up
from cerebro.errors import UsageError, WorkerError

#: How long a muster that sends us away is asked again: an earlier run may just be ending there.
REFUSED_S = 15.0
_CONNECT_S = 5.0
#: How long a muster that has been reached may take to answer: its machine may be busy, and it would
#: take a connection that ends for a rank that is lost.
_ANSWER_S = 60.0
_LOOK_S = 0.2

logger = logging.getLogger("cerebro.gang")


def find_muster(rendezvous: Rendezvous, run: str, check: Callable[[], None]) -> Post:
    """A connection to the muster of a run, which has taken the ranks of this process.

    Args:
        rendezvous: Of a process without rank 0.
        run: The name of the run.
        check: Called every now and then; what it raises ends the search.
    """
    search = _Search(rendezvous, run, check)
    began = time.monotonic()
    refused_since: float | None = None
    is_told = False
    while True:
        is_last = refused_since is not None and time.monotonic() - refused_since > REFUSED_S
        try:
            post = search.ask(is_last=is_last)
            if post is not None:
                return post
        except UsageError:
            if is_last:
                raise
            refused_since = refused_since or time.monotonic()
        check()
        waited_s = time.monotonic() - began
        if waited_s > rendezvous.patience_s:
            if search.refusal is not None:
                raise search.refusal
            raise WorkerError(
                f"rank 0 must be there within {rendezvous.patience_s:.0f} s, but nobody has "
                f"answered at {rendezvous.address} ({search.why}). Is it started, and does it meet "
                "the others there? --patience (CEREBRO_PATIENCE_S) gives it more time."
            )
        if not is_told and waited_s > 2 * _CONNECT_S:
            is_told = True
            logger.info("waiting for rank 0 at %s (%s)", rendezvous.address, search.why)
        time.sleep(_LOOK_S)


class _Search:
    def __init__(self, rendezvous: Rendezvous, run: str, check: Callable[[], None]) -> None:
        self._rendezvous = rendezvous
        self._run = run
        self._check = check
        self._deadline = time.monotonic() + rendezvous.patience_s
        #: Why the last attempt to reach rank 0 failed.
        self.why = (
            "it has not come to the store of torchrun yet"
            if rendezvous.is_borrowed
            else "something listens there, but does not answer"
        )
        #: What rank 0 said when it sent this process away, unless it is gone since.
        self.refusal: UsageError | None = None

    def ask(self, *, is_last: bool = False) -> Post | None:
        """The muster's answer; None if there is no muster yet."""
        own = self._rendezvous
        address: str | None = own.address
        if own.is_borrowed:
            address = look_up(own, self._run, _CONNECT_S)
        if address is None:
            return None
        host, port = split_address(address)
        try:
            post = Post(socket.create_connection((host.strip("[]"), port), _CONNECT_S))
        except OSError as error:
            self.why, self.refusal = error.strerror or str(error), None
            return None
        try:
            post.say(hello_of(own, self._run, is_last=is_last))
            answer = self._hear(post)
            if "refused" in answer:
                told = f"refuses this process: {clean_line(answer['refused'], WORD)}"
                self.why, self.refusal = f"it {told}", UsageError(f"rank 0 {told}")
                raise self.refusal
            post.gang, post.threads = str(answer["gang"]), max(1, answer["threads"])
        except (EOFError, KeyError, TypeError):
            post.close()
            return None
        except BaseException:
            post.close()
            raise
        return post

    def _hear(self, post: Post) -> dict[str, Any]:
        deadline = min(self._deadline, time.monotonic() + _ANSWER_S)
        while time.monotonic() < deadline:
            answer = post.hear(_LOOK_S)
            if answer is not None:
                return answer
            self._check()
        self.why = "something listens there, but does not answer"
        return {}
