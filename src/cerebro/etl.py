"""The raw data of an experiment: where it is, and the dataset that is made of it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Mapping

from cerebro.backend.base import Backend
from cerebro.data import open_dataset
from cerebro.data.etl import mirror
from cerebro.data.etl.ledger import scratch_path
from cerebro.data.etl.raw import Raw
from cerebro.data.etl.reading import Reader
from cerebro.data.manifest import FILE
from cerebro.data.sources.locators import Locators, Plan
from cerebro.errors import StoreError, UsageError
from cerebro.etl_spec import ETLSpec
from cerebro.run.etl import EtlSettings, Shown, run_etl
from cerebro.run.etl_report import EtlReport
from cerebro.search.wording import show
from cerebro.storage.opening import open_directory, open_store
from cerebro.storage.remote import Url, fetch, is_remote, local_path, redact
from cerebro.storage.store import DirectoryStore, Store
from cerebro.storage.working import working_directory
from cerebro.types import Split

#: Names in the output directory.
PREPARED, MISC = "etl", "misc"


def find_places(
    params: Mapping[str, object] | None, data: Url | None, store: Url | None, name: str
) -> tuple[Store, RawData | None, str]:
    """Where an experiment keeps its runs, its raw data if it has any, and its prepared data.

    Args:
        params: Locators of raw data.
        data: Prepared data in their place; shards at a URL are fetched when they are used.
        store: Of runs; default `output_dir` of the params, else "runs".
        name: Of the experiment.
    """
    if (params is None) == (data is None):
        raise UsageError(
            "an experiment needs either params, the locators of raw data, or data, the "
            f"directory of a prepared dataset, but got {'neither' if data is None else 'both'}."
        )
    locators = Locators() if params is None else Locators.parse(params)
    runs = open_store(locators.output_dir or "runs" if store is None else store)
    if data is not None:
        return runs, None, open_store(data).where()
    raw = RawData(locators, working_directory(runs, f"{name}.data"))
    return runs, raw, open_directory(raw.path).root


class RawData:
    """What the locators of an experiment name, and what is made of it.

    Args:
        locators: Where everything is.
        output: A local directory for what has no place of its own.

    >>> import tempfile
    >>> locators = Locators.parse({"etl_dir": "prepared"})
    >>> RawData(locators, tempfile.mkdtemp()).path.endswith("/prepared")
    True
    """

    def __init__(self, locators: Locators, output: str) -> None:
        self.locators = locators
        self._output = output
        kept = self.locators.etl_dir
        self._remote = kept if kept is not None and is_remote(kept) else None
        own = os.path.join(output, PREPARED)
        #: The dataset's directory on this machine.
        self.path = os.path.abspath(own if kept is None or self._remote else str(local_path(kept)))
        #: There while the dataset here is not known to be where it is to be kept.
        self._unsent = os.path.join(output, "unsent")

    def dataset(self, split: str) -> str:
        """The dataset's directory, once it is known to have a split."""
        split = Split(split)
        self.pull()
        if split not in self._kept():
            if split in self.locators.main:
                raise UsageError(
                    f"{split} data must be prepared before it is used, but is not: call run_etl "
                    "first."
                )
            self.locators.decide(split, kept=(), asked=True).check()
        return self.path

    def pull(self) -> None:
        """Have here what is kept elsewhere; what was made here and not put there goes first."""
        if self._remote is None:
            return
        if os.path.exists(self._unsent) and os.path.exists(os.path.join(self.path, FILE)):
            self.push()
        elif mirror.remote_manifest(self._remote) is not None:
            mirror.download(self._remote, self.path)

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """While the dataset is made here; then it goes where it is kept, now or at a later call."""
        self.pull()
        if self._remote is not None:
            os.makedirs(self._output, exist_ok=True)
            open(self._unsent, "wb").close()
        yield
        if self._remote is not None:
            self.push()

    def push(self) -> None:
        """Put the dataset where it is kept."""
        mirror.upload(self.path, str(self._remote))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._unsent)

    def misc_path(self) -> str:
        """A directory with the misc files, and nothing else."""
        folder = os.path.join(self._output, MISC)
        names = [
            os.path.basename(file.partition("?")[0].rstrip("/")) for file in self.locators.misc
        ]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise UsageError(f"misc files must have different names, but {twice[0]!r} comes twice.")
        os.makedirs(folder, exist_ok=True)
        for left in set(os.listdir(folder)) - set(names):
            os.unlink(os.path.join(folder, left))
        for file, name in zip(self.locators.misc, names, strict=True):
            try:
                fetch(file, os.path.join(folder, name))
            except StoreError as error:
                if error.errno != errno.ENOENT:
                    raise
                raise UsageError(f"misc must name files, but {redact(file)} is none.") from error
        return folder

    def forget(self) -> None:
        """Remove what was prepared or fetched here; never what has a place of the user's own."""
        for folder in (PREPARED, MISC):
            shutil.rmtree(os.path.join(self._output, folder), ignore_errors=True)

    def to_prepare(self) -> list[Split]:
        """The splits whose sources were given; an error if there are none."""
        decisions = {split: self.locators.decide(split, kept=self._kept()) for split in Split}
        for decision in decisions.values():
            decision.check()
        plans = (Plan.PROCESS, Plan.PROCESS_AND_KEEP)
        found = [split for split, decision in decisions.items() if decision.plan in plans]
        if not found:
            raise UsageError(
                "there is nothing to prepare: give train_main, val_main, test_main or "
                "predict_main"
                + (", or use what etl_dir has without run_etl." if self._kept() else ".")
            )
        return found

    def _kept(self) -> tuple[Split, ...]:
        if os.path.exists(os.path.join(self.path, FILE)):
            return open_dataset(self.path).splits
        return () if self._remote is None else mirror.splits_at(self._remote)


def prepare(
    data: RawData | None,
    spec: ETLSpec | None,
    settings: EtlSettings,
    *,
    columns: Mapping[str, str] | None,
    backend: Backend,
    workers: int,
    shown: Shown | None,
    is_fresh: bool,
) -> EtlReport:
    """Read what the locators name and prepare it; what is kept already stays."""
    if data is None:
        raise UsageError(
            "run_etl prepares what params locate, but this experiment was made with data=, which "
            "is prepared already. Make it with Experiment({'train_main': ...})."
        )
    if not isinstance(spec, ETLSpec | None):
        hint = f" Make one: {spec.__name__}()." if isinstance(spec, type) else ""
        raise UsageError(f"spec must be an object of an ETLSpec, but got {show(spec)}.{hint}")
    wanted = data.to_prepare()
    if spec is not None:
        spec.read_misc(data.misc_path())
    store = DirectoryStore(data.path)
    reader = Reader(
        lambda name: scratch_path(store, name),
        columns=columns,
        on_bad_row=str(settings.policy),
        max_bad=settings.max_bad,
    )
    mains, folders = data.locators.main, data.locators.object_dirs

    def read() -> dict[Split, Raw]:
        return {s: reader.read(str(s), mains[s], folders.get(s)) for s in wanted}

    with data.changing():
        return run_etl(
            read,
            spec,
            settings,
            store=store,
            backend=backend,
            workers=workers,
            shown=shown,
            is_fresh=is_fresh,
        )
