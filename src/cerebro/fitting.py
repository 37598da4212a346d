"""Train and select: from what an experiment was asked to a run, wherever its workers are."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from cerebro.backend.base import Backend, Setup
from cerebro.backend.gang.agent import serve
from cerebro.backend.gang.muster import Muster, announce, mustered
from cerebro.backend.gang.rendezvous import Kind, Rendezvous
from cerebro.data import Dataset, open_dataset
from cerebro.errors import UsageError
from cerebro.results import Result
from cerebro.run.checks import is_batch_size
from cerebro.run.fit import Settings, fit, make_setup
from cerebro.run.gauge import gauge
from cerebro.run.outlook import Place, Plan, warn_of_plan
from cerebro.run.parallel import Division, Mode, Parallel, StepCost, compare, divide
from cerebro.run.request import Request, choose, is_stack_asked, resolve
from cerebro.run.signals import Broken, StopRequested
from cerebro.run.spec import RunSpec, read_document
from cerebro.storage import Store, layout, open_store
from cerebro.storage.working import published
from cerebro.task import Task
from cerebro.track.efficiency import Summary
from cerebro.track.npz import NpzTracker
from cerebro.track.plain import closing_lines
from cerebro.track.shown import is_shown, trackers_for
from cerebro.track.stderr import told_on_stderr
from cerebro.track.steps import StepTimes
from cerebro.track.text import show
from cerebro.track.tracker import Tracker
from cerebro.train.gang.place import GangPlace
from cerebro.train.runner import facts_of, import_task
from cerebro.types import Params
from cerebro.zoo.params import epoch_lr

logger = logging.getLogger("cerebro.run")


@dataclass(frozen=True, slots=True, kw_only=True)
class FitGround:
    """What an experiment brings along: its data, where runs are kept, its workers."""

    data: str
    #: Where runs are kept, and the run's own directory.
    runs: Store
    store: Store
    #: Of all machines together.
    workers: int
    #: Of each machine.
    host_workers: Callable[[], int]
    is_inline: bool
    #: Whether its workers can be gangs.
    has_gangs: bool
    #: Whether workers that this process starts are on its machine.
    is_here: bool
    #: The place of this process among those that were started for a run; None: it is alone.
    rendezvous: Rendezvous | None = None
    #: Who started it as the only rank there is; None: nobody, or the number of workers was given.
    sole_rank_of: Kind | None = None
    make_backend: Callable[[], Backend]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitWish:
    """How a run is carried out, as far as that does not change its results."""

    task: Task | str
    device: str
    keep_top: int | None
    progress: bool | None
    logdir: str | os.PathLike[str] | None
    fresh: bool
    force: bool


def run_fit(ground: FitGround, request: Request, wish: FitWish) -> None:
    """Carry a run to its end; or give it the ranks of this process, if others lead it."""
    spot = ground.rendezvous
    if spot is not None and spot.is_spread and ground.is_inline:
        raise UsageError(
            f"{spot.world} ranks on several machines or started one by one need processes of their "
            "own, but got backend='inline', which has none. Use backend='local'."
        )
    with told_on_stderr() if is_shown(wish.progress) else contextlib.nullcontext():
        if spot is None or not spot.is_spread:
            _lead(ground, request, wish)
        elif spot.is_leading:
            with mustered(spot, request.name, request.threads_per_worker) as muster:
                _lead(ground, request, wish, muster)
        else:
            _follow(ground, request, wish, spot)


def _lead(ground: FitGround, request: Request, wish: FitWish, muster: Muster | None = None) -> None:
    dataset = open_dataset(ground.data)
    division = _divide(ground, request, wish, dataset, muster)
    request = dataclasses.replace(request, division=division)
    address = "" if muster is None else muster.gang
    settings = _settings(ground, request, wish, division, address)
    spec, sampler, stopper = resolve(request, dataset, workers=division.gangs)
    place = Place(ground.runs, request.name, wish.task)
    plan = Plan(request, dataset, place, spec, sampler, division.gangs)
    warn_of_plan(plan, is_fresh=wish.fresh)
    backend = _listening(ground.make_backend(), muster)
    spot = ground.rendezvous
    if settings.gang is not None and ground.is_here:
        for gang in range(division.gangs):
            for rank in range(settings.gang.local):
                announce(rank, division.ranks, gang=gang if division.gangs > 1 else None)
    elif muster is not None and spot is not None:
        # It trains alone, but others were started with it.
        for rank in range(spot.local):
            announce(rank, spot.world)
    steps = StepTimes()
    with published(ground.store) as root, _logs(wish.logdir, request.name) as logs:
        fit(
            spec,
            settings,
            store=ground.store,
            backend=backend,
            sampler=sampler,
            stopper=stopper,
            trackers=[
                *trackers_for(root, wish.progress, logs),
                *_curves(root, spec, dataset),
                steps,
            ],
        )
    told = compare(division, step_s=steps.step_s, comm_s=steps.comm_s)
    if told is not None:
        logger.info("%s", told)
    if muster is not None:
        muster.word = _last_word(Result.open(ground.store.where()))


def _listening(backend: Backend, muster: Muster | None) -> Backend:
    """A backend on which it is heard what agents tell."""
    if muster is not None:
        # Not a signal to this process: it may have had its own, and a second one means at once.
        muster.on_stop = lambda number: backend.post(StopRequested(number))
        muster.on_failure = lambda error: backend.post(Broken(error))
    return backend


def _logs(
    logdir: str | os.PathLike[str] | None, name: str
) -> contextlib.AbstractContextManager[str | None]:
    """The directory of TensorBoard's files, unless they lie beside the run; a URL gets a copy."""
    if logdir is None:
        return contextlib.nullcontext()
    return published(open_store(logdir).child(name))


