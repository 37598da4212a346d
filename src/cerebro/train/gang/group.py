"""The ranks of a gang, connected: what each of them may ask of the others."""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from cerebro.train.gang.nccl import FOREVER, Nccl
from cerebro.train.gang.place import chosen_interface
from cerebro.train.gang.watch import Watch, connect
from cerebro.train.torch.buffer import allocate_pages
from cerebro.train.visit import State
from cerebro.types import Json

_CONNECT = timedelta(seconds=120)
#: What ranks tell each other without saying first how much it is.
_SHORT_BYTES = 248
#: How errors of a GPU begin, such as an index out of range, which whatever comes next tells.
_OF_A_GPU = ("CUDA error", "CUDA out of memory")
_LOST = "the gang broke: another rank has ended"


class GangBroken(Exception):
    """Another rank has ended, or cannot be reached any more."""


class Gang:
    """One rank's connections to all others; every rank must make the same calls in the same order.

    Control messages, sums and checks go over gloo. Gradients do as well, unless every rank has a
    GPU of its own: then they go over NCCL. That would wait without end for a rank that is gone, so
    a `Watch` looks for those.

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
        self._waited_s = 0.0
        #: Only here, so that nothing is left of the connections once they are closed.
        self._pending: deque[Any] = deque()
        self._gloo: Any = _Left()
        self._nccl: Nccl | None = None
        self._watch: Watch | None = None
        self._is_lost = False
        try:
            with _breaking():
                self._gloo = _gloo(store, rank, size, own_host)
                if gradients == "nccl":
                    others = connect(rank, size, own_host, self.gather_json)
                    self._watch = Watch(others, self._lose)
                    self._nccl = Nccl(store, rank, size)
                    self._require_all()
                    self._nccl.connect()
                    self._require_all()
        except BaseException:
            self.close()
            raise

    @property
    def waited_s(self) -> float:
        """Seconds spent in waiting for other ranks, so far."""
        return self._waited_s + (0.0 if self._nccl is None else self._nccl.waited_s())

    def add_up(self, tensor: Tensor) -> None:
        """Begin to replace a tensor by its sum over all ranks; it is there after `finish`."""
        with _breaking():
            if self._nccl is not None:
                self._nccl.begin(tensor)
            else:
                self._pending.append(self._gloo.allreduce(tensor))

    def finish(self) -> None:
        """Until all that was begun is done; over NCCL, before whatever the GPU does next."""
        self._wait()
        with _breaking():
            if self._nccl is not None:
                self._nccl.finish()
        self._require_all()

    def gather(self, numbers: Tensor) -> Tensor:
        """The numbers of all ranks, one row each; all must give as many."""
        found = [torch.empty_like(numbers) for _ in range(self.size)]
        self._wait_for("allgather", found, numbers)
        self._require_all()
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
        self._require_all()
        header = b"" if message is None else json.dumps([message, _meta_of(state)]).encode()
        size = 0 if state is None else state.buffer.nbytes
        self.spread(torch.tensor([len(header), size]))
        if header:
            self.spread(_bytes_of(header))
        if size and state is not None:
            self.spread(torch.frombuffer(state.buffer, dtype=torch.uint8))

    def receive(self) -> tuple[dict[str, Json], State | None] | None:
        """What rank 0 sends next; the state lies in memory that nobody else has.

        What has come is good: after the last word rank 0 may be gone before that is read.
        """
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

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """What goes wrong in here after a rank is lost does so for that: a GangBroken."""
        try:
            yield
        except Exception as error:
            if self._is_lost and not isinstance(error, GangBroken):
                raise GangBroken(_LOST) from error
            raise

    def close(self) -> None:
        """Leave: the others notice at their next call, or in the one they are waiting in."""
        if self._watch is not None:
            self._watch.close()
        if self._nccl is not None:
            self._nccl.abort()
        gloo, self._gloo, self._nccl, self._watch = self._gloo, _Left(), None, None
        self._pending.clear()
        gloo.shutdown()

    def _lose(self) -> None:
        self._is_lost = True
        # It may not be there yet: what makes it asks afterwards.
        if self._nccl is not None:
            self._nccl.abort()

    def _require_all(self) -> None:
        if self._is_lost:
            raise GangBroken(_LOST)

    def _wait_for(self, name: str, *arguments: Any) -> None:
        with _breaking():
            self._pending.append(getattr(self._gloo, name)(*arguments))
        self._wait()

    def _wait(self) -> None:
        began = time.perf_counter()
        try:
            with _breaking():
                while self._pending:
                    self._pending.popleft().wait()
        finally:
            self._waited_s += time.perf_counter() - began


class _Left:
    """In place of connections that were given up."""

    def shutdown(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("this rank has left")


def _gloo(store: Store, rank: int, size: int, own_host: str) -> Any:
    # Not the process's default group: there may be several gangs in a process's life.
    gloo = cast(Any, dist.ProcessGroupGloo)
    chosen = chosen_interface()
    where = {"interface": chosen} if chosen else {"hostname": own_host}
    options = gloo._Options()
    options._devices = [gloo.create_device(**where)]
    options._threads = 2
    options._timeout = _CONNECT
    group = gloo(PrefixStore("gloo", store), rank, size, options)
    group._set_default_timeout(FOREVER)
    return group


def _bytes_of(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _meta_of(state: State | None) -> Any:
    return None if state is None else state.meta


@contextlib.contextmanager
def _breaking() -> Iterator[None]:
    """Errors of what connects the ranks are those of a gang; those of a GPU are the task's."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        if str(error).startswith(_OF_A_GPU):
            raise
        raise GangBroken(f"the gang broke: {error}") from error
