"""ETL: raw rows of all splits, prepared on all workers, published as one dataset."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from cerebro.backend.base import Backend
from cerebro.backend.threads import ThreadBackend
from cerebro.data import Dataset, open_dataset
from cerebro.data.etl.combine import combine
from cerebro.data.etl.ledger import Ledger, scratch_path
from cerebro.data.etl.plan import SplitPlan, cut
from cerebro.data.etl.prepare import Part, Preparer
from cerebro.data.etl.raw import Raw, feature_names, with_same_ids
from cerebro.data.etl.staging import Staged, write_staged
from cerebro.data.manifest import FILE, DatasetManifest
from cerebro.data.publication import remove_strays, sole_writer
from cerebro.data.sources.bad_rows import DEFAULT_MAX_BAD, QUARANTINE_FILE, BadRow, BadRows, Policy
from cerebro.errors import DataError
from cerebro.etl_spec import ETLSpec
from cerebro.run.etl_report import EtlReport, EtlSplit
from cerebro.run.jobs import carry_out
from cerebro.storage.remote import redact
from cerebro.storage.store import DirectoryStore
from cerebro.train.identity import describe_task, exact_digest
from cerebro.train.progress import PROGRESS
from cerebro.types import Json, Split

#: Shows progress while it is open: given all rows, and a function that counts those done.
Shown = Callable[[int, Callable[[], int]], contextlib.AbstractContextManager[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EtlSettings:
    """How rows are prepared: all of this decides the shards."""

    shards: int
    fraction: float = 1.0
    seed: int = 1
    policy: Policy = Policy.FAIL
    max_bad: float = DEFAULT_MAX_BAD


class EtlRunner:
    """What a worker of an ETL has opened."""

    device = "cpu"

    def __init__(self, preparer: Preparer, spec: ETLSpec | None) -> None:
        self.preparer = preparer
        self._spec = spec

    def versions(self) -> Mapping[str, str]:
        return {}

    def describe(self) -> tuple[str, str]:
        return _identity(self._spec)

    def free(self) -> None:
        """Nothing is kept for later."""

    def close(self) -> None:
        """Nothing was changed in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtlSetup:
    """The opening of workers that prepare shards."""

    task: ETLSpec | None
    store: DirectoryStore
    policy: Policy
    #: Rows in memory, for workers in this process.
    tables: Mapping[Split, Staged] = field(default_factory=dict)
    threads: int = 1

    def open(self, worker: int) -> EtlRunner:
        preparer = Preparer(
            self.task,
            self.store,
            policy=self.policy,
            tick=PROGRESS.tick,
            tables=self.tables,
        )
        return EtlRunner(preparer, self.task)


@dataclass(frozen=True, slots=True)
class PrepareJob:
    """Prepare one shard."""

    plan: SplitPlan
    number: int

    def run(self, runner: EtlRunner) -> Part:
        return runner.preparer.prepare(self.plan, self.number)


def run_etl(
    read: Callable[[], Mapping[Split, Raw]],
    spec: ETLSpec | None,
    settings: EtlSettings,
    *,
    store: DirectoryStore,
    backend: Backend,
    workers: int,
    shown: Shown | None = None,
    is_fresh: bool = False,
) -> EtlReport:
    """Prepare what is read into the dataset of the store; splits it has besides stay.

    Nobody else can write the dataset from before the reading on until it is published.
    Whoever reads the dataset finds the old one or the new one. Killed and run again it goes on with
    the shards that are missing; the shards are the same for any number of workers. What was
    prepared before from the same rows by the same code is not prepared again, unless `is_fresh`.

    Where nothing was prepared before, workers start while the rows are read.
    """
    root = store.local_path()
    os.makedirs(root, exist_ok=True)
    # Before workers get the spec: it may keep what it finds out.
    features = spec.set_features() if spec else []
    setup = EtlSetup(task=spec, store=store, policy=settings.policy)
    with sole_writer(root):
        is_started = spec is not None and (is_fresh or not store.exists(FILE))
        try:
            if is_started:
                backend.start(setup, workers)
            etl = _Etl(read(), spec, settings, store, features)
            return etl.run(backend, setup, workers, shown, is_fresh, is_started)
        finally:
            backend.stop()