def _last_word(result: Result) -> str:
    """What people on other machines are told of a run that has ended."""
    lines = closing_lines(Summary(**result.summary), result.is_resumed) if result.summary else []
    with contextlib.suppress(UsageError):
        best = result.best
        value, epoch = show(best.metrics[result.metric]), (best.epoch or 0) + 1
        lines.insert(0, f"best {best.id} with {result.metric} {value} in epoch {epoch}")
    return "; ".join(lines)


def _curves(root: str, spec: RunSpec, dataset: Dataset) -> list[Tracker]:
    """Who writes the curves of a recipe's trials, whose params tell learning rates."""
    if not {"optimizer.lr", "training.n_epochs"} <= spec.space.keys():
        return []
    facts = [
        facts_of(dataset, workers=spec.gang, held_out=spec.held_out(fold))
        for fold in range(max(1, spec.folds))
    ]

    def rate_at(params: Params, repeat: int, epoch: int) -> float:
        return epoch_lr(params, facts[repeat if spec.folds else 0], epoch)

    return [NpzTracker(root, ranks=spec.gang, rate_at=rate_at)]


def _follow(ground: FitGround, request: Request, wish: FitWish, spot: Rendezvous) -> None:
    """Serve the run of another machine, with what is asked for there."""
    dataset = open_dataset(ground.data)
    division = _as_started(request, spot)
    request = dataclasses.replace(request, division=division)
    spec = resolve(request, dataset, workers=1).spec

    def setup_at(address: str) -> Setup:
        settings = _settings(ground, request, wish, division, address)
        return make_setup(spec, settings, ground.store)

    serve(spot, request.name, setup_at)
    if not ground.store.exists(layout.RUN):
        # Nothing that a script could do with the result can be done here.
        raise SystemExit(0)


def _settings(
    ground: FitGround, request: Request, wish: FitWish, division: Division, address: str
) -> Settings:
    gang = None
    if division.ranks > 1:
        local = division.ranks if not address or ground.rendezvous is None else 0
        gang = GangPlace(
            size=division.ranks,
            local=local or cast(Rendezvous, ground.rendezvous).local,
            address=address,
            check_every=request.parallel.check_every,
            is_together=request.parallel.workers_per_trial == "host",
        )
    return Settings(
        task=wish.task,
        workers=division.gangs,
        device=wish.device,
        keep_top=wish.keep_top,
        fresh=wish.fresh,
        force=wish.force,
        threaded=not ground.is_inline,
        gang=gang,
    )


def _as_started(request: Request, spot: Rendezvous) -> Division:
    """All ranks that were started for a run train its trials together."""
    asked = request.parallel
    if asked.mode not in (Mode.DDP, Mode.AUTO) or asked.workers_per_trial not in (None, spot.world):
        raise UsageError(
            f"{spot.world} ranks on several machines or started one by one train each trial "
            f"together, as parallel='ddp' says, but got parallel={str(asked.mode)!r}"
            f"{'' if asked.workers_per_trial is None else ' with workers_per_trial'}. Trials hop "
            "between the workers of one machine."
        )
    reason = f"as {spot.world} ranks were started by {spot.kind}"
    return Division(mode=Mode.DDP, ranks=spot.world, gangs=1, reason=reason)


def _divide(
    ground: FitGround, request: Request, wish: FitWish, dataset: Dataset, muster: Muster | None
) -> Division:
    """How the workers are divided: as they were started, as in the run so far, or as asked for."""
    asked = request.parallel
    if muster is not None:
        division = _as_pays(ground, request, wish, dataset, muster)
    elif asked.mode is Mode.AUTO:
        division = _as_before(ground, wish) or _as_fits(ground, request, wish, dataset)
    elif ground.sole_rank_of and asked.mode is Mode.DDP and asked.workers_per_trial is None:
        # Each of several ranks would be one worker: so is a single one.
        reason = f"as {ground.sole_rank_of} has started one rank"
        division = Division(mode=Mode.DDP, ranks=1, gangs=1, reason=reason)
    else:
        trials = None if asked.mode is Mode.MOP else _count_trials(request)
        division = divide(_sized(asked, ground), workers=ground.workers, trials=trials)
    if division.ranks > 1 and not ground.has_gangs:
        raise UsageError(
            f"a trial is trained by several workers on the local, inline and Ray backends, but got "
            f"parallel={str(asked.mode)!r} with another. Use parallel='mop'."
        )
    if asked.mode is not Mode.MOP:
        logger.info("%s", division.describe())
    return division


