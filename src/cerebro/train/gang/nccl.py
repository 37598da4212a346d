"""Sums over GPUs of which every rank has one of its own."""

from __future__ import annotations

import logging
import os
from collections import deque
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

logger = logging.getLogger("cerebro.train")

#: Ranks wait for others however long it takes: those that die are noticed, and so are visits that
#: hang.
FOREVER = timedelta(days=365)
#: What PyTorch and NCCL are told, whatever else they were. PyTorch has guards that end the process;
#: there are others for what they look for.
SETTINGS = {
    # When another rank has ended. Under torchrun it is 1.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    # After an error of the GPU, which the task is told, too.
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    # When it takes long to abort, or to write traces, which nobody has to wait for.
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    # Else a sum of another size may need other connections, and this thread waits for them.
    "NCCL_RUNTIME_CONNECT": "0",
}
#: What could not be aborted: to give it back would wait as long as to abort it.
_left: list[Any] = []


class Nccl:
    """Adds up tensors of this thread's GPU while it goes on; only the GPU waits for the others.

    For one that is gone it waits without end, or until `abort`: then what is not added up by then
    is no sum, and nothing says so.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        os.environ.update(SETTINGS)
        nccl = cast(Any, dist.ProcessGroupNCCL)
        options = nccl.Options()
        options._timeout = FOREVER
        self._group: Any = nccl(PrefixStore("nccl", store), rank, size, options)
        self._device = torch.cuda.current_device()
        #: An event that is asked whether the GPU still works.
        self._sign = cast(Any, torch.cuda.Event)()
        self._begun: deque[Any] = deque()
        #: Events before and after the GPU has waited for other ranks.
        self._waits: deque[tuple[Any, Any]] = deque()
        self._waited_ms = 0.0

    def connect(self) -> None:
        """To all others, which the first sum would do else; while it does it cannot be aborted."""
        self._sign.record()
        self.begin(torch.zeros(1, device="cuda"))
        self.finish()

    def begin(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all ranks; what the GPU does after `finish` finds it."""
        try:
            self._begun.append(self._group.allreduce(tensor))
        except RuntimeError:
            # NCCL does not say what is wrong with this GPU, which is no fault of other ranks.
            self._require_gpu()
            raise

    def finish(self) -> None:
        """Have the GPU wait for all that was begun."""
        if not self._begun:
            return
        before, after = (cast(Any, torch.cuda.Event)(enable_timing=True) for _ in range(2))
        before.record()
        while self._begun:
            self._begun.popleft().wait()
        after.record()
        self._waits.append((before, after))
        self._count()

    def waited_s(self) -> float:
        """For how long the GPU has waited for other ranks, as far as it has come."""
        self._count()
        return self._waited_ms / 1000

    def abort(self) -> None:
        """Wait for nothing any more; from any thread."""
        try:
            # On one that has failed, NCCL waits for threads of its own that it could not end.
            self._require_gpu()
            self._group.abort()
        except RuntimeError as error:
            _left.append(self._group)
            logger.warning("NCCL could not be ended in order: %s", error)

    def _require_gpu(self) -> None:
        """Raise the error that the GPU has had, if any; waits for nothing."""
        with torch.cuda.device(self._device):
            self._sign.query()

    def _count(self) -> None:
        while self._waits and self._waits[0][1].query():
            before, after = self._waits.popleft()
            self._waited_ms += before.elapsed_time(after)
