"""Checkpoints: a trial's or a stack's committed state, a safetensors file and a manifest."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, Self

from cerebro.errors import CheckpointCorruptError, UsageError
from cerebro.storage import layout
from cerebro.storage.disk import Buffer, as_bytes
from cerebro.storage.store import Store, is_temp
from cerebro.types import Json, stack_unit, unit_id

FORMAT = 1
_NAME = re.compile(r"v\d{6,}-a\d+", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_UNIT = re.compile(r"[ts]\d{4,}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRef:
    """What the journal remembers of a checkpoint: enough to find and verify it.

    ``unit`` is whose state it is: a trial's, or a stack's (``cerebro.types.stack_unit``).
    ``visits`` counts the train visits behind the state; ``parent`` is the ``sha256`` of the state
    the last of them started from, so a unit's checkpoints form a chain; that of a trial taken out
    of a stack follows the stack's.

    >>> ref = CheckpointRef(
    ...     unit=7, visits=12, name="v000012-a0", sha256="0" * 64, bytes=320, parent=None
    ... )
    >>> CheckpointRef.from_json(ref.to_json()) == ref
    True
    """

    unit: int
    visits: int
    name: str
    sha256: str
    bytes: int
    parent: str | None

    @property
    def is_stack(self) -> bool:
        return self.unit < 0

    def to_json(self) -> dict[str, Json]:
        number = stack_unit(self.unit) if self.is_stack else self.unit
        return {
            "stack" if self.is_stack else "trial": number,
            "visits": self.visits,
            "name": self.name,
            "sha256": self.sha256,
            "bytes": self.bytes,
            "parent": self.parent,
        }

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Raises ``CheckpointCorruptError`` if the value did not come from ``to_json``."""
        if not isinstance(value, dict) or not _is_ref(value):
            raise CheckpointCorruptError(f"not a reference to a checkpoint: {str(value)[:400]}")
        fields = {key: item for key, item in value.items() if key not in ("trial", "stack")}
        unit = value["trial"] if "trial" in value else stack_unit(value["stack"])
        return cls(unit=unit, **fields)

    @property
    def data_path(self) -> str:
        return layout.checkpoint_data(self.unit, self.name)

    @property
    def manifest_path(self) -> str:
        return layout.checkpoint_manifest(self.unit, self.name)


class Checkpoint(NamedTuple):
    """A verified checkpoint: the bytes of its safetensors file and what was saved beside them."""

    ref: CheckpointRef
    data: Buffer
    meta: dict[str, Json]


def save(
    store: Store,
    unit: int,
    *,
    visits: int,
    attempt: int,
    data: Buffer | Sequence[Buffer],
    meta: Mapping[str, Json],
    parent: str | None,
) -> CheckpointRef:
    """Commit a unit's state, a whole safetensors file in one or more pieces, which are not copied.

    Durable on return; it counts only once the journal names it.

    >>> import tempfile
    >>> from cerebro.storage import DirectoryStore
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     store = DirectoryStore(directory)
    ...     ref = save(store, 0, visits=1, attempt=0, data=b"state", meta={"epoch": 0}, parent=None)
    ...     load(store, ref).meta
    {'epoch': 0}
    """
    chunks = [data] if isinstance(data, bytes | bytearray | memoryview) else data
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    ref = CheckpointRef(
        unit=unit,
        visits=visits,
        name=layout.checkpoint_name(visits, attempt),
        sha256=digest.hexdigest(),
        bytes=sum(memoryview(chunk).nbytes for chunk in chunks),
        parent=parent,
    )
    # The manifest last: data without one is no checkpoint.
    store.write_many({ref.data_path: chunks, ref.manifest_path: _manifest(ref, meta)})
    return ref


def adopt(
    store: Store,
    unit: int,
    *,
    visits: int,
    attempt: int,
    source: str,
    sha256: str,
    size: int,
    meta: Mapping[str, Json],
    parent: str | None,
) -> CheckpointRef:
    """Commit a state that is a file of the store already, without reading it; the file stays.

    >>> import tempfile
    >>> from cerebro.storage import DirectoryStore
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     store = DirectoryStore(directory)
    ...     store.write("hops/a", b"state")
    ...     digest = hashlib.sha256(b"state").hexdigest()
    ...     state = {"source": "hops/a", "sha256": digest, "size": 5, "meta": {}}
    ...     load(store, adopt(store, 0, visits=1, attempt=0, parent=None, **state)).data
    b'state'
    """
    ref = CheckpointRef(
        unit=unit,
        visits=visits,
        name=layout.checkpoint_name(visits, attempt),
        sha256=sha256,
        bytes=size,
        parent=parent,
    )
    store.copy(source, ref.data_path)
    store.write(ref.manifest_path, _manifest(ref, meta))
    return ref


