"""What a process says of itself when it comes to the muster, and what speaks against taking it."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from cerebro import __version__
from cerebro.backend.gang.post import WORD, clean_line
from cerebro.backend.gang.rendezvous import Kind, Rendezvous

#: More ranks than anybody has.
_MOST = 1 << 31
#: What must be as on rank 0, as refusals call it.
_WORDS = {
    "cerebro": "the version of cerebro",
    "world": "the number of ranks (-n times -np)",
    "run": "the name of the run",
    "key": "the start that a process belongs to",
}


def hello_of(rendezvous: Rendezvous, run: str, *, is_last: bool = False) -> dict[str, object]:
    """The first message of a process; the last one if it ends when it is sent away again."""
    return {
        **_expected(rendezvous, run),
        "first": rendezvous.first,
        "local": rendezvous.local,
        "host": socket.gethostname(),
        "last": is_last,
    }


def gives_up(hello: Mapping[str, Any], own: Rendezvous) -> bool:
    """Whether a process that is sent away belongs to this start, and does not come again.

    Args:
        own: The place of the process with rank 0.
    """
    is_launched = own.kind is not Kind.FLAGS and own.key != ""
    is_ours = _is_hello(hello) and hello["key"] == own.key
    return is_launched and is_ours and hello.get("last") is True


def objection(hello: Mapping[str, Any], own: Rendezvous, run: str) -> str | None:
    """Why the ranks of a first message cannot be taken, whoever else has come.

    Args:
        own: The place of the process with rank 0.
    """
    if not _is_hello(hello):
        return "this is no agent of cerebro."
    first, local = hello["first"], hello["local"]
    for name, value in _expected(own, run).items():
        if hello[name] != value:
            found = f"got {hello[name]!r} on {clean_line(hello['host'])}."
            return f"{_WORDS[name]} must be {value!r} as on rank 0, but {found}"[:WORD]
    if local < 1:
        return "an agent must have ranks, but got none."
    if not own.local <= first < first + local <= own.world:
        ranks = name_ranks(range(first, first + local))
        return f"ranks {own.local} to {own.world - 1} are waited for, but got {ranks}."
    return None


def name_ranks(ranks: range) -> str:
    """Ranks in words.

    >>> name_ranks(range(2, 3)), name_ranks(range(2, 5))
    ('rank 2', 'ranks 2 to 4')
    """
    first, last = ranks[0], ranks[-1]
    return f"rank {first}" if first == last else f"ranks {first} to {last}"


def _expected(rendezvous: Rendezvous, run: str) -> dict[str, object]:
    return {
        "cerebro": __version__,
        "world": rendezvous.world,
        "run": run,
        "key": rendezvous.key,
    }


def _is_hello(hello: Mapping[str, Any]) -> bool:
    """Whether a message is of the form of an agent's first one."""
    numbers = [hello.get(name) for name in ("world", "first", "local")]
    texts = [hello.get(name) for name in ("cerebro", "key", "run", "host")]
    return all(type(number) is int and 0 <= number < _MOST for number in numbers) and all(
        isinstance(text, str) for text in texts
    )
