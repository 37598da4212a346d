"""What a person asks of a run, checked and made into what carries it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cerebro.data import Dataset
from cerebro.errors import UsageError
from cerebro.run.devices import count_gpus
from cerebro.run.parallel import Division, Parallel
from cerebro.run.spec import Checkpointing, RunSpec
from cerebro.run.stacks import Setting
from cerebro.search.budget import parse_budget
from cerebro.search.conductor import Conductor
from cerebro.search.decision import Outcome
from cerebro.search.goal import Goal, check_epochs
from cerebro.search.sampler import Sampler, describe_search, make_sampler
from cerebro.search.space import Space
from cerebro.search.stopper import Stopper
from cerebro.search.stoppers import Stoppers, make_goal, make_stopper
from cerebro.search.wording import show
from cerebro.types import Mode, Params, Split

BATCH_SIZES = ("batch_size", "global_batch_size")
#: Trials under way for each worker, where more would only be proposed in the dark.
_PER_WORKER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Everything that decides the results of a run, as it was written."""

    name: str
    space: Space
    search: object = "grid"
    num_trials: int | None = None
    epochs: int | None = None
    #: Of each worker of a trial, or of all of them together: one is given, here or in the space.
    batch_size: int | None = None
    global_batch_size: int | None = None
    metric: str | Sequence[str]
    mode: str | Sequence[str]
    seed: int = 0
    threads_per_worker: int = 1
    checkpoint: Checkpointing = Checkpointing.VISIT
    stack: Setting = "auto"
    same_order: bool = False
    stopper: object = None
    goal: Mapping[str, object] | None = None
    budget: object = None
    concurrent: int | None = None
    seeds: int = 1
    folds: int = 0
    constraints: Mapping[str, float] = field(default_factory=dict)
    warm_start: Sequence[Params] = ()
    #: Params and outcomes of an earlier run.
    known: Sequence[tuple[Params, Outcome]] = ()
    #: How many workers train a trial together.
    parallel: Parallel = field(default_factory=Parallel)
    division: Division | None = None


class Resolved(NamedTuple):
    """A request that can be carried out."""

    spec: RunSpec
    sampler: Sampler
    stopper: Stopper


class Chosen(NamedTuple):
    """What a request comes to, whatever the data."""

    objectives: Sequence[tuple[str, Mode]]
    epochs: int
    num_trials: int | None
    sampler: Sampler
    goal: Goal | None
    stopper: Stopper | None


def choose(request: Request) -> Chosen:
    """Make what needs no data; UsageError where the parts of a request do not fit each other."""
    objectives = _objectives(request)
    metric, mode = objectives[0]
    goal = None if request.goal is None else make_goal(request.goal, metric=metric, mode=mode)
    epochs = _epochs(request, None if goal is None else goal.max_epochs)
    repeats = _repeats(request)
    num_trials, stopper = _stopper(request, metric, mode, epochs)
    sampler = make_sampler(
        request.search,
        request.space,
        seed=request.seed,
        num_trials=num_trials,
        modes=[str(each) for _, each in objectives],
        warm_start=request.warm_start,
        known=request.known,
    )
    if stopper is None and request.stopper is not None:
        # How many there are is known now.
        planned = None if sampler.num_trials is None else repeats * sampler.num_trials
        stopper = _make_stopper(request, metric, mode, epochs, planned)
    if repeats > 1 and stopper is not None and stopper.is_comparing:
        kind = "folds" if request.folds else "seeds"
        raise UsageError(
            f"stopper {stopper.describe().get('name')!r} weighs trials against each other, which "
            f"repeats of one configuration must not be, but got {kind}={repeats}. Remove one of "
            "them."
        )
    return Chosen(objectives, epochs, num_trials, sampler, goal, stopper)