class _Etl:
    """One ETL."""

    def __init__(
        self,
        raw: Mapping[Split, Raw],
        spec: ETLSpec | None,
        settings: EtlSettings,
        store: DirectoryStore,
        features: Sequence[bool],
    ) -> None:
        self._raw = with_same_ids(raw)
        self._features = features
        self._spec = spec
        self._settings = settings
        self._store = store
        self._before = _existing(store)
        self._parts: list[Part] = []
        self._tables: dict[Split, Staged] = {}
        self._bad = BadRows(policy=settings.policy, max_bad=settings.max_bad)
        for each in self._raw.values():
            self._bad.extend(each.bad)
        self._total = sum(each.table.num_rows for each in self._raw.values()) + len(self._bad)
        self._bad.check(self._total)

    def run(
        self,
        backend: Backend,
        setup: EtlSetup,
        workers: int,
        shown: Shown | None,
        is_fresh: bool,
        is_started: bool,
    ) -> EtlReport:
        began = time.perf_counter()
        plans, described = self._plan()
        ledger = Ledger(self._store, described)
        known = None if is_fresh else ledger.finished(self._before)
        if known is not None:
            ledger.clear()
            # A process that was killed at its end may have left some.
            remove_strays(self._store, _manifest(self._store))
            return EtlReport.from_json(self._store.local_path(), known)
        for part in ledger.begin(is_fresh=is_fresh):
            self._take(part)
        have = {(part.split, part.number) for part in self._parts}
        jobs = [
            PrepareJob(plan, number)
            for split, plan in plans.items()
            for number in range(plan.shards)
            if (split, number) not in have
        ]
        rows = sum(job.plan.size_of(job.number) for job in jobs)

        def done(job: PrepareJob, answer: object) -> None:
            part = cast(Part, answer)
            ledger.add(part)
            self._take(part)

        if self._spec is None:
            # There is no code of the user's to run, and Arrow's runs on threads.
            backend, setup = ThreadBackend(), replace(setup, tables=self._tables)
        with shown(rows, backend.progress) if shown else contextlib.nullcontext():
            carry_out(jobs, backend, setup, workers=workers, done=done, is_started=is_started)
        return self._publish(plans, ledger, time.perf_counter() - began, rows)

    def _plan(self) -> tuple[dict[Split, SplitPlan], dict[str, Json]]:
        """How the splits are cut, and a description of all that decides the shards."""
        settings = self._settings
        features = feature_names(self._features, self._raw)
        counts = {split: raw.table.num_rows for split, raw in self._raw.items()}
        for split, count in counts.items():
            if not count:
                raise DataError(f"{self._raw[split].source} must have a row that can be used.")
        size = None
        if self._before is not None and self._before.shards(Split.TRAIN):
            size = self._before.shards(Split.TRAIN)[0].rows
        sizes = cut(counts, shards=settings.shards, fraction=settings.fraction, rows_per_shard=size)
        plans: dict[Split, SplitPlan] = {}
        digests: dict[str, Json] = {}
        for split, (taken, shards) in sizes.items():
            raw = self._raw[split]
            staged = scratch_path(self._store, f"{split}.arrow")
            if raw.staged is not None:
                staged, digests[str(split)] = raw.staged
            elif self._spec is None:
                staged_rows = self._tables[split] = Staged.of(raw.table)
                digests[str(split)] = staged_rows.digest()
                # What they were put together from is let go.
                self._raw[split] = replace(raw, table=staged_rows.table)
            else:
                digests[str(split)] = write_staged(staged, raw.table)
            plans[split] = SplitPlan(
                split=split,
                rows=raw.table.num_rows,
                taken=taken,
                shards=shards,
                seed=settings.seed,
                staged=staged,
                object_dir=raw.object_dir,
                features=tuple(name for name in features if name in raw.names),
                is_archive=raw.is_archive,
            )
        name, digest = _identity(self._spec)
        described: dict[str, Json] = {
            "rows": digests,
            "shards": {str(split): [taken, parts] for split, (taken, parts) in sizes.items()},
            "objects": {str(split): redact(p.object_dir or "") for split, p in plans.items()},
            "spec": [name, digest or f"unknown, of process {os.getpid()}"],
            "seed": settings.seed,
            "on_bad_row": [str(settings.policy), settings.max_bad],
        }
        return plans, described

    def _take(self, part: Part) -> None:
        """A shard is done: too many bad rows end the work here."""
        self._parts.append(part)
        self._bad.extend(part.bad)
        self._bad.check(self._total)

    def _publish(
        self, plans: Mapping[Split, SplitPlan], ledger: Ledger, seconds: float, prepared: int
    ) -> EtlReport:
        for split in plans:
            if not any(part.rows for part in self._parts if part.split is split):
                raise DataError(f"{self._raw[split].source} must have a row that can be used.")
        manifest = combine(self._parts, self._before)
        self._bad.rows = self._sorted_bad_rows()
        self._store.remove(QUARANTINE_FILE)
        self._bad.write(self._store)
        self._store.write(FILE, manifest.to_bytes())
        has_file = bool(self._bad.rows) and self._settings.policy is Policy.QUARANTINE
        report = EtlReport(
            path=self._store.local_path(),
            splits={str(split): self._split(plan) for split, plan in plans.items()},
            seconds=seconds,
            prepared=prepared,
            reasons=self._bad.counts(),
            quarantine=self._store.local_path(QUARANTINE_FILE) if has_file else None,
        )
        ledger.finish(manifest, report.to_json())
        remove_strays(self._store, manifest)
        return report

    def _sorted_bad_rows(self) -> list[BadRow]:
        """The bad rows in an order that does not depend on who was done first."""
        found = [row for raw in self._raw.values() for row in raw.bad]
        order = {split: place for place, split in enumerate(self._raw)}
        for part in sorted(self._parts, key=lambda part: (order[part.split], part.number)):
            found += part.bad
        return found

    def _split(self, plan: SplitPlan) -> EtlSplit:
        raw = self._raw[plan.split]
        own = [part for part in self._parts if part.split is plan.split]
        return EtlSplit(
            rows_in=plan.rows + len(raw.bad),
            rows=sum(part.rows for part in own),
            bad=len(raw.bad) + sum(len(part.bad) for part in own),
            left_out=plan.rows - plan.taken,
            shards=sum(part.info is not None for part in own),
        )


def _manifest(store: DirectoryStore) -> DatasetManifest:
    return DatasetManifest.from_bytes(store.read(FILE), where=store.local_path(FILE))


def _existing(store: DirectoryStore) -> Dataset | None:
    """The dataset that is there; a damaged one counts as none."""
    if not store.exists(FILE):
        return None
    try:
        return open_dataset(store.local_path())
    except DataError:
        return None


def _identity(spec: ETLSpec | None) -> tuple[str, str]:
    """The name of a spec, and a digest of all it computes with, "" if that cannot be known."""
    return ("", "none") if spec is None else (describe_task(spec)[0], exact_digest(spec))
