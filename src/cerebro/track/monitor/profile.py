"""`profile: {interval: 1, sinks: [csv, tensorboard]}`: whether and how a run is sampled."""

from __future__ import annotations

import contextlib
import logging
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass

from cerebro.errors import UsageError
from cerebro.storage import layout
from cerebro.track.monitor.monitor import SINKS, Monitor
from cerebro.types import Json

logger = logging.getLogger("cerebro.track")

_KEYS = ("interval", "sinks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How a run is sampled.

    >>> Profile.parse({"interval": 2})
    Profile(interval_s=2.0, sinks=('csv', 'tensorboard'))
    >>> Profile.parse(False) is None, Profile.parse(True)
    (True, Profile(interval_s=1.0, sinks=('csv', 'tensorboard')))
    """

    interval_s: float = 1.0
    sinks: tuple[str, ...] = SINKS

    @classmethod
    def parse(cls, value: Json) -> Profile | None:
        """What a file says about it: nothing or false, true, or a mapping; else a UsageError."""
        if value is None or value is False:
            return None
        if value is True:
            return cls()
        if not isinstance(value, dict):
            raise UsageError(f"profile must be true, false or a mapping, but got {value!r:.80}.")
        unknown = [key for key in value if key not in _KEYS]
        if unknown:
            known = ", ".join(_KEYS)
            raise UsageError(f"unknown key of profile {unknown[0]!r}. Known: {known}.")
        return cls(
            interval_s=_interval(value.get("interval", 1.0)),
            sinks=_sinks(value.get("sinks", list(SINKS))),
        )


def _interval(value: Json) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0.05 <= float(str(value)) < float("inf"):
        raise UsageError(
            f"profile.interval must be a number of seconds, 0.05 at least, but got {value!r:.80}."
        )
    return float(str(value))


def _sinks(value: Json) -> tuple[str, ...]:
    named = [value] if isinstance(value, str) else value
    if not isinstance(named, list) or not named or any(sink not in SINKS for sink in named):
        raise UsageError(
            f"profile.sinks must be a list of {' and '.join(SINKS)}, but got {value!r:.80}."
        )
    return tuple(str(sink) for sink in named)


def profiling(
    profile: Profile | None,
    run: str,
    *,
    node: int = 0,
    host: str | None = None,
    pid: int | None = None,
) -> AbstractContextManager[object]:
    """A monitor around a run, or nothing where none is wanted.

    Args:
        run: The directory of the run. One that is no directory of this machine is not sampled.
        node: Which machine of several this is: each has a file of its own, the first the plain one.
        host: What this machine is called in the samples; default its name.
        pid: The process that is looked at, with all that it starts; default this one.

    >>> with profiling(None, "nowhere"): pass
    """
    if profile is None:
        return contextlib.nullcontext()
    if "://" in run:
        logger.warning("nothing is sampled: %s is no directory of this machine.", run)
        return contextlib.nullcontext()
    file = layout.RESOURCES if node == 0 else layout.RESOURCES.replace(".", f"-node{node}.")
    return Monitor(
        os.path.abspath(run),
        interval_s=profile.interval_s,
        sinks=profile.sinks,
        host=host,
        pid=pid,
        file=file,
    )
