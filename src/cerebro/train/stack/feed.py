"""Batches that a captured step gathers by itself from a shard and the members' orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from cerebro.data import Shard
from cerebro.train.stack.batches import dtype_of

Columns = dict[str, Tensor]
#: Shards of about the same length share the memory that steps are captured with.
_ROUND = 512
_MAX_BYTES = 2 << 30


def fits(shard: Shard) -> bool:
    """Whether there is room for a copy of the shard in fixed memory."""
    arrays = [a for a in shard.columns.values() if isinstance(a, np.ndarray)]
    return sum(int(array.nbytes) for array in arrays) <= _MAX_BYTES


def capacity_of(rows: int) -> int:
    """How many rows there is room for."""
    return -(-rows // _ROUND) * _ROUND


class Feed:
    """Fixed memory for one shard and for the rows of every step of a visit.

    Args:
        lead: How many orders there are: one for each member, or one for all.
    """

    def __init__(
        self, shard: Shard, size: int, lead: int, *, is_shared: bool, device: torch.device
    ) -> None:
        capacity = capacity_of(shard.rows)
        self._size = size
        self._lead = lead
        self._is_shared = is_shared
        self.columns = {
            name: torch.zeros((capacity, *array.shape[1:]), dtype=dtype_of(array), device=device)
            for name, array in shard.columns.items()
            if isinstance(array, np.ndarray)
        }
        steps = max(1, capacity // size)
        self.index = torch.zeros(steps, lead * size, dtype=torch.int32, device=device)
        #: The rows of a last, smaller batch, by its size.
        self.rests: dict[int, Tensor] = {}

    def load(self, columns: Mapping[str, Tensor], orders: Tensor) -> None:
        """Take a shard and the orders [member, row] in which it is seen."""
        lead, rows = orders.shape
        full, rest = divmod(rows, self._size)
        for name, column in columns.items():
            self.columns[name][:rows].copy_(column)
        if full:
            whole = orders[:, : full * self._size].view(lead, full, self._size)
            self.index[:full].view(full, lead, self._size).copy_(whole.transpose(0, 1))
        if rest:
            self.rest(rest).view(lead, rest).copy_(orders[:, full * self._size :])

    def rest(self, size: int) -> Tensor:
        """Where the rows of a smaller batch of this size are."""
        if size not in self.rests:
            self.rests[size] = torch.zeros(
                self._lead * size, dtype=torch.int32, device=self.index.device
            )
        return self.rests[size]

    def rows(self, at: Tensor, size: int) -> Tensor:
        """The rows of the step with this number."""
        if size < self._size:
            return self.rest(size)
        return self.index.index_select(0, at).squeeze(0)

    def gather(self, columns: Sequence[Tensor], rows: Tensor, size: int) -> list[Tensor]:
        """A batch of these rows: [member, row, ...], or [row, ...] if members share it."""
        lead = () if self._is_shared else (self._lead,)
        return [
            column.index_select(0, rows).view(*lead, size, *column.shape[1:]) for column in columns
        ]
