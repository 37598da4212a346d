"""Files in a stream, one after the other: what is common to tar and zip."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much an archive may ask for before it counts as hostile.

    >>> Limits(max_member_bytes=1 << 20).max_ratio
    200
    """

    #: The most one file in an archive may have.
    max_member_bytes: int = 1 << 30
    #: The most files one sample may have.
    max_fields: int = 1000
    #: How many times as large compressed data may get; what stays below 64 MiB may do as it likes.
    max_ratio: int = 200


#: Below this size nothing is a bomb.
HARMLESS_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Member:
    """One file of an archive, or why it cannot be used."""

    name: str
    #: Where it begins in the archive, in bytes (of what a compressed tar is unpacked to).
    offset: int
    data: bytes = b""
    fault: str | None = None


def too_large(size: int, limits: Limits) -> str:
    """Why a file of this size is not read."""
    return (
        f"a file in an archive may have at most {limits.max_member_bytes} bytes, but it declares "
        f"{size}. Raise max_member_bytes if that is right."
    )
