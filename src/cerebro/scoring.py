"""Test and predict: from names of models to results."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

from cerebro.backend.base import Backend
from cerebro.data import open_dataset
from cerebro.errors import UsageError
from cerebro.results import Result, TrialResult
from cerebro.run.score import CSV, PARQUET, Scored, ScoreRequest, score
from cerebro.scores import PredictResult, TestResult
from cerebro.search.wording import show
from cerebro.storage import LocalStore, open_store
from cerebro.task import Task
from cerebro.track.bar import Bar
from cerebro.train.model_file import LOADABLE, file_member
from cerebro.train.score import Member, ScoreMode
from cerebro.types import Params, Split

#: What names a model: see `Experiment.run_test`.
ModelTag: TypeAlias = str | int | os.PathLike[str] | Result | TrialResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What an experiment brings along: its data, its run, its workers."""

    data: str
    #: The run's directory, whether there is a run or not.
    store: LocalStore
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
        path=store.local_path(),
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
        csv=store.local_path(CSV),
        parquet=store.local_path(PARQUET),
        path=store.local_path(),
        is_repeated=scored.is_repeated,
    )


def _score(ground: Ground, wish: Wish, mode: ScoreMode) -> tuple[Scored, LocalStore, ScoreRequest]:
    size = wish.batch_size
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise UsageError(f"`batch_size >= 1` must hold, but got batch_size={show(size)}.")
    request = ScoreRequest(
        mode=mode,
        task=wish.task,
        members=find_members(ground, wish),
        data=ground.data,
        split=_split(wish.split or str(mode)),
        batch_size=wish.batch_size,
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

    if not (sys.stderr.isatty() if wish.progress is None else wish.progress):
        return score(request, store=store, backend=ground.backend), store, request
    with Bar(total, lambda: done[0]):
        return score(request, store=store, backend=ground.backend, progress=tell), store, request


def find_members(ground: Ground, wish: Wish) -> tuple[Member, ...]:
    """The models that are meant, each once, under names of their own."""
    tags = list(wish.models) if isinstance(wish.models, list | tuple) else [wish.models]
    if not tags:
        raise UsageError("there must be a model to use, but the list of them is empty.")
    found: dict[str, Member] = {}
    for tag in tags:
        member = _find(ground, wish, tag)  # type: ignore[arg-type]
        known = found.setdefault(member.name, member)
        if known.weights.digest != member.weights.digest:
            raise UsageError(
                f"models must have names of their own, but two are called {member.name}: use them "
                "one after the other, or give one of the files another name."
            )
    return tuple(found.values())


def _find(ground: Ground, wish: Wish, tag: ModelTag) -> Member:
    if isinstance(tag, Result):
        return tag.member(tag.best.number, wish.which)
    if isinstance(tag, TrialResult):
        return _run(ground).member(tag.number, wish.which)
    if isinstance(tag, bool) or not isinstance(tag, str | int | os.PathLike):
        raise UsageError(
            "a model is named by its trial ('t0003', 3), by 'best', or by the path of a file, but "
            f"got {show(tag)}."
        )
    if isinstance(tag, os.PathLike) or (isinstance(tag, str) and _is_path(tag)):
        return file_member(_path(ground, os.fspath(tag)), cast("Params | None", wish.params))
    run = _run(ground)
    if tag == "best":
        return run.member(run.best.number, wish.which)
    is_number = isinstance(tag, str) and tag.isascii() and tag.isdecimal()
    return run.member(int(tag) if is_number else tag, wish.which)


def _run(ground: Ground) -> Result:
    """The run that trials are looked for in."""
    if not ground.store.exists("run.json"):
        path = ground.store.local_path()
        raise UsageError(
            f"a trial must be one of a run, but there is no run at {path}: train one with run_fit, "
            "or name a file with a model."
        )
    return Result.open(ground.store.local_path())


def _is_path(tag: str) -> bool:
    """Whether a name is that of a file, not of a trial."""
    return "/" in tag or os.path.splitext(tag)[1] != ""


def _path(ground: Ground, name: str) -> Path:
    """The file of a model: in models_dir, or where its path leads."""
    places = list(_places(ground, name))
    for place in places:
        if place.is_file():
            return place
    told = " or ".join(map(str, places))
    raise UsageError(f"a model must be a {', '.join(LOADABLE)} file, but there is no {told}.")


def _places(ground: Ground, name: str) -> Iterator[Path]:
    if ground.models_dir is not None and not os.path.isabs(name):
        yield Path(ground.models_dir) / name
    yield Path(name).expanduser()


def _split(name: object) -> Split:
    try:
        return Split(str(name))
    except ValueError:
        raise UsageError(f"unknown split {name!r}. Known: {', '.join(Split)}.") from None
