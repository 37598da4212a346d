"""Visits as JSON, from a leader to its followers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

from cerebro.train.codec import decode, encode
from cerebro.train.visit import VisitCall
from cerebro.types import Json, Split


def pack_call(call: VisitCall) -> dict[str, Json]:
    """A visit of one trial as JSON, exactly.

    >>> call = VisitCall(
    ...     unit=0, trials=(0,), params=({"lr": float("inf")},), seed=1, epoch=0, step=0, steps=1,
    ...     split=Split.TRAIN, shard=0, attempt=0, batch_size=8,
    ... )
    >>> unpack_call(pack_call(call)) == call
    True
    """
    values = {field.name: getattr(call, field.name) for field in fields(call)}
    values["split"] = str(call.split)
    values["params"] = tuple(dict(params) for params in call.params)
    values["origin"] = None if call.origin is None else dict(call.origin)
    return cast("dict[str, Json]", encode(values, "a visit"))


def unpack_call(packed: Mapping[str, Json]) -> VisitCall:
    """The visit that `pack_call` was given."""
    values = cast("dict[str, Any]", decode(cast(Json, packed)))
    return VisitCall(**{**values, "split": Split(values["split"])})
