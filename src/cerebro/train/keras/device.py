"""Where Keras computes: device, threads and memory of the backend it runs on."""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
from collections.abc import Iterator
from typing import Any

import keras

from cerebro.errors import UsageError
from cerebro.train.memory import explain_memory, host_bytes, host_memory
from cerebro.train.visit import OutOfMemory

logger = logging.getLogger("cerebro.train")

_NAME = re.compile(r"(auto|cpu|cuda|gpu)(?::(\d+))?")
#: What the backends say of memory, on the device and on the host.
_MEMORY = re.compile(
    r"out of memory|RESOURCE_EXHAUSTED|OOM when allocating|can't allocate memory|ALLOC_FAILED"
    r"|not enough memory: you tried to allocate",
    re.IGNORECASE,
)


class Device:
    """One device of the backend.

    Args:
        name: "auto", "cpu", "cuda" or "cuda:1".
        worker: Without a number, workers take turns at the devices.
        threads: Of operations on the CPU; 0 leaves them as they are. JAX takes no number: it
            gives the same results with any.
    """

    def __init__(self, name: str, *, worker: int, threads: int) -> None:
        self.backend: str = keras.config.backend()
        self._engine: Any = importlib.import_module(self.backend)
        parsed = _NAME.fullmatch(name)
        count = self._count_gpus() if parsed is not None and parsed[1] != "cpu" else 0
        if parsed is None or (parsed[1] in ("cuda", "gpu") and count <= int(parsed[2] or 0)):
            raise UsageError(
                f"device must be 'auto', 'cpu', or 'cuda' with or without the number of one that "
                f"{self.backend} sees, but got {name!r} and it sees {count}."
            )
        #: The kind of device.
        self.kind = "cuda" if count else "cpu"
        number = int(parsed[2]) if parsed[2] else worker % max(1, count)
        self._name = f"gpu:{number}" if count else "cpu"
        self._threads_before: int | None = None
        if threads:
            self._set_threads(threads)

    def __call__(self) -> Any:
        """A scope in which variables and operations are on this device."""
        return keras.device(self._name)

    def version(self) -> str:
        """That of the backend."""
        return str(self._engine.__version__)

    def memory_bytes(self) -> int:
        """The memory of the device, or of the host where the backend does not tell."""
        if self.kind == "cuda" and self.backend == "torch":
            return int(self._engine.cuda.mem_get_info(int(self._name.partition(":")[2]))[1])
        return host_bytes()

    def free(self) -> None:
        """Give back memory of the device that nothing uses."""
        if self.kind == "cuda" and self.backend == "torch":
            self._engine.cuda.empty_cache()

    def close(self) -> None:
        """Give back the threads."""
        if self._threads_before is not None:
            self._engine.set_num_threads(self._threads_before)

    def _count_gpus(self) -> int:
        if self.backend == "torch":
            return int(self._engine.cuda.device_count())
        if self.backend == "tensorflow":
            return len(self._engine.config.list_physical_devices("GPU"))
        return sum(found.platform == "gpu" for found in self._engine.devices())

    def _set_threads(self, threads: int) -> None:
        if self.backend == "torch":
            self._threads_before = self._engine.get_num_threads()
            self._engine.set_num_threads(threads)
        elif self.backend == "tensorflow":
            settings = self._engine.config.threading
            for what in ("intra", "inter"):
                if getattr(settings, f"get_{what}_op_parallelism_threads")() == threads:
                    continue
                try:
                    getattr(settings, f"set_{what}_op_parallelism_threads")(threads)
                except RuntimeError:
                    logger.warning(
                        "TensorFlow is in use already in this process and keeps the threads that "
                        "it has, instead of %d: sums may differ in the last bit.",
                        threads,
                    )


@contextlib.contextmanager
def memory_guard(hint: str) -> Iterator[None]:
    """Raises `OutOfMemory` with this hint in place of the many errors that mean it."""
    try:
        yield
    except Exception as error:
        found = _memory_error(error)
        if found is None:
            raise
        raise OutOfMemory(explain_memory(host_memory(), found, hint)) from found


def _memory_error(error: BaseException | None) -> BaseException | None:
    """The error that says so, among this one and its causes."""
    while error is not None:
        name = type(error).__name__
        if isinstance(error, MemoryError) or name in ("OutOfMemoryError", "ResourceExhaustedError"):
            return error
        if isinstance(error, RuntimeError) and _MEMORY.search(str(error)):
            return error
        error = error.__cause__
    return None