def resolve(request: Request, dataset: Dataset, *, workers: int) -> Resolved:
    """Make a request into a run; UsageError where it cannot be carried out."""
    objectives, epochs, num_trials, sampler, goal, stopper = choose(request)
    (metric, mode), *others = objectives
    objection = wrong_batch_sizes(request)
    if objection is not None:
        raise UsageError(objection)
    gang = 1 if request.division is None else request.division.ranks
    search = describe_search(request.search)
    described = {} if stopper is None else stopper.describe()
    spec = RunSpec(
        name=request.name,
        data=dataset.path,
        data_digest=dataset.digest,
        **_shards(request, dataset, metric),
        space=request.space.to_json(),
        search=str(search.pop("name")),
        num_trials=num_trials,
        epochs=epochs,
        batch_size=request.batch_size,
        global_batch_size=request.global_batch_size,
        gang=gang,
        parallel={} if request.division is None else request.division.to_json(),
        metric=metric,
        mode=mode,
        seed=request.seed,
        threads_per_worker=request.threads_per_worker,
        checkpoint=request.checkpoint,
        stack=False if request.folds else _stack(request, gang),
        same_order=request.same_order,
        search_options=search,
        stopper=described,
        goal={} if goal is None else goal.describe(),
        budget=parse_budget(request.budget),
        concurrent=request.concurrent or _concurrent(request, sampler, described, workers),
        seeds=request.seeds,
        folds=request.folds,
        objectives=[[name, str(each)] for name, each in others],
        constraints=_constraints(request.constraints),
    )
    _check_checkpoints(spec)
    both = [each for each in (goal, stopper) if each is not None]
    return Resolved(spec, sampler, Stoppers(both) if both else make_stopper(None, **_RUN))


def make_conductor(spec: RunSpec, sampler: Sampler, stopper: Stopper) -> Conductor:
    """Who conducts the search of a run."""
    trials = spec.budget.get("trials")
    return Conductor(
        sampler,
        stopper,
        epochs=spec.epochs,
        concurrent=spec.concurrent,
        objectives=[(spec.metric, spec.mode), *((n, Mode(m)) for n, m in spec.objectives)],
        repeats=max(spec.seeds, spec.folds),
        max_trials=None if trials is None else int(trials),
        max_epochs=spec.max_epochs,
        constraints=list(spec.constraints.items()),
    )


#: For the stopper that looks at nothing.
_RUN: Mapping[str, Any] = {"metric": "", "mode": Mode.MIN, "epochs": 1}


def _objectives(request: Request) -> list[tuple[str, Mode]]:
    metrics, modes = _listed(request.metric), _listed(request.mode)
    if len(metrics) != len(modes) or not metrics:
        raise UsageError(
            f"each metric needs a mode, but got metric={show(request.metric)}, "
            f"mode={show(request.mode)}."
        )
    for mode in modes:
        if mode not in (Mode.MAX, Mode.MIN):
            known = ", ".join(Mode)
            raise UsageError(f"mode must be one of {known}, but got {mode!r}.")
    return [(metric, Mode(mode)) for metric, mode in zip(metrics, modes, strict=True)]


