"""What can be wrong with an archive, as errors that say where.

An `ArchiveError` ends its shard: nothing behind the damage can be trusted. A `SampleError` is about
one sample; those after it can be read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from cerebro.errors import DataError
from cerebro.storage.remote import redact

_SHOWN_CHARACTERS = 120


class ArchiveError(DataError):
    """A shard cannot be opened, or cannot be read to its end.

    >>> print(ArchiveError("a.tar", "it ends too early.", member="7.jpg", offset=512))
    a.tar, member '7.jpg' at byte 512: it ends too early.
    """

    exit_code = 1

    def __init__(
        self, shard: str, reason: str, member: str | None = None, offset: int | None = None
    ) -> None:
        named = "" if member is None else f", member {quote(member)}"
        at = "" if offset is None else f"{'' if named else ','} at byte {offset}"
        super().__init__(f"{shard}{named}{at}: {reason}")
        self.shard = shard
        self.reason = reason
        self.member = member
        self.offset = offset

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.shard, self.reason, self.member, self.offset)


class SampleError(DataError):
    """One sample of a shard cannot be used.

    >>> print(SampleError("a.tar", "7", "'seven' is not a number.", field="cls"))
    a.tar, sample '7', field 'cls': 'seven' is not a number.
    """

    def __init__(self, shard: str, key: str, reason: str, field: str | None = None) -> None:
        named = "" if field is None else f", field {quote(field)}"
        super().__init__(f"{shard}, sample {quote(key)}{named}: {reason}")
        self.shard = shard
        self.key = key
        self.reason = reason
        self.field = field

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.shard, self.key, self.reason, self.field)


#: Takes what is wrong: raises it, or returns to go on without that sample or the rest of the shard.
OnError: TypeAlias = Callable[[ArchiveError | SampleError], None]


def raise_error(error: ArchiveError | SampleError) -> None:
    """The strictest policy: the first problem ends the reading."""
    raise error


def reason_of(error: Exception) -> str:
    """What went wrong in few words, without secrets of a URL.

    >>> reason_of(OSError(5, "Input/output error")), reason_of(EOFError())
    ('Input/output error', 'EOFError')
    """
    told = getattr(error, "strerror", None) or str(error).rstrip(".") or type(error).__name__
    return redact(told)


def quote(value: object) -> str:
    """A name as messages show it: one line, of bounded length.

    >>> quote("one\\ntwo")
    "'one\\\\ntwo'"
    """
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