def _as_pays(
    ground: FitGround, request: Request, wish: FitWish, dataset: Dataset, muster: Muster
) -> Division:
    """All ranks that were started; or, where that was left open and pays, this machine alone."""
    spot, asked = cast(Rendezvous, ground.rendezvous), request.parallel
    division = _as_started(request, spot)
    is_open = asked.mode is Mode.AUTO and asked.workers_per_trial is None
    if is_open and _count_trials(request) != 1:
        # Said, since with workers of one machine they would.
        reason = f"{division.reason}; trials hop over several machines on Ray and Spark"
        return dataclasses.replace(division, reason=reason)
    if not is_open or not ground.has_gangs:
        return division
    found = _as_before(ground, wish)
    if found is None:
        cost = _gauge(ground, request, wish, dataset, division, muster)
        found = division
        if cost is not None:
            found = divide(asked, workers=spot.world, trials=1, cost=cost)
    if found.ranks == 1 and found.cost:
        muster.spare()
        return dataclasses.replace(found, gangs=spot.local)
    return found if found.ranks == spot.world else division


def _as_before(ground: FitGround, wish: FitWish) -> Division | None:
    """As the run was begun, if it was."""
    document = None if wish.fresh else read_document(ground.store)
    if document is None or not document.spec["parallel"]:
        return None
    told = cast("dict[str, object]", document.spec["parallel"])
    ranks = cast(int, document.spec["gang"])
    return Division(
        mode=Mode(str(told["mode"])),
        ranks=ranks,
        gangs=max(1, ground.workers // ranks),
        reason=str(told["reason"]),
        cost=told["cost"],  # type: ignore[arg-type]
    )


def _as_fits(ground: FitGround, request: Request, wish: FitWish, dataset: Dataset) -> Division:
    """As fits the number of trials, and what their steps cost."""
    asked, trials = _sized(request.parallel, ground), _count_trials(request)
    division = divide(asked, workers=ground.workers, trials=trials)
    if division.ranks == 1 or asked.workers_per_trial is not None:
        return division
    alone = Division(mode=Mode.MOP, ranks=1, gangs=ground.workers, reason="")
    if not ground.has_gangs:
        return dataclasses.replace(alone, reason="as this backend has no gangs")
    # Steps of a single trial are tried on a worker, which knows.
    framework = None if trials == 1 and isinstance(wish.task, str) else _framework(wish.task)
    if framework not in (None, "torch"):
        reason = f"as a task of {framework!r} cannot be shared"
        return dataclasses.replace(alone, reason=reason)
    if is_stack_asked(request):
        reason = f"as a stack of trials (stack={request.stack}) is trained by one worker"
        return dataclasses.replace(alone, reason=reason)
    if trials != 1:
        return division
    try:
        cost = _gauge(ground, request, wish, dataset, division)
    except UsageError as error:
        # Whatever else is wrong is for the run to tell.
        return dataclasses.replace(alone, reason=f"as its task cannot be shared: {error}")
    return divide(asked, workers=ground.workers, trials=trials, cost=cost)


def _framework(task: Task | str) -> str | None:
    """Who trains it; None where that is not known here."""
    if isinstance(task, str) and task.startswith("cerebro.zoo."):
        return "torch"
    if isinstance(task, str):
        # The workers of a run import it; that it cannot be is theirs to tell.
        with contextlib.suppress(UsageError):
            task = import_task(task)
    return None if isinstance(task, str) else task.framework


def _sized(asked: Parallel, ground: FitGround) -> Parallel:
    """The same, with the number of workers that a machine has where that was asked for."""
    if asked.workers_per_trial != "host":
        return asked
    return dataclasses.replace(asked, workers_per_trial=ground.host_workers())


def _count_trials(request: Request) -> int | None:
    found = choose(request).sampler.num_trials
    return None if found is None else found * max(request.seeds, request.folds, 1)


def _gauge(
    ground: FitGround,
    request: Request,
    wish: FitWish,
    dataset: Dataset,
    division: Division,
    muster: Muster | None = None,
) -> StepCost | None:
    single = dataclasses.replace(division, mode=Mode.MOP, ranks=1, gangs=ground.workers)
    alone, together = (
        resolve(dataclasses.replace(request, division=each), dataset, workers=1)
        for each in (single, division)
    )
    params = together.sampler.ask(0)
    if params is None or not is_batch_size(together.spec, params):
        return None
    settings = _settings(ground, request, wish, division, "" if muster is None else muster.gang)
    try:
        return gauge(
            _listening(ground.make_backend(), muster),
            make_setup(together.spec, settings, ground.store),
            dataset,
            alone=alone.spec,
            together=together.spec,
            params=params,
        )
    finally:
        if muster is not None:
            muster.hold()
