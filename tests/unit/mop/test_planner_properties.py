"""Whatever the order of answers, failures, losses and stops: the plan ends, nothing is repeated."""

from __future__ import annotations

import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cerebro.mop.failures import Cause
from cerebro.mop.invariants import validate
from cerebro.mop.messages import (
    Durable,
    EpochEnded,
    Event,
    Finished,
    Instruction,
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
)
from cerebro.mop.order import visits
from cerebro.mop.planner import Planner
from cerebro.mop.visit import Phase, Unit, Visit

WORKERS = 4


class PlanMachine(RuleBasedStateMachine):
    """A driver that is as unlucky as it can be."""

    @initialize(
        train=st.integers(1, 4),
        val=st.integers(0, 3),
        lag=st.sampled_from([None, 0, 1, 1, 2]),
    )
    def begin(self, train: int, val: int, lag: int | None) -> None:
        self.planner = Planner(train, val, max_lag=lag, story=10_000)
        self.has_lag = lag is not None
        self.units: dict[int, Unit] = {}
        self.closed: set[int] = set()
        self.paused: set[int] = set()
        #: Trials that each unit's visits of an epoch must have.
        self.members: dict[tuple[int, int], tuple[int, ...]] = {}
        self.staying: dict[int, tuple[int, ...]] = {}
        self.running: dict[int, Visit] = {}
        self.answered: list[tuple[Visit, int]] = []
        self.log: dict[int, list[tuple[int, Phase, int, int]]] = {}
        self.told: dict[int, list[Instruction]] = {}
        self.num_finished = 0
        self.num_reopened = 0

    def send(self, event: Event) -> list[Instruction]:
        instructions = self.planner.handle(event)
        for instruction in instructions:
            if isinstance(instruction, Start):
                (worker,) = instruction.workers
                assert worker not in self.running
                assert instruction.visit.unit not in self.closed | self.paused
                self.running[worker] = instruction.visit
                where = (instruction.visit.unit, instruction.visit.epoch)
                expected = self.members.setdefault(where, self.staying[where[0]])
                assert instruction.trials == expected
            elif isinstance(instruction, UnitFinished | UnitFailed):
                self.told[instruction.unit].append(instruction)
                self.closed.add(instruction.unit)
            elif isinstance(instruction, EpochEnded):
                self.told[instruction.unit].append(instruction)
            elif isinstance(instruction, Finished):
                self.num_finished += 1
        return instructions

    def answer(self, worker: int, seconds: float = 1.0) -> None:
        visit = self.running.pop(worker)
        self.answered.append((visit, worker))
        if visit.unit not in self.closed:
            self.log[visit.unit].append((visit.epoch, visit.phase, visit.step, visit.shard))
        self.send(self.done(visit, worker, seconds))

    @staticmethod
    def done(visit: Visit, worker: int, seconds: float = 1.0) -> VisitDone:
        unit, epoch, step, phase, _, attempt = visit
        return VisitDone(unit, epoch, step, phase, attempt, worker, seconds)

    @rule(data=st.data(), epochs=st.integers(1, 3), trials=st.integers(1, 3))
    def add_unit(self, data: st.DataObject, epochs: int, trials: int) -> None:
        number = len(self.units)
        if number >= 6:
            return
        self.num_reopened += self.planner.finished and number > 0
        members = tuple(range(10 * number, 10 * number + trials))
        unit = Unit(number, members, data.draw(st.integers(0, 5)), epochs)
        self.units[number], self.staying[number] = unit, members
        self.log[number], self.told[number] = [], []
        self.send(UnitAdded(unit))

    @rule(worker=st.integers(0, WORKERS - 1), holds=st.frozensets(st.integers(0, 3)))
    def join(self, worker: int, holds: frozenset[int]) -> None:
        self.send(WorkerJoined(worker, holds))

    @rule(
        worker=st.integers(0, WORKERS - 1),
        cause=st.sampled_from([Cause.LOST, Cause.LOST, Cause.MEMORY]),
    )
    def lose(self, worker: int, cause: Cause) -> None:
        visit = self.running.pop(worker, None)
        if visit is not None:
            self.answered.append((visit, worker))
        self.send(WorkerLost(worker, cause))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), seconds=st.floats(0.0, 100.0))
    def finish_visit(self, data: st.DataObject, seconds: float) -> None:
        self.answer(data.draw(st.sampled_from(sorted(self.running))), seconds)

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(),
        cause=st.sampled_from([Cause.ERROR, Cause.ERROR, *Cause]),
        signature=st.sampled_from("abc"),
    )
    def fail_visit(self, data: st.DataObject, cause: Cause, signature: str) -> None:
        worker = data.draw(st.sampled_from(sorted(self.running)))
        visit = self.running.pop(worker)
        self.answered.append((visit, worker))
        unit, epoch, step, phase, _, attempt = visit
        self.send(VisitFailed(unit, epoch, step, phase, attempt, worker, cause, signature))

    @precondition(lambda self: self.answered)
    @rule(data=st.data())
    def repeat_an_old_answer(self, data: st.DataObject) -> None:
        visit, worker = data.draw(st.sampled_from(self.answered))
        before = [self.planner.progress(unit) for unit in self.units]
        assert self.send(self.done(visit, worker)) == []
        assert [self.planner.progress(unit) for unit in self.units] == before

    @precondition(lambda self: self.units)
    @rule(data=st.data())
    def stop_unit(self, data: st.DataObject) -> None:
        unit = data.draw(st.sampled_from(sorted(self.units)))
        self.closed.add(unit)
        self.send(UnitStopped(unit))

    @precondition(lambda self: self.units)
    @rule(data=st.data())
    def reduce_unit(self, data: st.DataObject) -> None:
        unit = data.draw(st.sampled_from(sorted(self.units)))
        staying = self.staying[unit][data.draw(st.integers(0, 1)) :]
        if unit not in self.closed:
            # Those that wait for a worker have the trials that the epoch began with.
            self.members.setdefault(
                (unit, self.planner.progress(unit)[0]), self.planner.units[unit].trials
            )
            self.staying[unit] = staying
            if not staying:
                self.closed.add(unit)
        self.send(UnitReduced(unit, staying if unit not in self.closed or not staying else ()))

    @precondition(lambda self: self.units)
    @rule(data=st.data())
    def pause_unit(self, data: st.DataObject) -> None:
        unit = data.draw(st.sampled_from(sorted(self.units)))
        if unit not in self.closed:
            self.paused.add(unit)
        assert self.send(UnitPaused(unit)) == []

    @precondition(lambda self: self.units)
    @rule(data=st.data(), epochs=st.integers(1, 4))
    def extend_unit(self, data: st.DataObject, epochs: int) -> None:
        unit = data.draw(st.sampled_from(sorted(self.units)))
        is_open = not self.planner.units[unit].closed
        if is_open and epochs > self.units[unit].epochs:
            self.units[unit] = self.units[unit]._replace(epochs=epochs)
        self.send(UnitExtended(unit, epochs))

    def at_rest(self) -> list[int]:
        """Paused units of which nothing runs."""
        busy = {visit.unit for visit in self.running.values()}
        return sorted(self.paused - self.closed - busy)

    @precondition(lambda self: self.at_rest())
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        self.resume(data.draw(st.sampled_from(self.at_rest())))

    def resume(self, number: int) -> None:
        """Take a paused unit out, and add it again where it is; its epoch is evaluated anew."""
        epoch, step = self.planner.progress(number)
        trials = self.planner.units[number].trials
        self.log[number] = [line for line in self.log[number] if line[:2] != (epoch, Phase.EVAL)]
        self.send(UnitStopped(number))
        self.add_again(number, self.units[number]._replace(trials=trials), epoch, step)

    def add_again(self, number: int, unit: Unit, epoch: int, step: int) -> None:
        self.num_reopened += self.planner.finished
        self.closed.discard(number)
        self.paused.discard(number)
        # Attempts are counted from 0 again: an old answer would look like a new one.
        self.answered = [entry for entry in self.answered if entry[0].unit != number]
        self.units[number] = unit
        self.send(UnitAdded(unit, epoch, step, self.staying[number]))

    def finished(self) -> list[int]:
        told = ((number, self.told[number][-1:]) for number in self.units)
        return [number for number, last in told if last == [UnitFinished(number)]]

    @precondition(lambda self: self.finished())
    @rule(data=st.data(), more=st.integers(1, 2))
    def train_longer(self, data: st.DataObject, more: int) -> None:
        number = data.draw(st.sampled_from(self.finished()))
        unit = self.units[number]
        self.told[number].pop()
        trials = self.staying[number]
        longer = unit._replace(trials=trials, epochs=unit.epochs + more)
        self.add_again(number, longer, unit.epochs, 0)

    @precondition(lambda self: self.units)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        unit = data.draw(st.sampled_from(sorted(self.units)))
        self.send(Durable(unit, data.draw(st.integers(0, self.num_trained(unit)))))

    def num_trained(self, unit: int) -> int:
        return sum(phase is Phase.TRAIN for _, phase, _, _ in self.log[unit])

    @invariant()
    def is_consistent(self) -> None:
        if hasattr(self, "planner"):
            validate(self.planner)
            assert self.planner.running() == self.running

    @invariant()
    def visits_follow_the_rotation_each_once(self) -> None:
        for number, unit in getattr(self, "units", {}).items():
            assert self.by_epoch(self.log[number]) == self.expected(unit)[: len(self.log[number])]

    def expected(self, unit: Unit) -> list[tuple[int, Phase, int, int]]:
        shards = self.planner.train_shards, self.planner.val_shards
        return list(visits(unit.start, unit.epochs, *shards))

    @staticmethod
    def by_epoch(log: list[tuple[int, Phase, int, int]]) -> list[tuple[int, Phase, int, int]]:
        """The log with eval visits, which commute, renamed in order of arrival."""
        seen: set[tuple[int, Phase, int]] = set()
        count: dict[int, int] = {}
        lines = []
        for epoch, phase, step, shard in log:
            assert (epoch, phase, step) not in seen
            seen.add((epoch, phase, step))
            if phase is Phase.EVAL:
                assert step == shard
                step = shard = count.get(epoch, 0)
                count[epoch] = step + 1
            lines.append((epoch, phase, step, shard))
        return lines

    def teardown(self) -> None:
        if not hasattr(self, "planner"):
            return
        self.join(0, frozenset())
        budget = 200
        while not self.planner.finished:
            for unit in self.at_rest():
                self.resume(unit)
            for unit in self.units:
                self.send(Durable(unit, self.num_trained(unit)))
            for worker in list(self.running):
                self.answer(worker)
                validate(self.planner)
            budget -= 1
            assert budget, "the plan does not end"
        self.check_end()

    def check_end(self) -> None:
        assert self.num_finished == bool(self.units) + self.num_reopened
        for number, unit in self.units.items():
            ends = [told for told in self.told[number] if isinstance(told, EpochEnded)]
            assert ends == [EpochEnded(number, epoch) for epoch in range(len(ends))]
            if UnitFinished(number) in self.told[number]:
                assert self.told[number][-1] == UnitFinished(number)
                assert len(self.log[number]) == len(self.expected(unit))
                assert self.planner.progress(number) == (unit.epochs, 0)


TestPlan = PlanMachine.TestCase
TestPlan.settings = settings(
    max_examples=int(os.environ.get("CEREBRO_EXAMPLES", "100")),
    stateful_step_count=60,
    deadline=None,
)
