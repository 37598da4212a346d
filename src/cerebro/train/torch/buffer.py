"""Tensors that lie in one flat buffer, and copies of such buffers."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from cerebro.storage.tensors import Entry, Layout
from cerebro.train.visit import Allocate, State

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}


def view_of(layout: Layout, buffer: memoryview, entry: Entry) -> Tensor:
    """The tensor that lies at `entry` in `buffer`, without a copy."""
    dtype = DTYPES[entry.dtype]
    if entry.nbytes == 0:
        return torch.empty(entry.shape, dtype=dtype)
    count, offset = entry.nbytes // dtype.itemsize, layout.data_start + entry.offset
    flat = torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset)
    return flat if len(entry.shape) == 1 else flat.view(entry.shape)


def copy_state(state: State, allocate: Allocate) -> tuple[Layout, memoryview]:
    """A copy to train in, so that the state stays as it was; none if it was handed over."""
    layout = Layout.parse(state.buffer)
    size = layout.total_bytes
    buffer = allocate(size)
    source = torch.frombuffer(state.buffer, dtype=torch.uint8, count=size)
    target = torch.frombuffer(buffer, dtype=torch.uint8, count=size)
    if target.data_ptr() != source.data_ptr():
        target.copy_(source)
    return layout, buffer


def allocate_pages(size: int) -> memoryview:
    """Memory that starts at a page, as slots do: alignment may decide the last bit of a sum."""
    return memoryview(mmap.mmap(-1, max(1, size)))[:size]


class PrivateCopy:
    """Memory for the model's part of one state after another, seen by nobody else.

    An evaluation works in it: the state itself may be on its way to a checkpoint or to other
    workers, and a forward pass may write to any tensor of a model.
    """

    def __init__(self) -> None:
        self._memory = memoryview(b"")

    def take(self, state: State) -> tuple[Layout, memoryview]:
        """All but the optimizer's tensors, each where it lies in the state; the last copy is lost.

        Memory only grows, and by the size of a state at most: pages of the optimizer's tensors are
        never touched.
        """
        layout = Layout.parse(state.buffer)
        if len(self._memory) < layout.total_bytes:
            self._memory = allocate_pages(layout.total_bytes)
        own = self._memory[: layout.total_bytes]
        for start, stop in _model_runs(layout):
            own[start:stop] = state.buffer[start:stop]
        return layout, own


def _model_runs(layout: Layout) -> list[tuple[int, int]]:
    """Where the tensors lie that are not the optimizer's, neighbours taken together."""
    runs: list[tuple[int, int]] = []
    start = stop = layout.data_start
    for entry in layout.entries:
        if entry.name.startswith("optimizer."):
            if stop > start:
                runs.append((start, stop))
            start = layout.data_start + entry.offset + entry.nbytes
        stop = layout.data_start + entry.offset + entry.nbytes
    if stop > start:
        runs.append((start, stop))
    return runs
