"""Out of memory in PyTorch: told from other errors, with what was used and what would help."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import torch

from cerebro.task import Task
from cerebro.train.memory import explain_memory, gigabytes, host_bytes, host_memory
from cerebro.train.torch.step import micro_batch_of
from cerebro.train.visit import OutOfMemory, VisitCall

#: Libraries under PyTorch say it in their own words.
_ON_DEVICE = re.compile(
    r"out of memory|CU(BLAS|SPARSE|SOLVER|DNN)_STATUS_(ALLOC_FAILED|INTERNAL_ERROR_DEVICE_ALLOC)"
    r"|cu(blas|dnn|fft)\w*alloc\w*fail",
    re.IGNORECASE,
)
_ON_HOST = re.compile(r"can't allocate memory|not enough memory: you tried to allocate")


def device_bytes(device: torch.device) -> int:
    """The memory of a device, or of the host."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return host_bytes()


@contextlib.contextmanager
def explained(device: torch.device, hint: str) -> Iterator[None]:
    """Raises `OutOfMemory` with this hint in place of the many errors that mean it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        yield
    except Exception as error:
        found = _memory_error(error)
        if found is None:
            raise
        raise OutOfMemory(explain_memory(_used(device, found), found, hint)) from found


@contextlib.contextmanager
def memory_guard(
    task: Task, device: torch.device, call: VisitCall, hint: str | None = None
) -> Iterator[None]:
    """Raises `OutOfMemory` for the many errors that mean it; `hint` says what would help."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        yield
    except Exception as error:
        found = _memory_error(error)
        if found is None:
            raise
        used = _used(device, found)
        is_splittable = _is_splittable(task, call)
        told = hint or _hint(task, call, is_splittable=is_splittable)
        raise OutOfMemory(explain_memory(used, found, told), is_splittable=is_splittable) from found


def _memory_error(error: BaseException | None) -> BaseException | None:
    """The error that says so, among this one and its causes."""
    while error is not None:
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            return error
        if isinstance(error, RuntimeError) and (
            _ON_DEVICE.search(str(error)) or _ON_HOST.search(str(error))
        ):
            return error
        error = error.__cause__
    return None


def _used(device: torch.device, error: BaseException) -> str:
    is_host = isinstance(error, MemoryError) or bool(_ON_HOST.search(str(error)))
    return host_memory() if is_host or device.type != "cuda" else _device_memory(device)


def _device_memory(device: torch.device) -> str:
    peak, total = torch.cuda.max_memory_allocated(device), torch.cuda.mem_get_info(device)[1]
    return f"at most {gigabytes(peak)} of the {gigabytes(total)} of {device}"


def _is_splittable(task: Task, call: VisitCall) -> bool:
    if task.micro_batch != "auto" or call.stack is not None or not call.is_training:
        return False
    return (micro_batch_of(task, call) or call.batch_size) > 1


def _hint(task: Task, call: VisitCall, *, is_splittable: bool) -> str:
    if not call.is_training:
        return "Use a smaller eval_batch_size in the task, or a smaller model."
    if call.stack is not None and len(call.trials) > 1:
        return "Use smaller stacks, or none."
    if is_splittable:
        return f"Its batches of {call.batch_size} rows can be trained in smaller parts."
    if task.micro_batch == "auto":
        return "It does not fit with one row at a time either: use a smaller model."
    return 'Use a smaller batch_size, or micro_batch = "auto" in the task.'
