"""From the device into a state's buffer, through pinned memory and on several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from cerebro.storage.tensors import Layout
from cerebro.train.stack.state import Tensors, views

#: One thread copies host memory at a fifth of the speed at which a device sends.
_THREADS = 4
_CHUNK = 4 << 20


class Downloads:
    """Memory and threads for one worker's downloads; memory only grows."""

    def __init__(self) -> None:
        self._pinned = torch.empty(0, dtype=torch.uint8)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="download")

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()

    def fetch(self, tensors: Tensors, layout: Layout, buffer: memoryview) -> None:
        """Fill a buffer that has its header already."""
        size = layout.total_bytes
        if len(self._pinned) < size:
            self._pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        host: Any = self._pinned.numpy()
        staged = memoryview(host)[:size]
        for name, target in views(layout, staged).items():
            target.copy_(tensors[name], non_blocking=True)
        torch.cuda.current_stream().synchronize()
        source, into = np.frombuffer(staged, np.uint8), np.frombuffer(buffer, np.uint8)
        starts = range(layout.data_start, size, _CHUNK)

        def copy(start: int) -> None:
            stop = min(start + _CHUNK, size)
            into[start:stop] = source[start:stop]

        list(self._threads.map(copy, starts))
