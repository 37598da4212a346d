"""Test and predict: from names of models to results."""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import SupportsIndex, TypeAlias
from urllib.parse import urlsplit

from cerebro.backend.base import Backend
from cerebro.data import open_dataset
from cerebro.errors import UsageError
from cerebro.results import Result, TrialResult
from cerebro.run.score import CSV, PARQUET, Scored, ScoreRequest, score
from cerebro.scores import PredictResult, TestResult
from cerebro.search.wording import show
from cerebro.storage import Store, open_store
from cerebro.storage.remote import exists_url, fetch, is_remote, join, local_path, redact
from cerebro.storage.working import working_directory
from cerebro.task import Task
from cerebro.track.shown import bar_for
from cerebro.train.model_file import LOADABLE, file_member
from cerebro.train.score.calls import Member, ScoreMode
from cerebro.types import Split

#: Where models from elsewhere are copied to, in the directory of a run.
MODELS = "models"
#: What names a model: see `Experiment.run_test`.
ModelTag: TypeAlias = str | int | os.PathLike[str] | Result | TrialResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What an experiment brings along: its data, its run, its workers."""

    data: str
    #: The run's directory, whether there is a run or not.
    store: Store
    backend: Backend
    workers: int
    threads: int
    device: str
    #: Where models are looked for by their names.
    models_dir: str | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked of the models; see `Experiment.run_test`."""

    task: Task | str
    models: ModelTag | Sequence[ModelTag]
    batch_size: int | None = None
    split: str | None = None
    which: str = "best"
    params: Mapping[str, object] | None = None
    output: str | os.PathLike[str] | None = None
    progress: bool | None = None
    fresh: bool = False


def run_test(ground: Ground, wish: Wish) -> TestResult:
    """Metrics of models over a split."""
    scored, store, request = _score(ground, wish, ScoreMode.TEST)
    return TestResult(
        split=str(request.split),
        metrics=scored.metrics,
        rows=scored.rows,
        seconds=scored.seconds,
        path=store.where(),
        is_repeated=scored.is_repeated,
    )


def run_predict(ground: Ground, wish: Wish) -> PredictResult:
    """What models say about the rows of a split."""
    scored, store, request = _score(ground, wish, ScoreMode.PREDICT)
    return PredictResult(
        split=str(request.split),
        models=tuple(member.name for member in request.members),
        rows=scored.rows,
        seconds=scored.seconds,
        csv=store.where(CSV),
        parquet=store.where(PARQUET),
        path=store.where(),
        is_repeated=scored.is_repeated,
    )


def _score(ground: Ground, wish: Wish, mode: ScoreMode) -> tuple[Scored, Store, ScoreRequest]:
    request = ScoreRequest(
        mode=mode,
        task=wish.task,
        members=find_members(ground, wish),
        data=ground.data,
        split=_split(wish.split or str(mode)),
        batch_size=_batch_size(wish.batch_size),
        workers=ground.workers,
        device=ground.device,
        threads=ground.threads,
        fresh=wish.fresh,
    )
    dataset = open_dataset(ground.data)
    digest = request.digest(dataset)
    if wish.output is None:
        store = ground.store.child(f"{mode}/{request.split}-{digest[:12] or 'once'}")
    else:
        store = open_store(wish.output)
    total, done = dataset.rows(request.split), [0]

    def tell(rows: int, of: int) -> None:
        done[0] = rows

    shown = bar_for(wish.progress)
    with shown(total, lambda: done[0]) if shown else contextlib.nullcontext():
        return score(request, store=store, backend=ground.backend, progress=tell), store, request


def find_members(ground: Ground, wish: Wish) -> tuple[Member, ...]:
    """The models that are meant, each once, under names of their own."""
    tags = list(wish.models) if isinstance(wish.models, list | tuple) else [wish.models]
    if not tags:
        raise UsageError("there must be a model to use, but the list of them is empty.")
    if wish.which not in ("best", "final"):
        raise UsageError(f"`which` must be 'best' or 'final', but got {show(wish.which)}.")
    models = _Models(ground, wish)
    found: dict[str, Member] = {}
    for tag in tags:
        member = models.find(tag)  # type: ignore[arg-type]
        known = found.setdefault(member.name, member)
        if known.weights.digest != member.weights.digest:
            raise UsageError(
                f"models must have names of their own, but two are called {member.name}: use them "
                "one after the other, or give one of the files another name."
            )
    return tuple(found.values())


