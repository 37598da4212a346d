"""Takes a trial out of a stack's state.

The tensors of a stack have one more axis in front, for its members, and its meta is
`{"trials": [...], "members": [meta of each]}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from cerebro.errors import CheckpointCorruptError, UsageError
from cerebro.storage.checkpoint import Checkpoint
from cerebro.storage.disk import Buffer, as_bytes
from cerebro.storage.tensors import Layout
from cerebro.types import Json


def members_of(meta: Mapping[str, Json]) -> list[int]:
    """The trials in a stack's state, in the order of its axis; checks that it is one."""
    trials, members = meta.get("trials"), meta.get("members")
    is_list = isinstance(trials, list) and isinstance(members, list)
    if not is_list or len(cast("list[Json]", trials)) != len(cast("list[Json]", members)):
        raise CheckpointCorruptError("a stack's state must name its trials, but this one does not.")
    return cast("list[int]", trials)


def take_member(
    data: Buffer, meta: Mapping[str, Json], trial: int
) -> tuple[bytearray, dict[str, Json]]:
    """The state of one member: a whole safetensors file, and its meta.

    >>> layout = Layout.plan([("w", "U8", (2, 3))])
    >>> data = layout.header_bytes() + bytes([1, 2, 3, 4, 5, 6])
    >>> state, meta = take_member(data, {"trials": [4, 9], "members": [{}, {"steps": 5}]}, 9)
    >>> bytes(state[-3:]), Layout.parse(state)["w"].shape, meta
    (b'\\x04\\x05\\x06', (3,), {'steps': 5})
    """
    trials = members_of(meta)
    if trial not in trials:
        raise UsageError(f"trial {trial} must be in the stack, but {trials} are.")
    index, view, stacked = trials.index(trial), as_bytes(data), Layout.parse(data)
    if any(entry.shape[:1] != (len(trials),) for entry in stacked.entries):
        raise CheckpointCorruptError(
            f"the tensors of a stack of {len(trials)} must have an axis for them, but some do not."
        )
    layout = Layout.plan(
        [(entry.name, entry.dtype, entry.shape[1:]) for entry in stacked.entries], stacked.metadata
    )
    state = bytearray(layout.total_bytes)
    state[: layout.data_start] = layout.header_bytes()
    for entry in layout.entries:
        start = stacked.span(entry.name).start + index * entry.nbytes
        state[layout.span(entry.name)] = view[start : start + entry.nbytes]
    member = cast("list[Json]", meta["members"])[index]
    return state, dict(cast("dict[str, Json]", member))


def taken_out(found: Checkpoint, trial: int) -> Checkpoint:
    """A trial's state in a checkpoint of its own, or in one of its stack."""
    if not found.ref.is_stack:
        return found
    data, meta = take_member(found.data, found.meta, trial)
    return found._replace(data=data, meta=meta)
