"""Which files an opening leads to, and what becomes of it on a node that does not see them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, cast

from cerebro.backend.base import Opening, Setup
from cerebro.backend.opening import store_of
from cerebro.data.manifest import FILE
from cerebro.errors import CerebroError, UsageError
from cerebro.storage import open_store
from cerebro.storage.layout import RUN
from cerebro.storage.remote_relay import SCHEME
from cerebro.train.score.calls import Member, TrialWeights
from cerebro.train.score.runner import ScoreSetup

#: Names of places; those of runs whose checkpoints are read follow, numbered.
DATA, STORE = "data", "store"
_RUN = "run"


@dataclass(frozen=True, slots=True)
class Place:
    """A directory or URL, and a file by which it is known."""

    url: str
    file: str
    sha256: str
    #: Whether workers must be able to write there.
    is_written: bool = False

    def is_seen(self) -> bool:
        """Whether it is here what it is for the driver."""
        try:
            store = open_store(self.url)
            if _digest(store.read(self.file)) != self.sha256:
                return False
            if self.is_written:
                name = f"{self.file}-{secrets.token_hex(8)}"
                store.write(name, b"")
                store.remove(name)
        except (CerebroError, OSError):
            return False
        return True


def places_of(opening: Opening, probe: str, token: bytes) -> dict[str, Place]:
    """All places that workers read or write, by name; the store is known by a file of ours."""
    found: dict[str, Place] = {}
    store = store_of(opening)
    if store is not None:
        # Checkpoints are written by whoever can: by the driver, if need be.
        is_written = not isinstance(opening, Setup)
        found[STORE] = Place(store.url, probe, _digest(token), is_written)
    if isinstance(opening, Setup | ScoreSetup):
        found[DATA] = _known_by(opening.data, FILE)
    if isinstance(opening, ScoreSetup):
        for number, url in enumerate(_runs(opening)):
            found[f"{_RUN}{number}"] = _known_by(url, RUN)
    return found


def redirected(opening: Opening, unseen: frozenset[str]) -> Opening:
    """The same opening, with what is not seen here asked for at the relay.

    >>> setup = Setup(task="tasks:Digits", data="/data", store="/runs/a")
    >>> redirected(setup, frozenset({"data"})).data
    'relay://data'
    """
    changes: dict[str, Any] = {}
    if DATA in unseen:
        changes["data"] = f"{SCHEME}://{DATA}"
    if isinstance(opening, Setup):
        if STORE in unseen:
            changes["store"] = f"{SCHEME}://{STORE}"
        return replace(opening, **changes)
    if not isinstance(opening, ScoreSetup):
        raise lacks_files()
    if STORE in unseen:
        changes["out"] = open_store(f"{SCHEME}://{STORE}")
    runs = {url: f"{_RUN}{number}" for number, url in enumerate(_runs(opening))}
    moved = {url: f"{SCHEME}://{name}" for url, name in runs.items() if name in unseen}
    changes["members"] = tuple(_moved(member, moved) for member in opening.members)
    return cast(Opening, replace(opening, **changes))


def can_be_relayed(opening: Opening) -> bool:
    """Whether workers can do with less than the driver sees."""
    return isinstance(opening, Setup | ScoreSetup)


def lacks_files() -> UsageError:
    """What ends a worker that cannot."""
    return UsageError(
        "this can only be done by nodes that see the store and the data as the driver does, but "
        "got one that does not. Use a directory that all machines share, mounted at the same path, "
        "a URL such as s3://, or the local backend."
    )


def _runs(opening: ScoreSetup) -> list[str]:
    weights = (member.weights for member in opening.members)
    return list(dict.fromkeys(w.store for w in weights if isinstance(w, TrialWeights)))


def _moved(member: Member, places: dict[str, str]) -> Member:
    weights = member.weights
    if not isinstance(weights, TrialWeights) or weights.store not in places:
        return member
    return replace(member, weights=replace(weights, store=places[weights.store]))


def _known_by(url: str, file: str) -> Place:
    return Place(url, file, _digest(open_store(url).read(file)))


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()
