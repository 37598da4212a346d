"""When to say that a run waits for workers: nobody would know otherwise."""

from __future__ import annotations

import math

from cerebro.backend.ray.cluster import Cluster

_FIRST_S = 10.0
_MOST_S = 600.0


class Vacancy:
    """Tells when there has been no worker for a while, at growing intervals.

    Moments are those of one monotonic clock.

    >>> vacancy = Vacancy()
    >>> vacancy.note(100.0, is_vacant=True), vacancy.due
    (False, 110.0)
    >>> vacancy.note(110.0, is_vacant=True), vacancy.due
    (True, 130.0)
    >>> vacancy.note(115.0, is_vacant=False), vacancy.due
    (False, inf)
    """

    def __init__(self) -> None:
        self._wait_s = _FIRST_S
        #: When to say so next; never while there is a worker.
        self.due = math.inf

    def note(self, now: float, *, is_vacant: bool) -> bool:
        """Whether it is time to say so."""
        if not is_vacant:
            self.due, self._wait_s = math.inf, _FIRST_S
            return False
        if self.due == math.inf:
            self.due = now + self._wait_s
            return False
        if now < self.due:
            return False
        self._wait_s = min(2 * self._wait_s, _MOST_S)
        self.due = now + self._wait_s
        return True


def waiting(cluster: Cluster, workers: int, ranks: int) -> str:
    """What a run without workers waits for: so many, each of so many ranks."""
    try:
        places = cluster.places
        # Ray does not tell which of these it is.
        why = "others may use them, or packages be installed there; " if places >= ranks else ""
        told = (
            f"{workers * ranks} asked for, and the machines of the Ray cluster have places for "
            f"{places} ({room(cluster, ranks)}): {why}`ray start --address={cluster.address}` on "
            "another machine adds some"
        )
    except Exception as error:
        told = f"Ray does not say why there are none ({type(error).__name__}: {error!s:.200})"
    return f"the run waits for workers: {told}. Ctrl-C stops it; the same command resumes it."


def room(cluster: Cluster, ranks: int) -> str:
    """What each worker needs and what there is."""
    told = "" if ranks == 1 else f"; a gang needs that of {ranks} workers at once"
    return f"{cluster.room}{told}"
