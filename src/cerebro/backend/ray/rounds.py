"""Whether actors still answer: a process may be stopped, or a network cut, without a word."""

from __future__ import annotations

from collections.abc import Collection

from cerebro.backend.ray.member import Member

#: In the time that an answer may take, so many questions.
_QUESTIONS = 4


class Rounds:
    """Asks all actors for a sign of life now and then; moments are those of one monotonic clock.

    Args:
        patience_s: How long an answer may take.

    >>> rounds = Rounds(60.0)
    >>> rounds.go(100.0, [])
    []
    >>> rounds.due
    115.0
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._asked: dict[Member, float] = {}
        #: When to go again.
        self.due = 0.0

    def go(self, now: float, members: Collection[Member]) -> list[Member]:
        """Ask those that owe no answer; who has owed one for too long."""
        self.due = now + self._patience_s / _QUESTIONS
        asked = {member: since for member, since in self._asked.items() if member in members}
        hung = [member for member, since in asked.items() if now - since >= self._patience_s]
        self._asked = {member: since for member, since in asked.items() if member not in hung}
        for member in members:
            if member.placed is not None and member not in asked:
                self._asked[member] = now
                member.ping()
        return hung

    def hear(self, member: Member) -> None:
        """An actor has answered."""
        self._asked.pop(member, None)
