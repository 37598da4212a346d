"""Orders of all members of a stack, drawn ahead while the device trains."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from cerebro.data import Shard
from cerebro.train.stack.batches import orders_of
from cerebro.train.visit import VisitCall

#: Orders that wait for their visits.
_AHEAD = 16


class OrdersAhead:
    """Draws the orders of a stack's next visit on a thread.

    To draw the orders of hundreds of members takes about as long as the device takes to train them.
    The next visit is foretold from this one; if it is another, its orders are drawn when it comes.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="orders")
        self._drawn: OrderedDict[Hashable, Future[Tensor]] = OrderedDict()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)

    def take(self, call: VisitCall, shard: Shard) -> Tensor:
        """Rows [member, place] of this visit."""
        found = self._drawn.pop(_key(call, shard), None)
        return _draw(call, shard) if found is None else found.result()

    def foretell(self, call: VisitCall, shard: Shard) -> None:
        """Begin with the next visit's."""
        is_last = call.step == call.steps - 1
        number = (call.shard + 1 + is_last) % call.steps
        later = replace(
            call,
            epoch=call.epoch + is_last,
            step=0 if is_last else call.step + 1,
            shard=number,
        )
        # Shards are of one length, or differ by a row: then this is in vain.
        there = replace(shard, number=number)
        self._drawn[_key(later, there)] = self._thread.submit(_draw, later, there)
        while len(self._drawn) > _AHEAD:
            self._drawn.popitem(last=False)[1].cancel()


def _key(call: VisitCall, shard: Shard) -> Hashable:
    return call.trials, call.seed, call.epoch, shard.number, shard.rows, call.batch_size


def _draw(call: VisitCall, shard: Shard) -> Tensor:
    # Not in pinned memory: beside a capture no other thread may ask the driver for anything.
    orders = orders_of(shard, call)
    found = np.empty((len(orders), shard.rows), np.int32)
    for row, order in zip(found, orders, strict=True):
        row[:] = order
    return torch.from_numpy(found)
