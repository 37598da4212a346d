"""How errors name what was got: one phrase for every misspelt name and odd value."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SHOWN_CHARACTERS = 60


def unknown(what: str, got: str, known: Iterable[str]) -> str:
    """Say that a name is not known, list those that are, and guess the one that was meant.

    >>> unknown("search", "rnadom", ["grid", "random"])
    "unknown search 'rnadom'. Known: grid, random. Did you mean 'random'?"
    """
    return f"unknown {what} {show(got)}. {listed(got, known)}"


def listed(got: str, known: Iterable[str]) -> str:
    """The names that are known, and the one that was meant.

    >>> listed("rnadom", ["grid", "random"])
    "Known: grid, random. Did you mean 'random'?"
    """
    names = list(known)
    close = difflib.get_close_matches(got.lower(), names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"Known: {', '.join(names) or 'none'}.{hint}"


def show(value: object) -> str:
    """A value as an error message quotes it: one line, of bounded length.

    >>> show("one\\ntwo")
    "'one\\\\ntwo'"
    """
    if isinstance(value, str) and len(value) > _SHOWN_CHARACTERS:
        return f"{value[:_SHOWN_CHARACTERS]!r}…"
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 2 * _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
