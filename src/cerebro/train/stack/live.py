"""States of stacks that stay on a device between the visits of a worker."""

from __future__ import annotations

from collections import OrderedDict

import torch

from cerebro.train.stack.state import Start, Tensors
from cerebro.train.visit import VisitCall

#: Of the device's memory, for states that wait for their next visit.
_SHARE = 0.2


class LiveStates:
    """Within a share of the device's memory; the one unused for longest goes."""

    def __init__(self, device: torch.device) -> None:
        self._limit = int(torch.cuda.mem_get_info(device)[1] * _SHARE)
        self._bytes = 0
        self._kept: OrderedDict[int, tuple[tuple[int, ...], int, Tensors]] = OrderedDict()

    def take(self, call: VisitCall, start: Start) -> Tensors | None:
        """The state that `start` describes, if it is here."""
        found = self._kept.get(call.unit)
        if found is None or start.state is None or found[:2] != (call.trials, start.steps):
            return None
        return found[2]

    def forget(self, unit: int) -> None:
        """Let a state go."""
        old = self._kept.pop(unit, None)
        if old is not None:
            self._bytes -= _size(old[2])

    def clear(self) -> None:
        """Let all of them go."""
        self._kept.clear()
        self._bytes = 0

    def keep(self, call: VisitCall, steps: int, tensors: Tensors) -> None:
        """The state after a visit."""
        old = self._kept.pop(call.unit, None)
        if old is not None and old[0] == call.trials:
            for name, tensor in tensors.items():
                old[2][name].copy_(tensor)
            self._kept[call.unit] = (call.trials, steps, old[2])
            return
        if old is not None:
            self._bytes -= _size(old[2])
        size = _size(tensors)
        while self._kept and self._bytes + size > self._limit:
            _, (_, _, oldest) = self._kept.popitem(last=False)
            self._bytes -= _size(oldest)
        if size <= self._limit:
            copies = {name: tensor.clone() for name, tensor in tensors.items()}
            self._kept[call.unit] = (call.trials, steps, copies)
            self._bytes += size


def _size(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())
