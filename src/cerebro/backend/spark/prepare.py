"""A DataFrame as a prepared dataset: two Spark jobs, all of it in Arrow.

The first deals out the rows of each partition and stages them in the store. Then it is known how
many there are, and the second makes the shards. Tasks may be run twice: what they write has names
of its own, and only what an answer names is used.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from cerebro import errors
from cerebro.backend.base import Failure
from cerebro.backend.failure import describe_failure
from cerebro.backend.spark.context import this_task
from cerebro.backend.spark.trouble import check_version, told_plainly
from cerebro.backend.spark.wire import decode, encode
from cerebro.backend.spark.wish import Wish, is_vector
from cerebro.data.frame.cells import as_batch, with_names
from cerebro.data.frame.deal import Deal, Staged, stage
from cerebro.data.frame.shards import ShardPlan, make_shard, plan_shards
from cerebro.data.manifest import FILE, DatasetManifest, ShardInfo
from cerebro.data.publication import remove_strays, sole_writer_at
from cerebro.data.schema import Kind, Schema
from cerebro.data.tabular import MAX_DEFAULT_SHARDS
from cerebro.errors import CerebroError, UsageError, WorkerError
from cerebro.storage import Store
from cerebro.types import Json, Split
from cerebro.version import __version__

_STAGING = "staging"


class Prepared(NamedTuple):
    """What `prepare_data` has written.

    `metadata` has, for each column: `spark_data_type` (as Spark writes it, "vector" for ML
    vectors), `kind`, `dtype` and `shape` (of a row, as stored), `is_sparse_vector_only`,
    `intermediate_format` ("array", "custom_sparse_format" or "nochange") and `max_size` (of sparse
    rows the most entries that one has, else None).
    """

    train_rows: int
    val_rows: int
    metadata: dict[str, dict[str, Json]]
    avg_row_size: float


def prepare(context: Any, store: Store, wish: Wish) -> Prepared:
    """Write the dataset of a store anew."""
    deal = Deal(
        shards=wish.shards or MAX_DEFAULT_SHARDS,
        validation=wish.fraction,
        marker=wish.marker,
        seed=wish.seed,
        sparse=wish.sparse,
    )
    with sole_writer_at(store), _staging(store):
        staged = _stage(wish, store, deal)
        plans = plan_shards(staged, deal, exact=wish.shards is not None)
        try:
            infos = _make(context, store, plans)
            manifest = _manifest(plans, infos)
            store.write(FILE, manifest.to_bytes())
        except BaseException:
            # Ask the store which dataset is there now. Should it not say, all files stay until the
            # next writer removes them.
            with contextlib.suppress(CerebroError):
                remove_strays(store, _current(store))
            raise
        remove_strays(store, manifest)
    return _describe(wish, manifest, staged)


def _stage(wish: Wish, store: Store, deal: Deal) -> list[Staged]:
    """Run the first job."""
    prefix = f"{_STAGING}/{secrets.token_hex(8)}"
    with told_plainly():
        rows = wish.rows.mapInArrow(_stager(store, prefix, deal, wish.names), "told binary")
        told = rows.collect()
    staged: list[Staged] = [each for row in told for each in _heard(bytes(row["told"]))]
    seen = {f"{_STAGING}/{name}" for name in store.list(_STAGING)}
    for each in staged:
        if each.file not in seen:
            raise _unseen(store, each.file)
    return staged


def _stager(
    store: Store, prefix: str, deal: Deal, names: Sequence[str]
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    version = __version__

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        task = this_task()
        part = task.partitionId()
        name = f"{prefix}-{part}-{task.taskAttemptId()}"
        rows = (with_names(batch, names) for batch in batches)
        told = _told(version, lambda: list(stage(rows, store, name, deal, part)))
        yield as_batch("told", [told])

    return run


def _make(context: Any, store: Store, plans: Sequence[ShardPlan]) -> list[ShardInfo]:
    """Run the second job."""

    version = __version__

    def run(plan: ShardPlan) -> bytes:
        return _told(version, lambda: [make_shard(store, plan)])

    with told_plainly():
        told = context.parallelize(plans, len(plans)).map(run).collect()
    infos = [cast(ShardInfo, info) for each in told for info in _heard(each)]
    for info in infos:
        if not store.exists(info.file) or store.size(info.file) != info.bytes:
            raise _unseen(store, info.file)
    return infos


def _unseen(store: Store, file: str) -> UsageError:
    return UsageError(
        f"the store must be seen by the driver as by Spark's executors, but {file}, which an "
        f"executor wrote into {store.url}, is not there. Use a directory that all machines share, "
        "mounted at the same path, or a URL such as hdfs:// or s3://."
    )


def _told(version: str, work: Callable[[], list[Any]]) -> bytes:
    """What came of it, to be sent to the driver: Spark need not try again what cannot succeed."""
    try:
        check_version(version)
        return encode(work())
    except CerebroError as error:
        return encode(describe_failure(error))


def _heard(told: bytes) -> list[Any]:
    found: list[Any] | Failure = decode(told)
    if isinstance(found, Failure):
        kind = getattr(errors, found.error, WorkerError)
        raise kind(found.message)
    return found


def _manifest(plans: Sequence[ShardPlan], infos: Sequence[ShardInfo]) -> DatasetManifest:
    splits: dict[Split, tuple[ShardInfo, ...]] = {}
    for plan, info in zip(plans, infos, strict=True):
        splits[plan.split] = (*splits.get(plan.split, ()), info)
    return DatasetManifest(schema=plans[0].schema, splits=splits)


def _current(store: Store) -> DatasetManifest:
    """The dataset that is there; an empty one if there is none."""
    if not store.exists(FILE):
        return DatasetManifest(schema={}, splits={})
    return DatasetManifest.from_bytes(store.read(FILE), where=store.where(FILE))


def _describe(wish: Wish, manifest: DatasetManifest, staged: Sequence[Staged]) -> Prepared:
    rows = {split: sum(info.rows for info in infos) for split, infos in manifest.splits.items()}
    size = sum(info.bytes for infos in manifest.splits.values() for info in infos)
    most: dict[str, int] = {}
    for each in staged:
        for name, entries in each.most.items():
            most[name] = max(entries, most.get(name, 0))
    return Prepared(
        train_rows=rows[Split.TRAIN],
        val_rows=rows.get(Split.VAL, 0),
        metadata=_metadata(wish, manifest.schema, staged, most),
        avg_row_size=size / sum(rows.values()),
    )


def _metadata(
    wish: Wish, schema: Schema, staged: Sequence[Staged], most: dict[str, int]
) -> dict[str, dict[str, Json]]:
    found: dict[str, dict[str, Json]] = {}
    for name, column in schema.items():
        is_vector_column = is_vector(wish.columns[name])
        is_sparse = column.kind is Kind.SPARSE
        form = "custom_sparse_format" if is_sparse else "array" if is_vector_column else "nochange"
        found[name] = {
            "spark_data_type": "vector" if is_vector_column else wish.columns[name].simpleString(),
            **column.to_json(),
            "is_sparse_vector_only": name in most and all(name in each.most for each in staged),
            "intermediate_format": form,
            "max_size": most.get(name) if is_sparse else None,
        }
    return found


@contextlib.contextmanager
def _staging(store: Store) -> Iterator[None]:
    """A place for rows on their way; what killed processes left there is removed."""
    _clear(store)
    try:
        yield
    finally:
        _clear(store)


def _clear(store: Store) -> None:
    for name in store.list(_STAGING):
        store.remove(f"{_STAGING}/{name}")
    with contextlib.suppress(CerebroError):
        store.remove(_STAGING)
