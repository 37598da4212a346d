"""Runs the visits of one worker: opens shards, loads checkpoints, calls the framework."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from cerebro.data import Dataset, open_dataset, permutation
from cerebro.errors import DataError, MissingDependencyError, UsageError
from cerebro.spec import MiniBatchSpec
from cerebro.storage import open_store
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.storage.checkpoint import load as load_checkpoint
from cerebro.task import ParamDict, RunFacts, Task
from cerebro.track.graph import GraphNode
from cerebro.train.identity import FILE_MODULE, describe_task, has_own_state
from cerebro.train.spec.task import as_task
from cerebro.train.told import require_untold, tell
from cerebro.train.visit import (
    Allocate,
    Drawing,
    Framework,
    State,
    Survey,
    SurveyCall,
    VisitCall,
    VisitReport,
)
from cerebro.types import Split

__all__ = [
    "FRAMEWORKS",
    "VisitRunner",
    "describe_task",
    "facts_of",
    "has_own_state",
    "import_task",
    "make_framework",
]

#: Name -> module:Class and what to install.
FRAMEWORKS: Mapping[str, tuple[str, str]] = {
    "keras": ("cerebro.train.keras.framework:KerasFramework", "pip install 'cerebro[keras]'"),
    "spec": ("cerebro.train.spec.framework:SpecFramework", "pip install 'cerebro[torch]'"),
    "torch": ("cerebro.train.torch.framework:TorchFramework", "pip install 'cerebro[torch]'"),
}


class VisitRunner:
    """One worker's dataset, task and framework.

    The worker keeps the shards it has opened: their pages are the operating system's, shared by all
    workers of the host.
    """

    def __init__(
        self,
        task: Task | str,
        data: str,
        *,
        data_digest: str | None = None,
        store: str = "",
        device: str = "auto",
        threads: int = 1,
        worker: int = 0,
        ranks: int = 1,
    ) -> None:
        #: Root of the run's store.
        self.store = store
        self.threads = threads
        self.dataset = open_dataset(data)
        if data_digest not in (None, self.dataset.digest):
            raise DataError(
                f"a dataset must stay as it is while it is in use, but {data} was replaced. "
                "Prepare the old data again, or start a new run on the new."
            )
        self.task = import_task(task) if isinstance(task, str) else task
        # As it came: a framework may let it set itself up.
        self._described = describe_task(self.task)
        require_untold(self.task)
        self._held_out = (0, 0)
        self._tell_facts(ranks)
        self.framework = make_framework(self.task, device=device, threads=threads, worker=worker)
        # NumPy loads its generators at first use, which takes longer than many a visit.
        permutation(1, seed=0, trial=0, epoch=0, shard=0)

    @property
    def device(self) -> str:
        return self.framework.device

    def versions(self) -> Mapping[str, str]:
        return self.framework.versions()

    def describe(self) -> tuple[str, str]:
        """The task's name and a SHA-256 of what it computes with."""
        return self._described

    def load(self, ref: CheckpointRef) -> State:
        """The state that a checkpoint holds."""
        found = load_checkpoint(open_store(self.store), ref, into=bytearray)
        return State(memoryview(found.data), found.meta)

    def run(
        self, call: VisitCall, state: State | None, allocate: Allocate
    ) -> tuple[State | None, VisitReport]:
        """Run a visit. The state is None after an evaluation."""
        call = replace(call, params=tuple(ParamDict(params) for params in call.params))
        if call.held_out != self._held_out:
            self._held_out = call.held_out
            self._tell_facts(self._ranks)
        began = time.perf_counter()
        shard = self.dataset.open_shard(call.split, call.shard, verify=call.verify)
        opened_s = time.perf_counter() - began
        if not call.is_training:
            if state is None:
                raise UsageError("an evaluation must have a state to evaluate, but got none.")
            report = self.framework.evaluate(call, shard, state)
            return None, replace(report, data_s=report.data_s + opened_s)
        names: tuple[str, ...] = ()
        graph: tuple[GraphNode, ...] = ()
        if call.probe:
            names = self.framework.metric_names(call, shard)
            graph = self.framework.graph(call, shard) if isinstance(self.framework, Drawing) else ()
        after, report = self.framework.train(call, shard, state, allocate)
        report = replace(report, data_s=report.data_s + opened_s, metric_names=names, graph=graph)
        return after, report

    def survey(self, call: SurveyCall) -> Survey:
        """Look at trials before they are put into stacks."""
        call = replace(call, params=tuple(ParamDict(params) for params in call.params))
        return self.framework.survey(call, self.dataset.open_shard(Split.TRAIN, 0))

    def _tell_facts(self, workers: int) -> None:
        """What the task may know of the trial that it is about to build."""
        self._ranks = workers
        facts = facts_of(self.dataset, workers=workers, held_out=self._held_out)
        tell(self.task, "facts", facts)

    def free(self) -> None:
        """Give back memory that is kept for later visits."""
        self.framework.free()

    def close(self) -> None:
        """Give back what it changed in this process."""
        self.framework.close()


def facts_of(dataset: Dataset, *, workers: int = 1, held_out: tuple[int, int] = (0, 0)) -> RunFacts:
    """What a task is told of trials that are not trained on the shards held out: from, to."""
    first, end = held_out
    shards = dataset.shards(Split.TRAIN)
    return RunFacts(
        shard_rows=tuple(shard.rows for shard in (*shards[:first], *shards[end:])), workers=workers
    )


def make_framework(task: Task, *, device: str, threads: int, worker: int = 0) -> Framework:
    """The framework that `task` names, ready on its device."""
    reference, hint = FRAMEWORKS.get(task.framework, (task.framework, ""))
    module, _, name = reference.partition(":")
    if not name:
        raise UsageError(
            f"unknown framework {task.framework!r}. Known: {', '.join(sorted(FRAMEWORKS))}; "
            f"or name one as module:Class."
        )
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise MissingDependencyError(
            f"framework {task.framework!r} cannot be imported ({error}). {hint}"
        ) from error
    return cast(Framework, factory(task, device=device, threads=threads, worker=worker))


def import_task(reference: str) -> Task:
    """The task named by `module:Class` or `path/file.py:Class`."""
    where, _, name = reference.rpartition(":")
    if not where or not name:
        raise UsageError(f"a task must be named as module:Class, but got {reference!r}.")
    try:
        module = (
            _import_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
        )
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"the task {reference!r} cannot be imported: {type(error).__name__}: {error}"
            f"{_place_of(error)}."
        ) from error
    found = getattr(module, name, None)
    if not isinstance(found, type) or not issubclass(found, Task | MiniBatchSpec):
        raise UsageError(
            f"{reference!r} must name a subclass of cerebro.Task or cerebro.MiniBatchSpec, but "
            f"{where} has {'no ' + name if found is None else type(found).__name__ + ' ' + name}."
        )
    try:
        made = found()
    except TypeError as error:
        raise UsageError(
            f"the task {reference!r} must be made without arguments to be named, but: {error}."
        ) from error
    return as_task(made)


def _place_of(error: Exception) -> str:
    """Where user code raised, as " (file, line n)"."""
    if isinstance(error, SyntaxError):
        return f" ({error.filename}, line {error.lineno})" if error.filename else ""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename]
    # The first frame is ours.
    return f" ({own[-1].filename}, line {own[-1].lineno})" if len(own) > 1 else ""


def _import_file(path: Path) -> object:
    if not path.is_file():
        raise UsageError(f"the task's file must exist, but there is no {path}.")
    path = path.resolve()
    name = f"{FILE_MODULE}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported as Python.")
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
