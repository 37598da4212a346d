"""The recent messages of a plan, kept so that a broken invariant can be explained and replayed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from cerebro.mop.messages import Event, Instruction, Message, Start, UnitAdded, to_dict


def _subject(message: Message) -> int | None:
    if isinstance(message, UnitAdded):
        return message.unit.id
    if isinstance(message, Start):
        return message.visit.unit
    return getattr(message, "unit", None)


class Story:
    """The last events and what each led to.

    >>> from cerebro.mop.messages import UnitStopped
    >>> story = Story(limit=10)
    >>> story.record(UnitStopped(3), [])
    >>> story.of(3)
    [{'type': 'UnitStopped', 'unit': 3}]
    """

    def __init__(self, limit: int) -> None:
        self._records: deque[tuple[Event, Sequence[Instruction]]] = deque(maxlen=limit)

    def record(self, event: Event, instructions: Sequence[Instruction]) -> None:
        self._records.append((event, instructions))

    def events(self) -> list[Event]:
        """Every event kept, oldest first: feed them to a new planner to replay."""
        return [event for event, _ in self._records]

    def of(self, unit: int) -> list[dict[str, object]]:
        """The messages about one unit, oldest first; with what touched it indirectly.

        An event about something else that led to an instruction for the unit is part of its story.
        """
        lines: list[dict[str, object]] = []
        for event, instructions in self._records:
            mine = [to_dict(i) for i in instructions if _subject(i) == unit]
            if mine or _subject(event) == unit:
                lines += [to_dict(event), *mine]
        return lines
