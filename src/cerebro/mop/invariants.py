"""What must hold for a planner after every event."""

from __future__ import annotations

from collections.abc import Iterator

from cerebro.mop.order import shard_at
from cerebro.mop.planner import Planner
from cerebro.mop.state import UnitState
from cerebro.mop.visit import Phase, Visit


class InvariantError(AssertionError):
    """The planner contradicts itself; the message ends with the unit's story, if it was kept."""

    def __init__(self, problem: str, story: list[dict[str, object]]) -> None:
        super().__init__("\n  ".join([problem, *map(str, story)]))
        self.problem = problem
        self.story = story


def validate(planner: Planner) -> None:
    """Raise InvariantError where something that must always hold does not.

    >>> validate(Planner(train_shards=4))
    """
    by_unit: dict[int, list[Visit]] = {}
    for visit in planner.running().values():
        by_unit.setdefault(visit.unit, []).append(visit)
    ready = [state.id for state in planner.placement.ready()]
    for problem in _of_workers(planner, ready):
        raise InvariantError(problem, [])
    for unit, state in planner.units.items():
        visits = by_unit.get(unit, [])
        for problem in _of_unit(planner, state, visits, ready.count(unit)):
            raise InvariantError(f"unit {unit}: {problem}", planner.story(unit))
    unfinished = any(not state.closed for state in planner.units.values())
    if planner.finished == unfinished:
        raise InvariantError(f"finished={planner.finished}, but unfinished={unfinished}", [])


def _of_workers(planner: Planner, ready: list[int]) -> Iterator[str]:
    idle, busy = set(planner.idle), set(planner.running())
    if idle & busy:
        yield f"a worker is idle or busy, not both, but these are: {sorted(idle & busy)}"
    if idle | busy != set(planner.workers):
        yield f"live workers are idle or busy, but {planner.workers} live, {idle=}, {busy=}"
    placement = planner.placement
    is_barred = placement.is_barred and busy
    may_wait = is_barred or placement.balance.is_waiting_right(idle, busy)
    if idle and ready and not planner.is_draining and not may_wait:
        yield f"no worker idles while something is ready, but {idle=}, {ready=}"
    for visit in planner.running().values():
        if planner.units[visit.unit].history(visit.step).memory and len(busy) > 1:
            yield f"{visit} runs alone after it was out of memory, but {busy=}"


def _of_unit(planner: Planner, state: UnitState, visits: list[Visit], ready: int) -> Iterator[str]:
    if state.closed:
        if ready or state.evals:
            yield "a closed unit has nothing ready"
        return
    trains = [visit for visit in visits if visit.phase is Phase.TRAIN]
    evals = [visit.step for visit in visits if visit.phase is Phase.EVAL]
    is_training = state.step < planner.train_shards
    if ready > 1:
        yield f"a unit is ready once, but is {ready} times"
    if state.done != state.epoch * planner.train_shards + state.step:
        yield f"{state.done} train visits are done at epoch {state.epoch}, step {state.step}"
    if is_training:
        yield from _of_train(planner, state, trains, evals, ready)
    else:
        yield from _of_eval(planner, state, trains, evals, ready)
    for visit in visits:
        history = state.history(visit.step)
        if (
            visit.attempt != history.attempts
            or history.attempts - history.again >= planner.budget.attempts
        ):
            yield f"attempts are numbered by failures and within the budget, but {visit} runs"


def _of_train(
    planner: Planner, state: UnitState, trains: list[Visit], evals: list[int], ready: int
) -> Iterator[str]:
    lag = state.done - state.durable
    if evals or state.evals_left:
        yield f"no eval visit while training, but {evals} run and {state.evals_left} are left"
    if len(trains) + ready > 1:
        yield f"one train visit at a time, but {trains} run and {ready} is ready"
    if (trains or ready) and not 0 <= lag <= planner.max_lag:
        yield f"a train visit starts while at most {planner.max_lag} are not durable, but {lag} are"
    if state.paused and ready:
        yield "a paused unit has nothing ready"
    if not trains and not ready and lag <= planner.max_lag and not state.paused:
        yield "a unit that may go on is ready or running, but is neither"
    shard = shard_at(state.unit.start, state.epoch, state.step, planner.train_shards)
    for visit in trains:
        if (visit.epoch, visit.step, visit.shard) != (state.epoch, state.step, shard):
            yield f"it is at epoch {state.epoch}, step {state.step}, {shard=}, but runs {visit}"


def _of_eval(
    planner: Planner, state: UnitState, trains: list[Visit], evals: list[int], ready: int
) -> Iterator[str]:
    pending = [*evals, *state.evals]
    if trains:
        yield f"no train visit while evaluating, but {trains} run"
    if len(set(pending)) != len(pending) or len(pending) != state.evals_left:
        yield f"{state.evals_left} eval visits are left, but {pending} run or wait"
    if ready != (bool(state.evals) and not state.paused):
        yield f"a unit is ready while eval visits wait, but ready={ready} with {state.evals}"
    if not pending:
        yield "an epoch ends with its last eval visit"
