"""What workers leave of each shard they have scored: a part, whole or not there.

::

    parts/00003.json     sums of a test, or size and digest of the predictions; the request's digest
    parts/00003.arrow    predictions with the ids of their rows
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from cerebro.errors import DataError
from cerebro.storage.disk import Buffer
from cerebro.storage.store import Store, is_temp
from cerebro.train.score.calls import MemberScore
from cerebro.train.visit import Batches, Sums
from cerebro.types import Json

FORMAT = 1
DIRECTORY = "parts"
_NAME = re.compile(r"[0-9]{5,9}\.(json|arrow)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What the JSON file of a part says."""

    #: Digest of the request that it belongs to.
    request: str
    shard: int
    rows: int
    members: tuple[MemberScore, ...]
    #: Of the predictions; None after a test.
    sha256: str | None = None
    bytes: int = 0


def write_part(store: Store, part: Part, data: Sequence[Buffer] = ()) -> None:
    """Make a part durable: its predictions first, for they are no part without the rest."""
    body: dict[str, Json] = {
        "format": FORMAT,
        "request": part.request,
        "shard": part.shard,
        "rows": part.rows,
        "members": [_member_to_json(member) for member in part.members],
        "sha256": part.sha256,
        "bytes": part.bytes,
    }
    body["digest"] = _digest(body)
    text = json.dumps(body).encode() + b"\n"
    files: dict[str, Sequence[Buffer]] = {}
    if part.sha256 is not None:
        files[_path(part.shard, "arrow")] = data
    store.write_many({**files, _path(part.shard, "json"): [text]})


def read_part(store: Store, shard: int, *, request: str) -> Part | None:
    """The part of a shard; None if it is not there, damaged, or of another request."""
    path = _path(shard, "json")
    if not store.exists(path):
        return None
    try:
        body = json.loads(store.read(path))
        stored = body.pop("digest")
        if stored != _digest(body) or body["format"] != FORMAT or body["request"] != request:
            return None
        part = Part(
            request=request,
            shard=body["shard"],
            rows=body["rows"],
            members=tuple(map(_member_from_json, body["members"])),
            sha256=body["sha256"],
            bytes=body["bytes"],
        )
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return None
    return part if part.shard == shard and _is_intact(store, part) else None


def read_predictions(store: Store, part: Part) -> bytes:
    """The Arrow file of a part, compared with its digest."""
    path = _path(part.shard, "arrow")
    data = store.read(path)
    if hashlib.sha256(data).hexdigest() != part.sha256:
        raise DataError(
            f"{path} is damaged: its SHA-256 must be {part.sha256}. The same command makes it anew."
        )
    return data


def clear_parts(store: Store) -> None:
    """Remove all parts, and what killed writers left of others."""
    names = [name for name in store.list(DIRECTORY) if _NAME.fullmatch(name) or is_temp(name)]
    # No moment shows a JSON file whose predictions are gone.
    for name in sorted(names, key=lambda name: not name.endswith(".json")):
        store.remove(f"{DIRECTORY}/{name}")


def _is_intact(store: Store, part: Part) -> bool:
    if part.sha256 is None:
        return True
    path = _path(part.shard, "arrow")
    if not store.exists(path) or store.size(path) != part.bytes:
        return False
    return hashlib.sha256(store.read(path)).hexdigest() == part.sha256


def _path(shard: int, ending: str) -> str:
    return f"{DIRECTORY}/{shard:05d}.{ending}"


def _digest(body: Mapping[str, Json]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _member_to_json(member: MemberScore) -> dict[str, Json]:
    sums: dict[str, Json] = {
        name: [number_to_json(total), rows] for name, (total, rows) in member.sums.items()
    }
    if member.batches is None:
        return {"sums": sums}
    batches: dict[str, Json] = {
        name: [[number_to_json(value) for value in values], list[Json](rows)]
        for name, (values, rows) in member.batches.items()
    }
    return {"sums": sums, "batches": batches}


def _member_from_json(value: Mapping[str, Json]) -> MemberScore:
    sums: Sums = {
        name: (number_from_json(total), rows)
        for name, (total, rows) in cast("dict[str, tuple[Json, int]]", value["sums"]).items()
    }
    if "batches" not in value:
        return MemberScore(sums=sums)
    batches: Batches = {
        name: (list(map(number_from_json, values)), rows)
        for name, (values, rows) in cast(
            "dict[str, tuple[list[Json], list[int]]]", value["batches"]
        ).items()
    }
    return MemberScore(sums=sums, batches=batches)


def number_to_json(value: float) -> Json:
    """A number as JSON, which knows no NaN.

    >>> number_to_json(0.5), number_to_json(float("-inf"))
    (0.5, '-inf')
    """
    return value if math.isfinite(value) else repr(value)


def number_from_json(value: Json) -> float:
    """The number that `number_to_json` was given."""
    return float(value)  # type: ignore[arg-type]
