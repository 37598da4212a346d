"""How much of the workers' time was training, and where the rest went.

Efficiency is the share that visits spent in their loops: computing, and loading the batches to
compute with. What a worker does beside that, it would not have to do alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from cerebro.track.text import show_workers

#: Parts that make up the efficiency; the others are lost.
_USED = ("compute", "loading")


class Span(Protocol):
    """The timing of one answered visit, of one trial or of a stack of them.

    All times are in seconds since the run began.
    """

    @property
    def worker(self) -> int: ...
    @property
    def start_s(self) -> float: ...
    @property
    def end_s(self) -> float: ...
    @property
    def compute_s(self) -> float: ...
    @property
    def load_s(self) -> float: ...
    @property
    def data_s(self) -> float: ...
    @property
    def hop_s(self) -> float: ...
    @property
    def checkpoint_s(self) -> float: ...
    @property
    def comm_s(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Where the workers' time went, from the first dispatch to the last answer.

    ``capacity_s`` is what the workers could have computed: the sum, over workers, of the time
    each was alive. The seven parts add up to it. Start-up comes before and is not part of it.

    >>> s = Summary(efficiency=0.9, workers=2, visits=8, makespan_s=10.0, capacity_s=20.0,
    ...             compute_s=18.0, data_s=0.1, hop_s=0.4, checkpoint_s=0.0, wait_s=1.5,
    ...             startup_s=2.9)
    >>> s.line()
    'efficiency 0.900 of 2 workers over 10.0 s (wait 7.5 %, hop 2.0 %, data 0.5 %; start-up 2.9 s)'
    """

    efficiency: float
    workers: int
    visits: int
    makespan_s: float
    capacity_s: float
    compute_s: float
    data_s: float
    hop_s: float
    checkpoint_s: float
    wait_s: float
    startup_s: float
    #: Why the run ended before its trials did, or which goal it missed; after how long, over all
    #: its processes, it had what it was to reach.
    ending: str | None = None
    time_to_target_s: float | None = None
    #: Ranks of a gang waiting for each other.
    comm_s: float = 0.0
    #: How many of them a worker is.
    ranks: int = 1
    #: Loading batches, between steps; as good as computing to `efficiency`.
    load_s: float = 0.0

    def parts(self) -> dict[str, float]:
        """Fractions of the capacity, adding up to 1 (all 0 when nothing ran)."""
        seconds = {
            "compute": self.compute_s,
            "loading": self.load_s,
            "hop": self.hop_s,
            "data": self.data_s,
            "checkpoint": self.checkpoint_s,
            "communication": self.comm_s,
            "wait": self.wait_s,
        }
        return {k: v / self.capacity_s if self.capacity_s else 0.0 for k, v in seconds.items()}

    def line(self) -> str:
        """One line for people; parts below 0.05 % are left out."""
        rest = sorted(((v, k) for k, v in self.parts().items() if k not in _USED), reverse=True)
        lost = ", ".join(f"{name} {100 * part:.1f} %" for part, name in rest if part >= 0.0005)
        workers = show_workers(self.workers, self.ranks)
        text = f"efficiency {self.efficiency:.3f} of {workers} over {self.makespan_s:.1f} s"
        return f"{text} ({lost or 'nothing lost'}; start-up {self.startup_s:.1f} s)"


@dataclass(slots=True)
class _Lane:
    """One worker: when it was alive, and how long it had a visit in hand."""

    joined_s: float | None = None
    left_s: float | None = None
    closed: list[tuple[float | None, float]] = field(default_factory=list)
    busy_s: float = 0.0
    last_s: float = float("-inf")

    def alive_s(self, first: float, last: float) -> float:
        lives = list(self.closed)
        if self.left_s is None:
            lives.append((self.joined_s, last))
        total = 0.0
        for begin, end in lives:
            start = first if begin is None else max(begin, first)
            total += max(0.0, min(end, last) - start)
        return total


class Efficiency:
    """Adds up visits as they are answered; costs about a microsecond a visit and no memory.

    A worker counts from its arrival, or from the first dispatch if that is later, to its death; one
    that never got a visit counts too, as waiting. If nobody tells of arrivals, all are there.

    >>> from types import SimpleNamespace as V
    >>> e = Efficiency(workers=1)
    >>> e.visit(V(worker=0, start_s=1.0, end_s=3.0, compute_s=1.5, load_s=0.4, data_s=0.02,
    ...           hop_s=0.02, checkpoint_s=0.0, comm_s=0.0))
    >>> round(e.summary().efficiency, 3), round(e.summary().parts()["hop"], 3)
    (0.95, 0.04)
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._has_arrivals = False
        self._lanes: dict[int, _Lane] = {}
        self._first = float("inf")
        self._last = float("-inf")
        self._visits = 0
        self._compute = self._load = self._data = self._hop = self._checkpoint = self._comm = 0.0

    def visit(self, span: Span) -> None:
        """Count one answered visit."""
        start, end = span.start_s, span.end_s
        lane = self._lane(span.worker)
        self._visits += 1
        self._first = min(self._first, start)
        self._last = max(self._last, end)
        # Visits handed out ahead of time overlap; time in hand is counted once.
        lane.busy_s += max(0.0, end - max(start, lane.last_s))
        lane.last_s = max(lane.last_s, end)
        self._compute += span.compute_s
        self._load += span.load_s
        self._data += span.data_s
        self._hop += span.hop_s
        self._checkpoint += span.checkpoint_s
        self._comm += span.comm_s

    def worker(self, worker: int, *, alive: bool, time_s: float) -> None:
        """Count a worker from, or until, ``time_s``."""
        lane = self._lane(worker)
        if not alive:
            lane.closed.append((lane.joined_s, time_s))
            lane.left_s = time_s
        else:
            self._has_arrivals = True
            lane.joined_s, lane.left_s = time_s, None

    def summary(self) -> Summary:
        """The account so far."""
        workers = len(self._lanes) if self._has_arrivals else self._workers
        if not self._visits:
            return _summary(workers, 0, 0.0, 0.0, (0.0,) * 7, 0.0)
        first, last = self._first, self._last
        lanes = self._lanes.values()
        silent = max(0, workers - len(self._lanes))
        capacity = sum(lane.alive_s(first, last) for lane in lanes) + silent * (last - first)
        named = self._compute + self._load + self._data + self._comm
        # What a visit in hand did not spend on anything named is the messages to and fro.
        hop = self._hop + max(0.0, sum(lane.busy_s for lane in lanes) - named - self._hop)
        known = named + hop + self._checkpoint
        capacity = max(capacity, known)
        wait = capacity - known
        parts = (self._compute, self._load, self._data, hop, self._checkpoint, wait, self._comm)
        return _summary(workers, self._visits, last - first, capacity, parts, first)

    def _lane(self, worker: int) -> _Lane:
        lane = self._lanes.get(worker)
        if lane is None:
            lane = self._lanes[worker] = _Lane()
        return lane


def _summary(
    workers: int,
    visits: int,
    makespan: float,
    capacity: float,
    parts: tuple[float, ...],
    startup: float,
) -> Summary:
    compute, load, data, hop, checkpoint, wait, comm = parts
    return Summary(
        efficiency=(compute + load) / capacity if capacity else 0.0,
        workers=workers,
        visits=visits,
        makespan_s=makespan,
        capacity_s=capacity,
        compute_s=compute,
        load_s=load,
        data_s=data,
        hop_s=hop,
        checkpoint_s=checkpoint,
        wait_s=wait,
        startup_s=startup,
        comm_s=comm,
    )
