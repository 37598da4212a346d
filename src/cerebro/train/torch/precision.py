"""The precision in which a task computes: autocast, and TF32 for matrix products of float32."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from cerebro.errors import UsageError
from cerebro.task import Task
from cerebro.types import Params

TF32 = "tf32"
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def amp_of(task: Task, params: Params) -> Any:
    """What the trial asks for: its param, or else the task's attribute."""
    amp = params.get("amp", task.amp)
    if amp is not None and amp not in (TF32, *_AUTOCAST):
        known = ", ".join([TF32, *_AUTOCAST])
        raise UsageError(f"amp must be one of {known}, but got {amp!r}.")
    return amp


def autocast(
    amp: Any, device: str, *, is_cached: bool = True
) -> Callable[[], contextlib.AbstractContextManager[Any]] | None:
    """Makes the context for the task's functions; None if they need none."""
    if amp in (None, TF32):
        return None
    return lambda: torch.autocast(device, dtype=_AUTOCAST[amp], cache_enabled=is_cached)


@contextlib.contextmanager
def precision(amp: Any) -> Iterator[None]:
    """TF32 on CUDA while the visit lasts, if asked for; else as the process has it."""
    if amp != TF32:
        yield
        return
    backends: tuple[Any, ...] = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [backend.allow_tf32 for backend in backends]
    try:
        for backend in backends:
            backend.allow_tf32 = True
        yield
    finally:
        for backend, was_allowed in zip(backends, before, strict=True):
            backend.allow_tf32 = was_allowed
