"""The ranks of a gang, connected: what each of them may ask of the others."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from cerebro.train.torch.buffer import allocate_pages
from cerebro.train.visit import State
from cerebro.types import Json

#: Followers wait for the next call however long it takes; a rank that dies is noticed at once.
_FOREVER = timedelta(days=365)
_CONNECT = timedelta(seconds=120)
#: What ranks tell each other without saying first how much it is.
_SHORT_BYTES = 248


class GangBroken(Exception):
    """Another rank has ended, or cannot be reached any more."""


class Gang:
    """One rank's connections to all others; every rank must make the same calls in the same order.

    Control messages, sums and checks go over gloo. Gradients do as well, unless every rank has a
    GPU of its own: then they go over NCCL.

    Args:
        store: Where the ranks met.
        own_host: Address of this machine at which the other ranks reach it.
        check_every: Steps between two comparisons of the replicas; 0: never.
        gradients: "gloo" or "nccl".
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        own_host: str,
        check_every: int,
        gradients: str = "gloo",
    ) -> None:
        self.rank = rank
        self.size = size
        self.check_every = check_every
        #: Seconds spent in waiting for other ranks, so far.
        self.waited_s = 0.0
        #: Only here, so that nothing is left of the connections once they are closed.
        self._pending: deque[Any] = deque()
        try:
            self._control: Any = _gloo(store, rank, size, own_host)
            self._gradients: Any = self._control
            if gradients == "nccl":
                self._gradients = _nccl(store, rank, size)
        except RuntimeError as error:
            raise _broken(error) from error

    def add_up(self, tensor: Tensor) -> None:
        """Begin to replace a tensor by its sum over all ranks; it is there after `finish`."""
        self._begin(self._gradients, "allreduce", tensor)

    def finish(self) -> None:
        """Until all that was begun is done."""
        began = time.perf_counter()
        try:
            while self._pending:
                self._pending.popleft().wait()
        except RuntimeError as error:
            raise _broken(error) from error
        finally:
            self.waited_s += time.perf_counter() - began

    def gather(self, numbers: Tensor) -> Tensor:
        """The numbers of all ranks, one row each; all must give as many."""
        found = [torch.empty_like(numbers) for _ in range(self.size)]
        self._wait_for("allgather", found, numbers)
        return torch.stack(found)

    def gather_json(self, value: Json) -> list[Json]:
        """A value of every rank, by rank; short ones in one round."""
        data = json.dumps(value).encode()
        first = len(data).to_bytes(8, "big") + data[:_SHORT_BYTES].ljust(_SHORT_BYTES)
        rows = [bytes(row.tolist()) for row in self.gather(_bytes_of(first))]
        sizes = [int.from_bytes(row[:8], "big") for row in rows]
        if max(sizes) <= _SHORT_BYTES:
            rows = [row[8:] for row in rows]
        else:
            padded = _bytes_of(data.ljust(max(sizes)))
            rows = [bytes(row.tolist()) for row in self.gather(padded)]
        return [json.loads(row[:size]) for row, size in zip(rows, sizes, strict=True)]

    def spread(self, tensor: Tensor) -> None:
        """Give all ranks the tensor of rank 0, in place."""
        self._wait_for("broadcast", tensor, 0)

    def send(self, message: dict[str, Json] | None, state: State | None = None) -> None:
        """From rank 0 to all others, which are waiting in `receive`. None: that was all."""
        header = b"" if message is None else json.dumps([message, _meta_of(state)]).encode()
        size = 0 if state is None else state.buffer.nbytes
        self.spread(torch.tensor([len(header), size]))
        if header:
            self.spread(_bytes_of(header))
        if size and state is not None:
            self.spread(torch.frombuffer(state.buffer, dtype=torch.uint8))

    def receive(self) -> tuple[dict[str, Json], State | None] | None:
        """What rank 0 sends next; the state lies in memory that nobody else has."""
        sizes = torch.zeros(2, dtype=torch.int64)
        self.spread(sizes)
        length, size = (int(value) for value in sizes)
        if not length:
            return None
        header = bytearray(length)
        self.spread(torch.frombuffer(header, dtype=torch.uint8))
        message, meta = json.loads(header)
        if not size:
            return message, None
        buffer = allocate_pages(size)
        self.spread(torch.frombuffer(buffer, dtype=torch.uint8))
        return message, State(buffer, meta)

    def close(self) -> None:
        """Leave: the others notice at their next call, or in the one they are waiting in."""
        groups = {id(group): group for group in (self._gradients, self._control)}
        self._gradients = self._control = _Left()
        self._pending.clear()
        for group in groups.values():
            group.shutdown()

    def _wait_for(self, name: str, *arguments: Any) -> None:
        self._begin(self._control, name, *arguments)
        self.finish()

    def _begin(self, group: Any, name: str, *arguments: Any) -> None:
        try:
            self._pending.append(getattr(group, name)(*arguments))
        except RuntimeError as error:
            raise _broken(error) from error


class _Left:
    """In place of connections that were given up."""

    def shutdown(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("this rank has left")


def _gloo(store: Store, rank: int, size: int, own_host: str) -> Any:
    # Not the process's default group: there may be several gangs in a process's life.
    gloo = cast(Any, dist.ProcessGroupGloo)
    chosen = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    where = {"interface": chosen} if chosen else {"hostname": own_host}
    options = gloo._Options()
    options._devices = [gloo.create_device(**where)]
    options._threads = 2
    options._timeout = _CONNECT
    group = gloo(PrefixStore("gloo", store), rank, size, options)
    group._set_default_timeout(_FOREVER)
    return group


def _nccl(store: Store, rank: int, size: int) -> Any:
    nccl = cast(Any, dist.ProcessGroupNCCL)
    return nccl(PrefixStore("nccl", store), rank, size, nccl.Options())


def _bytes_of(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _meta_of(state: State | None) -> Any:
    return None if state is None else state.meta


def _broken(error: RuntimeError) -> GangBroken:
    return GangBroken(f"the gang broke: {error}")
