"""GPUs, through the library of NVIDIA's driver; none where there is no such library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, byref, c_uint, c_ulonglong, c_void_p

_LIBRARY = "libnvidia-ml.so.1"


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class _Memory(ctypes.Structure):
    """The second version: without what the driver keeps for itself."""

    _fields_ = (
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    )


_MEMORY_VERSION = ctypes.sizeof(_Memory) | 2 << 24


class Gpus:
    """All GPUs of this machine; what one of them does not tell is left out.

    >>> gpus = Gpus("no-such-library.so")
    >>> gpus.count, gpus.read()
    (0, {})
    >>> gpus.close()
    """

    def __init__(self, library: str = _LIBRARY) -> None:
        self._handles: list[c_void_p] = []
        self._nvml: ctypes.CDLL | None = None
        #: Drivers before 510 have none.
        self._read_memory: Callable[..., int] | None = None
        try:
            nvml = ctypes.CDLL(library)
            if nvml.nvmlInit_v2() == 0:
                self._nvml = nvml
                self._read_memory = getattr(nvml, "nvmlDeviceGetMemoryInfo_v2", None)
                self._find(nvml)
        except (OSError, AttributeError):
            return

    @property
    def count(self) -> int:
        return len(self._handles)

    def read(self) -> dict[str, float]:
        """Of each: utilisation in percent, memory in bytes, power in watts."""
        nvml = self._nvml
        found: dict[str, float] = {}
        if nvml is None:
            return found
        for number, handle in enumerate(self._handles):
            used, memory, power = _Utilization(), _Memory(version=_MEMORY_VERSION), c_uint()
            if nvml.nvmlDeviceGetUtilizationRates(handle, byref(used)) == 0:
                found[f"gpu/{number}/util"] = float(used.gpu)
            if self._read_memory is not None and self._read_memory(handle, byref(memory)) == 0:
                found[f"gpu/{number}/memory"] = float(memory.used)
            if nvml.nvmlDeviceGetPowerUsage(handle, byref(power)) == 0:
                found[f"gpu/{number}/power"] = power.value / 1000
        return found

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None

    def _find(self, nvml: ctypes.CDLL) -> None:
        nvml.nvmlDeviceGetHandleByIndex_v2.argtypes = [c_uint, POINTER(c_void_p)]
        count = c_uint()
        if nvml.nvmlDeviceGetCount_v2(byref(count)) != 0:
            return
        for number in range(count.value):
            handle = c_void_p()
            if nvml.nvmlDeviceGetHandleByIndex_v2(number, byref(handle)) == 0:
                self._handles.append(handle)
