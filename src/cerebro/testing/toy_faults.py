"""How trials of the toy framework go wrong, on demand."""

from __future__ import annotations

import ctypes
import enum
import math
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from cerebro.train.visit import OutOfMemory, VisitCall
from cerebro.types import Params


class Fault(enum.StrEnum):
    """How a trial goes wrong. `params["fail"]` is one of these, or a dict with `kind`."""

    RAISE = "raise"
    #: Raise in a stack, and nowhere else.
    RAISE_STACKED = "raise_stacked"
    #: Raise an exception that pickle refuses.
    UNPICKLABLE = "unpicklable"
    #: End the worker with `os._exit`.
    EXIT = "exit"
    SEGFAULT = "segfault"
    #: SIGKILL to the worker by itself.
    KILL = "kill"
    #: Never answer.
    HANG = "hang"
    #: The same, and SIGTERM does not help.
    STUBBORN = "stubborn"
    #: Stop as by SIGSTOP.
    STOP = "stop"
    #: Run out of memory where more than `rows` rows are trained at a time.
    MEMORY = "memory"
    NAN_LOSS = "nan_loss"
    #: The same, and all that are trained with it diverge too.
    NAN_STACK = "nan_stack"
    #: A weight becomes infinite.
    NAN_STATE = "nan_state"
    #: The accuracy of an evaluation is NaN.
    NAN_METRIC = "nan_metric"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """A fault and where it strikes; the first `attempts` attempts of that visit alone.

    >>> FaultPlan.of({"fail": {"kind": "raise", "epoch": 1, "attempts": 1}})
    FaultPlan(kind=<Fault.RAISE: 'raise'>, epoch=1, step=0, batch=0, attempts=1, rows=0)
    """

    kind: Fault
    epoch: int = 0
    step: int = 0
    batch: int = 0
    attempts: int = 1_000_000
    rows: int = 0

    @classmethod
    def of(cls, params: Params) -> FaultPlan | None:
        """The plan in a trial's params."""
        given = params.get("fail")
        if given is None:
            return None
        fields = dict(given) if isinstance(given, Mapping) else {"kind": given}
        kind = Fault(str(fields.pop("kind")))
        return cls(kind=kind, **{name: int(str(value)) for name, value in fields.items()})

    def strikes(self, call: VisitCall) -> bool:
        """Whether it strikes in this visit."""
        return (self.epoch, self.step) == (call.epoch, call.step) and call.attempt < self.attempts


def strike(
    kind: Fault, loss: float, tensors: Mapping[str, npt.NDArray[np.float64]], *, is_stacked: bool
) -> float:
    """Go wrong; the loss afterwards, where there is an afterwards."""
    if kind is Fault.RAISE or (kind is Fault.RAISE_STACKED and is_stacked):
        raise ValueError("this trial raises on purpose")
    if kind is Fault.UNPICKLABLE:
        raise UnpicklableError()
    if kind is Fault.EXIT:
        os._exit(1)
    if kind is Fault.SEGFAULT:
        ctypes.string_at(0)
    if kind is Fault.KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    if kind is Fault.STUBBORN:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if kind in (Fault.HANG, Fault.STUBBORN):
        threading.Event().wait()
    if kind is Fault.STOP:
        os.kill(os.getpid(), signal.SIGSTOP)
    if kind is Fault.NAN_STATE:
        tensors["weight"][0, 0] = np.inf
    return math.nan if kind in (Fault.NAN_LOSS, Fault.NAN_STACK) else loss


def run_out_of_memory(plan: FaultPlan, call: VisitCall, *, is_auto: bool) -> None:
    """Raise `OutOfMemory` if the call trains on more rows at a time than there is room for."""
    rows = call.micro_batch or call.batch_size
    if rows > plan.rows:
        is_splittable = is_auto and rows > 1 and call.stack is None
        raise OutOfMemory(f"out of memory with {rows} rows", is_splittable=is_splittable)


class UnpicklableError(Exception):
    """Neither this exception nor its argument can be pickled."""

    def __init__(self) -> None:
        super().__init__(lambda: None)

    def __reduce__(self) -> NoReturn:
        raise TypeError("this exception cannot be pickled, on purpose")

    def __str__(self) -> str:
        return "this trial raises what cannot be pickled"
