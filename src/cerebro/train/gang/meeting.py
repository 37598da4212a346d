"""How the ranks of a gang find each other, make sure that they fit, and leave word of failures."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import cast

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from cerebro.errors import UsageError, WorkerError
from cerebro.train.gang.group import Gang, GangBroken
from cerebro.types import Json

#: What one rank says of itself, or of why it cannot take part.
Identity = dict[str, Json]

#: What must be the same for all ranks, as errors call it.
_SAME = {
    "size": "the size of the gang",
    "check_every": "check_every",
    "task": "the task's source",
    "data": "the digest of the data",
    "cerebro": "the version of cerebro",
    "torch": "the version of torch",
    "device": "the kind of device",
    "threads": "the number of threads",
}
_LOOK_S = 0.01
#: How long ranks that are sent home may take to hear of it.
_GOODBYE_S = 5.0
#: How long ranks that are there, and wait, may take to say that they have heard who takes part.
_HEAR_S = 120.0
_ANSWER = timedelta(seconds=30)
#: The leader is waited for as long as its store is there.
_EVER = timedelta(days=1)
#: The same for a leader that listened a moment ago, and may have left since.
_REACH = timedelta(seconds=5)
_RETRY_S = (0.05, 1.0)


class Meeting:
    """The leader's side: a store that listens at a socket.

    Args:
        listener: A listening socket; it is taken over.
        host: The address it is bound to, as this process reaches it.
        own_host: The address at which the other ranks reach this machine.
    """

    def __init__(self, listener: socket.socket, host: str, own_host: str, size: int) -> None:
        port = listener.getsockname()[1]
        self._size = size
        self._own_host = own_host
        #: Which lives of the other ranks it is that came.
        self._lives: list[str] = []
        self._store = TCPStore(
            host, port, None, True, _ANSWER, False, master_listen_fd=listener.detach()
        )

    def assemble(
        self, own: Identity, deadline_s: float, watch: Callable[[], None]
    ) -> list[Identity]:
        """Wait for all ranks: what each says of itself, by rank.

        One that is started again while others are awaited takes its own place. `watch` is called
        now and then, and may raise.
        """
        keys = [_here(rank) for rank in range(1, self._size)]
        deadline = time.monotonic() + deadline_s
        while not self._store.check(keys):
            watch()
            if time.monotonic() > deadline:
                missing = [key for key in keys if not self._store.check([key])]
                raise WorkerError(
                    f"all ranks of a gang of {self._size} must come within {deadline_s:g} s, but "
                    f"{', '.join(missing)} did not. Start them, or see why they ended."
                )
            # Not a wait with a time limit: PyTorch tells of each on stderr.
            time.sleep(_LOOK_S)
        came = [json.loads(self._store.get(key)) for key in keys]
        self._lives = [life for life, _ in came]
        return [own, *(identity for _, identity in came)]

    def compare(self, ranks: list[Identity]) -> None:
        """Raise where a rank is not as the leader is."""
        for rank, identity in enumerate(ranks):
            for field, name in _SAME.items():
                found, expected = identity.get(field), ranks[0].get(field)
                # The source of a class from a notebook or a script's own file is not to be had.
                if found != expected and found != "" and expected != "":
                    raise self.refuse(
                        f"{name} must be the same for all ranks of a gang, but is "
                        f"{found!r} for rank {rank} on {identity.get('host')} and "
                        f"{expected!r} for rank 0 on {ranks[0].get('host')}."
                    )

    def refuse(self, reason: str) -> UsageError:
        """Send all ranks home; the error to raise."""
        self._store.set("verdict", json.dumps({"refused": reason}))
        # With the leader goes the store in which they read it.
        ranks = [rank for rank in range(1, self._size) if self._store.check([_here(rank)])]
        deadline = time.monotonic() + _GOODBYE_S
        while not self._store.check([_heard(rank) for rank in ranks]):
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_S)
        return UsageError(reason)

    def open(self, check_every: int, gradients: str, watch: Callable[[], None]) -> Gang:
        """Connect the ranks that are there. `watch` is as in `assemble`.

        GangBroken if one has ended since it came: to connect it would be waited for in vain.
        """
        self._store.set("verdict", json.dumps({"gradients": gradients, "lives": self._lives}))
        self._hear_all(watch)
        self._store.set("go", "yes")
        return Gang(
            self._store,
            0,
            self._size,
            own_host=self._own_host,
            check_every=check_every,
            gradients=gradients,
        )

    def _hear_all(self, watch: Callable[[], None]) -> None:
        """Wait until each life that came has heard the verdict."""
        keys = [_heard(rank) for rank in range(1, self._size)]
        deadline = time.monotonic() + _HEAR_S
        while not self._store.check(keys):
            watch()
            for rank, life in enumerate(self._lives, 1):
                if json.loads(self._store.get(_here(rank)))[0] != life:
                    raise GangBroken(f"rank {rank} was started again while the gang was formed")
            if time.monotonic() > deadline:
                raise GangBroken(f"a rank that had come did not answer within {_HEAR_S:g} s")
            time.sleep(_LOOK_S)

    def failure(self) -> tuple[int, dict[str, Json]] | None:
        """The first rank that said why it ended, and what it said."""
        for rank in range(1, self._size):
            if self._store.check([_failure(rank)]):
                return rank, json.loads(self._store.get(_failure(rank)))
        return None


class Visitor:
    """A follower's side.

    Args:
        host, port: Where the leader listens.
        deadline_s: How long to look for it.
    """

    def __init__(self, host: str, port: int, rank: int, deadline_s: float) -> None:
        self._rank = rank
        self._store = _connect(host, port, time.monotonic() + deadline_s, deadline_s)

    def come(self, identity: Identity) -> str:
        """Say who this is, and wait for all others: what gradients go over.

        GangBroken if the gang was formed without it, perhaps with an earlier life of this rank.
        """
        life = secrets.token_hex(8)
        try:
            self._store.set(_here(self._rank), json.dumps([life, identity]))
            self._store.wait(["verdict"], _EVER)
            verdict = json.loads(self._store.get("verdict"))
            if "lives" in verdict and verdict["lives"][self._rank - 1] != life:
                raise GangBroken(f"the gang was formed before this life of rank {self._rank} came")
            self._store.set(_heard(self._rank), "yes")
            if "refused" in verdict:
                raise UsageError(verdict["refused"])
            self._store.wait(["go"], _EVER)
        except RuntimeError as error:
            raise GangBroken(f"the leader left: {error}") from error
        return cast(str, verdict["gradients"])

    def connect(self, size: int, *, own_host: str, check_every: int, gradients: str) -> Gang:
        """Connect to the ranks that are there."""
        return Gang(
            self._store,
            self._rank,
            size,
            own_host=own_host,
            check_every=check_every,
            gradients=gradients,
        )

    def tell(self, failure: dict[str, Json]) -> None:
        """Leave word of why this rank ends, so that the leader finds it; it may be gone."""
        with contextlib.suppress(RuntimeError):
            self._store.set(_failure(self._rank), json.dumps(failure))
            # Not before it has arrived.
            self._store.get(_failure(self._rank))


def _connect(host: str, port: int, deadline: float, deadline_s: float) -> TCPStore:
    pause, longest = _RETRY_S
    while True:
        try:
            # PyTorch's own attempts are told on stderr, each of them.
            socket.create_connection((host, port), timeout=5.0).close()
            store = TCPStore(host, port, None, False, _REACH, False)
            store.set_timeout(_ANSWER)
            return store
        except (OSError, dist.DistError) as error:
            if time.monotonic() + pause > deadline:
                raise WorkerError(
                    f"the leader of the gang must be at {host}:{port}, but nobody was there for "
                    f"{deadline_s:g} s ({error}). Start rank 0 there, or give its address."
                ) from error
        time.sleep(pause)
        pause = min(2 * pause, longest)


def _here(rank: int) -> str:
    return f"rank {rank}"


def _heard(rank: int) -> str:
    return f"heard/{rank}"


def _failure(rank: int) -> str:
    return f"failure/{rank}"