class _Models:
    """Finds models by their tags."""

    def __init__(self, ground: Ground, wish: Wish) -> None:
        self._ground = ground
        self._wish = wish

    def find(self, tag: ModelTag) -> Member:
        which = self._wish.which
        if isinstance(tag, Result):
            return tag.member(tag.best.number, which)
        if isinstance(tag, TrialResult):
            return self._same(tag, self._run.member(tag.number, which))
        if isinstance(tag, bool) or not isinstance(tag, str | int | os.PathLike):
            raise UsageError(
                "a model is named by its trial ('t0003', 3), by 'best', or by the path of a file, "
                f"but got {show(tag)}."
            )
        if isinstance(tag, os.PathLike) or (isinstance(tag, str) and _is_path(tag)):
            return file_member(self._file(os.fspath(tag)), self._wish.params)
        is_number = isinstance(tag, str) and tag.isascii() and tag.isdecimal()
        return self._run.member(int(tag) if is_number else tag, which)

    @cached_property
    def _run(self) -> Result:
        """The run that trials are looked for in."""
        store = self._ground.store
        if not store.exists("run.json"):
            raise UsageError(
                f"a trial must be one of a run, but there is no run at {store.where()}: train "
                "one with run_fit, or name a file with a model."
            )
        return Result.open(store.where())

    def _same(self, tag: TrialResult, member: Member) -> Member:
        if dict(tag.params) != dict(member.params):
            raise UsageError(
                f"a trial must be one of the run {self._run.path}, but its {member.name} has the "
                f"params {show(dict(member.params))}, and the one given {show(dict(tag.params))}: "
                "for a trial of another run, use the experiment of that run."
            )
        return member

    def _file(self, name: str) -> str:
        """A file with a model on this machine: of models_dir, or where its path leads."""
        places = list(self._places(name))
        for place in places:
            path = local_path(place)
            if path is None and exists_url(place):
                path = self._fetched(place, name)
            if path is not None and os.path.isfile(path):
                return path
        told = " or ".join(map(redact, places))
        raise UsageError(f"a model must be a {', '.join(LOADABLE)} file, but there is no {told}.")

    def _places(self, name: str) -> Iterator[str]:
        folder = self._ground.models_dir
        if folder is not None and not os.path.isabs(name) and not _is_url(name):
            inside = local_path(folder)
            if inside is not None:
                yield os.path.join(inside, name)
            elif ".." not in name.split("/"):
                yield join(folder, os.path.normpath(name))
        yield name

    def _fetched(self, url: str, name: str) -> str:
        """A copy of a remote file in the run's directory, with the JSON file beside it, if any."""
        inside = os.path.basename(urlsplit(url).path) if _is_url(name) else os.path.normpath(name)
        target = working_directory(self._ground.store, f"{MODELS}/{inside}")
        fetch(url, target)
        beside, own = _as_json(url), _as_json(target)
        if exists_url(beside):
            fetch(beside, own)
        elif os.path.exists(own):
            os.remove(own)
        return target


def _is_url(name: str) -> bool:
    return is_remote(name) or name.startswith("file:")


def _as_json(path: str) -> str:
    stem, ending = os.path.splitext(path)
    return f"{stem}.json{ending.partition('?')[1]}{ending.partition('?')[2]}"


def _is_path(tag: str) -> bool:
    """Whether a name is that of a file, not of a trial."""
    return "/" in tag or os.path.splitext(tag)[1] != ""


def _batch_size(size: SupportsIndex | None) -> int | None:
    try:
        number = None if size is None else operator.index(size)
    except TypeError:
        number = 0
    if isinstance(size, bool) or (number is not None and number < 1):
        raise UsageError(f"`batch_size >= 1` must hold, but got batch_size={show(size)}.")
    return number


def _split(name: object) -> Split:
    try:
        return Split(str(name))
    except ValueError:
        raise UsageError(f"unknown split {name!r}. Known: {', '.join(Split)}.") from None
