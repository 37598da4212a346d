"""Which GPU of this process a task was given: Spark's addresses are numbers, or UUIDs."""

from __future__ import annotations

import ctypes
import os
import uuid
from collections.abc import Callable, Sequence

from cerebro.errors import UsageError

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_BYTES_OF_UUID = 16


def gpu_number(address: str, uuids: Callable[[], Sequence[str]] | None = None) -> int:
    """The number that CUDA has for an address, in this process.

    Args:
        address: As a discovery script has printed it: "1", "GPU-8932f937-…", "MIG-…".
        uuids: Tells those of the devices that CUDA sees, in its order.

    >>> gpu_number("1")
    1
    >>> gpu_number("GPU-b", lambda: ["GPU-a", "GPU-b"])
    1
    """
    listed = [each.strip() for each in os.environ.get(_VISIBLE, "").split(",") if each.strip()]
    if address in listed:
        return listed.index(address)
    if address.isdecimal():
        return int(address)
    if address.startswith("MIG-") and not listed:
        # A process has one such slice, and CUDA sees it only if it is named before CUDA begins.
        os.environ[_VISIBLE] = address
        return 0
    seen = (uuids or cuda_uuids)()
    if address in seen:
        return seen.index(address)
    raise UsageError(
        f"a task must see the GPU that Spark gives it, which is {address}, but CUDA sees "
        f"{', '.join(seen) or 'none'}. Leave {_VISIBLE} of executors unset or list all of their "
        "GPUs there, and let the discovery script print what `nvidia-smi -L` names."
    )


def cuda_uuids() -> list[str]:
    """The devices that CUDA sees, in its order; none where there is no driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return []
    return [_uuid(cuda, number) for number in range(count.value)]


def _uuid(cuda: ctypes.CDLL, number: int) -> str:
    device, found = ctypes.c_int(), (ctypes.c_ubyte * _BYTES_OF_UUID)()
    if cuda.cuDeviceGet(ctypes.byref(device), number) or cuda.cuDeviceGetUuid(found, device):
        return "unknown"
    return f"GPU-{uuid.UUID(bytes=bytes(found))}"
