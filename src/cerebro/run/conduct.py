"""Carries out what the search and people decide, as it becomes durable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from cerebro.run.committer import Commit, copy_state, take_out
from cerebro.run.direction import Direction
from cerebro.run.ledger import Ledger
from cerebro.run.orders import Orders, halt_record
from cerebro.run.recovery import OpenRun
from cerebro.run.roster import Roster
from cerebro.run.steering import Inbox
from cerebro.run.unit import Record


class Conduct:
    """Between what is durable and who is worked on."""

    def __init__(
        self,
        run: OpenRun,
        direction: Direction,
        orders: Orders,
        inbox: Inbox,
        roster: Roster,
        ledger: Ledger,
    ) -> None:
        self._run = run
        self._direction = direction
        self._orders = orders
        self._inbox = inbox
        self._roster = roster
        self._ledger = ledger

    def settled(self, records: Sequence[Record]) -> None:
        """These are durable: they take effect, and the search hears of them."""
        for record in records:
            self._direction.hear(record)
            self._orders.settled(record)
            self._inbox.settled(record)
            if record["type"] == "trial":
                self._added(record)
            elif record["type"] == "left":
                self._roster.withdraw(cast(int, record["trial"]))
            elif record["type"] == "decision":
                self._decided(record)
        self._put(self._orders.carry_out(self._direction.take()))
        if self._inbox.has_more:
            self.look()

    def look(self) -> None:
        """Take the first thing that people have asked for meanwhile; the next follows it."""
        self._put(self._inbox.take())

    def halt(self, reason: str, by: str) -> None:
        """The run ends as it stands."""
        self._put([Commit([halt_record(reason, by)])])

    def _put(self, commits: Sequence[Commit]) -> None:
        for commit in commits:
            self._ledger.put(commit)

    def _added(self, record: Record) -> None:
        if record.get("replaces") is not None:
            self._roster.withdraw(cast(int, record["replaces"]))
        self._roster.follow(cast(int, record["trial"]))

    def _decided(self, record: Record) -> None:
        what = record["what"]
        if what == "halt":
            for live in self._roster:
                for number in list(live.alive):
                    self._roster.withdraw(number)
            return
        for number in cast("list[int]", record["trials"]):
            if what == "stop":
                self._roster.withdraw(number)
            elif what == "pause":
                self._roster.hold(number)
            else:
                self._roster.follow(number)


def carry_out_now(run: OpenRun, direction: Direction, orders: Orders) -> None:
    """Before the first visit: do at once what the search decides, until it waits for results."""
    while actions := direction.take():
        commits = orders.carry_out(actions)
        for commit in commits:
            if commit.extracts:
                commit.records[-1]["checkpoints"] = take_out(run.store, commit.extracts)
            if commit.copy is not None:
                commit.records[-1]["checkpoint"] = copy_state(run.store, commit.copy)
        records = [record for commit in commits for record in commit.records]
        run.commit(*records)
        for record in records:
            orders.settled(record)
            direction.hear(record)