def load(
    store: Store,
    ref: CheckpointRef,
    into: Callable[[int], bytearray | memoryview] | None = None,
) -> Checkpoint:
    """Read and verify a checkpoint.

    Args:
        into: given the number of bytes, returns the buffer to read them into (shared memory, for
            example); without it the data comes as ``bytes``.

    Raises:
        CheckpointCorruptError: a file is missing or not what was saved; names it and the digests.
    """
    meta = _load_meta(store, ref)
    if not store.exists(ref.data_path):
        _refuse(ref.data_path, "it must exist, but is missing")
    size = store.size(ref.data_path)
    if size != ref.bytes:
        _refuse(ref.data_path, f"it must have {ref.bytes} bytes, but has {size}")
    data: Buffer
    if into is None:
        data = store.read(ref.data_path)
    else:
        data = as_bytes(into(size))[:size]
        if len(data) != size:
            raise UsageError(f"a buffer of {size} bytes must be given, but it has {len(data)}.")
        store.read_into(ref.data_path, data)
    found = hashlib.sha256(data).hexdigest()
    if found != ref.sha256:
        _refuse(ref.data_path, f"its SHA-256 must be {ref.sha256}, but is {found}")
    return Checkpoint(ref, data, meta)


def collect(store: Store, unit: int, keep: Collection[str]) -> int:
    """Remove a unit's checkpoints whose names are not in ``keep``; the number of files removed.

    ``keep`` must hold those being saved at this moment, too.
    """
    directory = layout.checkpoints(unit)
    names = [name for name in store.list(directory) if name.rpartition(".")[0] not in keep]
    names = [name for name in names if _NAME.fullmatch(name.rpartition(".")[0])]
    # Manifests before data: no moment shows a manifest whose data is gone.
    for name in sorted(names, key=lambda name: not name.endswith(".json")):
        store.remove(f"{directory}/{name}")
    return len(names)


def sweep(store: Store, unit: int | None = None) -> int:
    """Remove what killed writers left half written; the number of files removed.

    Only for the process that holds the run's lock.

    Args:
        unit: Look at its checkpoints alone: whoever wrote one of them was killed.
    """
    if not store.leaves_temps:
        return 0
    directories = _directories(store) if unit is None else [layout.checkpoints(unit)]
    count = 0
    for directory in directories:
        for name in store.list(directory):
            if is_temp(name):
                store.remove(f"{directory}/{name}" if directory else name)
                count += 1
    return count


def _directories(store: Store) -> list[str]:
    """All that a run writes whole files into."""
    found = [""]
    for top in (layout.TRIALS, layout.STACKS):
        found.append(top)
        for name in store.list(top):
            if _UNIT.fullmatch(name):
                found += [f"{top}/{name}", f"{top}/{name}/checkpoints"]
    return found


def _manifest(ref: CheckpointRef, meta: Mapping[str, Json]) -> bytes:
    # Through JSON and back, so that the digest is of what a reader will see.
    manifest: dict[str, Json] = {"format": FORMAT, **ref.to_json()}
    manifest["meta"] = json.loads(json.dumps(meta))
    manifest["digest"] = _digest(manifest)
    return json.dumps(manifest).encode() + b"\n"


def _load_meta(store: Store, ref: CheckpointRef) -> dict[str, Json]:
    path = ref.manifest_path
    if not store.exists(path):
        _refuse(path, "it must exist, but is missing")
    try:
        manifest = json.loads(store.read(path))
        stored = manifest.pop("digest")
        meta = manifest["meta"]
        found = _digest(manifest)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        _refuse(path, f"it must be a manifest, but is not ({type(error).__name__}: {error})")
    if found != stored:
        _refuse(path, f"its digest must be {stored}, but is {found}")
    expected = {"format": FORMAT, **ref.to_json(), "meta": meta}
    if manifest != expected or not isinstance(meta, dict):
        _refuse(
            path,
            f"it must describe {unit_id(ref.unit)} {ref.name} with SHA-256 {ref.sha256}, but "
            f"describes {manifest.get('name')} with {manifest.get('sha256')}",
        )
    return meta


def _digest(manifest: Mapping[str, Json]) -> str:
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _refuse(path: str, reason: str) -> NoReturn:
    raise CheckpointCorruptError(
        f"checkpoint {path} is damaged: {reason}. It is not used. Where the run is unfinished, the "
        "same command computes it anew from the one before it."
    )


def _is_ref(value: Mapping[str, object]) -> bool:
    owner = "stack" if "stack" in value else "trial"
    if value.keys() != {owner, "visits", "name", "sha256", "bytes", "parent"}:
        return False
    counts = all(
        type(count) is int and count >= 0
        for count in (value[owner], value["visits"], value["bytes"])
    )
    digests = [value["sha256"], *([] if value["parent"] is None else [value["parent"]])]
    return (
        counts
        and isinstance(value["name"], str)
        and _NAME.fullmatch(value["name"]) is not None
        and all(isinstance(digest, str) and _SHA256.fullmatch(digest) for digest in digests)
    )