def _listed(value: str | Sequence[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _epochs(request: Request, most: int | None) -> int:
    epochs = most if request.epochs is None else request.epochs
    if epochs is None:
        raise UsageError("num_epochs must be given, or max_epochs with the goal.")
    check_epochs(epochs, most)
    return epochs


def _repeats(request: Request) -> int:
    if request.seeds > 1 and request.folds:
        raise UsageError(
            f"a configuration is repeated with seeds or with folds, but got seeds={request.seeds} "
            f"and folds={request.folds}. Keep one."
        )
    return max(request.seeds, request.folds, 1)


def _stopper(
    request: Request, metric: str, mode: Mode, epochs: int
) -> tuple[int | None, Stopper | None]:
    """How many trials there shall be, and the stopper where that is its own decision."""
    name = request.search.get("name") if isinstance(request.search, Mapping) else request.search
    if request.num_trials is not None or name == "grid" or request.stopper is None:
        return request.num_trials, None
    stopper = _make_stopper(request, metric, mode, epochs, None)
    return getattr(stopper, "num_trials", None), stopper


def _make_stopper(
    request: Request, metric: str, mode: Mode, epochs: int, num_trials: int | None
) -> Stopper:
    return make_stopper(
        request.stopper,
        metric=metric,
        mode=mode,
        epochs=epochs,
        num_trials=num_trials,
        seed=request.seed,
        space=request.space,
    )


def _concurrent(
    request: Request, sampler: Sampler, stopper: Mapping[str, object], workers: int
) -> int | None:
    """As many as keep the workers busy, where what is tried next depends on what is known.

    Large stacks of new trials are worth more than that on a GPU, and where they are asked for.
    """
    is_stacked = count_gpus() > 0 if request.stack in ("auto", "probe") else bool(request.stack)
    is_asynchronous = "asha" in _names(stopper) and not is_stacked
    if sampler.is_adaptive or is_asynchronous:
        return max(_PER_WORKER * workers, 4)
    return None


def wrong_batch_sizes(request: Request) -> str | None:
    """What is wrong with them: of the four places to give one, one must be used."""
    given = [name for name in BATCH_SIZES if getattr(request, name) is not None]
    given += [f"space.{name}" for name in BATCH_SIZES if name in request.space]
    if len(given) == 1:
        return None
    return (
        "`batch_size` or `global_batch_size` must be given once, in the space or beside it, but "
        f"got {' and '.join(given) or 'neither'}."
    )


def is_stack_asked(request: Request) -> bool:
    """Whether trials are to be stacked, whether that pays or not."""
    return not request.folds and request.stack not in (False, "auto", "probe")


def _stack(request: Request, gang: int) -> Setting:
    if gang == 1:
        return request.stack
    if not is_stack_asked(request):
        return False
    raise UsageError(
        f"trials are trained in stacks or by several workers each, but got stack={request.stack} "
        f"with {gang} workers for a trial. Remove one of them."
    )


def _shards(request: Request, dataset: Dataset, metric: str) -> dict[str, int]:
    train, val = len(dataset.shards(Split.TRAIN)), len(dataset.shards(Split.VAL))
    folds = request.folds
    if folds:
        if folds < 2 or train % folds:
            raise UsageError(
                f"folds are cut by shard: their number must be at least 2 and divide the {train} "
                f"train shards, but got folds={folds}. Prepare the data with another number of "
                "shards, or take another number of folds."
            )
        held_out = train // folds
        return {"train_shards": train - held_out, "val_shards": held_out}
    if metric.startswith("val_") and not val:
        raise UsageError(
            f"metric {metric!r} needs a validation split, but {dataset.path} has none. Prepare it "
            "with validation= or val=, or rank by train_loss."
        )
    return {"train_shards": train, "val_shards": val}


def _constraints(constraints: Mapping[str, float]) -> dict[str, float]:
    for name, bound in constraints.items():
        if isinstance(bound, bool) or not isinstance(bound, int | float):
            raise UsageError(
                f"a constraint is the largest value that a metric may have, but got "
                f"{name}={show(bound)}."
            )
    return dict(constraints)


def _names(stopper: Mapping[str, Any]) -> list[str]:
    """The stopper's name, and those of its parts."""
    parts = stopper.get("stoppers", [])
    return [str(stopper.get("name")), *(name for part in parts for name in _names(part))]


def _check_checkpoints(spec: RunSpec) -> None:
    if spec.checkpoint is Checkpointing.OFF and spec.is_gated:
        what = f"stopper {spec.stopper.get('name')!r}" if spec.stopper else "a budget of epochs"
        raise UsageError(
            f"{what} lets trials wait at checkpoints, but got checkpoint='off'. Use 'epoch' or "
            "'visit'."
        )
