"""How long a worker may be silent."""

from __future__ import annotations

import os
from dataclasses import dataclass

from cerebro.errors import UsageError

START = "CEREBRO_START_S"
#: Of the time until a worker must be ready, what the leader of a gang waits for its other ranks: a
#: little less, so that the reason is told.
_GATHER_SHARE = 0.9
_VARIABLES = {
    "heartbeat_s": "CEREBRO_HEARTBEAT_S",
    "stall_s": "CEREBRO_STALL_S",
    "start_s": START,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds after which a worker is taken for hung.

    >>> Limits().stall_s
    600.0
    """

    #: Without a sign of life from its process.
    heartbeat_s: float = 60.0
    #: Without a batch, or twenty times as long as a batch takes if that is more.
    stall_s: float = 600.0
    #: Until it is ready for its first visit.
    start_s: float = 300.0
    #: From SIGTERM to SIGKILL.
    stop_s: float = 10.0

    @property
    def gather_s(self) -> float:
        """How long the leader of a gang waits for its other ranks."""
        return _GATHER_SHARE * self.start_s

    @staticmethod
    def start_for(gather_s: float) -> float:
        """The `start_s` of workers whose leaders wait so long.

        >>> round(Limits(start_s=Limits.start_for(1800.0)).gather_s)
        1800
        """
        return gather_s / _GATHER_SHARE

    @classmethod
    def from_environment(cls) -> Limits:
        """The defaults, but for those that environment variables set."""
        given = {
            field: _seconds(name) for field, name in _VARIABLES.items() if os.environ.get(name)
        }
        return cls(**given)


def positive(name: str, value: object) -> float:
    """An argument that must be a number above 0.

    >>> positive("start_timeout", 30)
    30.0
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UsageError(f"`{name} > 0` must hold, but got {name}={value!r}.")
    return float(value)


def _seconds(name: str) -> float:
    text = os.environ[name]
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise UsageError(f"{name} must be a number of seconds above 0, but is {text!r}.")
    return value
