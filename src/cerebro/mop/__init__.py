"""The planner of model hopping: pure, standard library only.

Events go in, instructions come out; the same code plans a run, simulates ten million visits and
replays a journal.
"""

from __future__ import annotations

from cerebro.mop.failures import Budget, Cause, Decision, History, decide
from cerebro.mop.invariants import InvariantError, validate
from cerebro.mop.messages import (
    Drain,
    Durable,
    EpochEnded,
    Event,
    Finished,
    Instruction,
    Resume,
    Stalled,
    Start,
    UnitAdded,
    UnitExtended,
    UnitFailed,
    UnitFinished,
    UnitPaused,
    UnitReduced,
    UnitStopped,
    VisitDone,
    VisitFailed,
    WorkerJoined,
    WorkerLost,
    from_dict,
    to_dict,
)
from cerebro.mop.order import shard_at, visits
from cerebro.mop.planner import Planner
from cerebro.mop.simulate import Costs, Outage, Simulation, simulate
from cerebro.mop.visit import Phase, Unit, Visit

__all__ = [
    "Budget",
    "Cause",
    "Costs",
    "Decision",
    "Drain",
    "Durable",
    "EpochEnded",
    "Event",
    "Finished",
    "History",
    "Instruction",
    "InvariantError",
    "Outage",
    "Phase",
    "Planner",
    "Resume",
    "Simulation",
    "Stalled",
    "Start",
    "Unit",
    "UnitAdded",
    "UnitExtended",
    "UnitFailed",
    "UnitFinished",
    "UnitPaused",
    "UnitReduced",
    "UnitStopped",
    "Visit",
    "VisitDone",
    "VisitFailed",
    "WorkerJoined",
    "WorkerLost",
    "decide",
    "from_dict",
    "shard_at",
    "simulate",
    "to_dict",
    "validate",
    "visits",
]
