"""Samplers: what to try next. Asked for one trial at a time, told how it ended."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from cerebro.errors import MissingDependencyError, UsageError
from cerebro.search.decision import Outcome
from cerebro.search.domain import Choice, Domain, plain
from cerebro.search.seeding import check_num_trials, check_proposal, stream
from cerebro.search.sobol import SobolSampler
from cerebro.search.space import Space
from cerebro.search.warm import WarmSampler
from cerebro.search.wording import show, unknown
from cerebro.types import Json, Mode, Params


class Sampler(Protocol):
    """Proposes params. What it proposes depends on its arguments and on what it was told alone."""

    #: How many proposals there will be; None where it goes on as long as it is asked.
    num_trials: int | None
    #: Whether what it is told changes what it proposes.
    is_adaptive: bool

    def ask(self, number: int) -> Params | None:
        """The params of proposal `number` (0, 1, ...), or None when there are no more."""
        ...

    def tell(self, number: int, params: Params, outcome: Outcome) -> None:
        """How a proposal ended. One that waits (paused) may be told of, and again at its end.

        `params` may be others than it proposed: those of an earlier run, or given by a person, both
        under numbers below 0.
        """
        ...


class GridSampler:
    """Every combination of the listed values, the last parameter varying fastest.

    >>> from cerebro.search.space import parse_space
    >>> sampler = GridSampler(parse_space({"lr": [0.1, 0.01]}))
    >>> sampler.ask(1), sampler.ask(2)
    ({'lr': 0.01}, None)
    """

    is_adaptive = False

    def __init__(self, space: Space) -> None:
        self._space = space
        self._count = space.num_combinations()
        self.num_trials: int | None = self._count

    def ask(self, number: int) -> Params | None:
        check_proposal(number)
        return self._space.combination(number) if number < self._count else None

    def tell(self, number: int, params: Params, outcome: Outcome) -> None:
        """A grid learns nothing."""


class RandomSampler:
    """Independent draws. Trial n's value of a parameter depends on (seed, n, its name) alone.

    So adding a parameter leaves the others as they were, and no two parameters move together.

    >>> from cerebro.search.space import parse_space
    >>> space = parse_space({"width": [32, 64, 128]})
    >>> sampler = RandomSampler(space, seed=0, num_trials=20)
    >>> sampler.ask(7) == RandomSampler(space, seed=0, num_trials=20).ask(7)
    True
    """

    is_adaptive = False

    def __init__(self, space: Space, *, seed: int, num_trials: int) -> None:
        self.num_trials: int | None = check_num_trials(num_trials)
        self._space = space
        self._seed = seed

    def ask(self, number: int) -> Params | None:
        check_proposal(number)
        if self.num_trials is not None and number >= self.num_trials:
            return None
        return self._space.fill(_Draws(self._seed, number))

    def tell(self, number: int, params: Params, outcome: Outcome) -> None:
        """Random draws learn nothing."""


@dataclass(frozen=True, slots=True)
class _Draws:
    """The draws of one trial, each parameter's from a stream of its own."""

    seed: int
    number: int

    def value(self, path: str, domain: Domain) -> Json:
        return domain.sample(stream(self.seed, self.number, path))

    def index(self, path: str, choice: Choice) -> int:
        return stream(self.seed, self.number, path).randrange(len(choice.values))


class Request(NamedTuple):
    """What a sampler is made from."""

    #: A name, or an object of Optuna's.
    search: object
    space: Space
    seed: int
    num_trials: int | None
    modes: Sequence[str]
    options: Mapping[str, int]


class Kind(NamedTuple):
    """A search by name."""

    make: Callable[[Request], Sampler]
    #: The options it takes, each with the least number it may be.
    options: Mapping[str, int] = {}


def make_sampler(
    search: object,
    space: Space,
    *,
    seed: int = 0,
    num_trials: int | None = None,
    modes: Sequence[str] = (Mode.MAX,),
    warm_start: Sequence[Params] = (),
    known: Sequence[tuple[Params, Outcome]] = (),
) -> Sampler:
    """The sampler that a person asks for; UsageError where its arguments do not fit it.

    Args:
        search: A name; a name with options, `{"name": "tpe", "startup_trials": 20}`; or an object
            of `optuna.samplers`.
        space: What to choose from.
        seed: Decides every proposal, together with what the sampler is told.
        num_trials: How many proposals; for every search but a grid.
        modes: For each objective whether the larger ("max") or the smaller ("min") is better.
        warm_start: Params to try first; they count among `num_trials`.
        known: Params and outcomes of an earlier run, to learn from before the first proposal.

    >>> from cerebro.search.space import parse_space
    >>> make_sampler("grid", parse_space({"lr": [0.1]})).ask(0)
    {'lr': 0.1}
    """
    name, options = _read(search)
    made = Request(search if name is None else name, space, seed, num_trials, modes, options)
    sampler = _make_optuna(made) if name is None else SAMPLERS[name].make(made)
    if not warm_start and not known:
        return sampler
    if warm_start and name == "grid":
        raise UsageError(
            "a grid tries every combination in its order, but got warm_start with search='grid'. "
            "Remove it or use another search."
        )
    return WarmSampler(sampler, space, first=warm_start, known=known)


def describe_search(search: object) -> dict[str, Json]:
    """A search as JSON, to be kept with a run: its name and options, or its class and arguments.

    >>> describe_search("grid")
    {'name': 'grid'}
    """
    name, options = _read(search)
    if name is not None:
        return {"name": name, **options}
    kind = type(search)
    names = list(inspect.signature(kind.__init__).parameters)[1:]
    held = {key.lstrip("_"): value for key, value in vars(search).items()}
    arguments: dict[str, Json] = {key: _describe(held[key]) for key in names if key in held}
    return {"name": "optuna", "class": f"{kind.__module__}.{kind.__name__}", "arguments": arguments}


def _read(search: object) -> tuple[str | None, dict[str, int]]:
    """The name, None for an object of Optuna's, and the options."""
    if any(kind.__name__ == "BaseSampler" and _is_optuna(kind) for kind in type(search).__mro__):
        return None, {}
    given = dict(search) if isinstance(search, Mapping) else {"name": search}
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise UsageError(
            "`search` must be a name, a mapping with a name and options, or a sampler of "
            f"optuna.samplers, but got {show(search)}. Known names: {', '.join(SAMPLERS)}."
        )
    if name not in SAMPLERS:
        raise UsageError(unknown("search", name, SAMPLERS))
    options = {str(key): _check_option(name, str(key), value) for key, value in given.items()}
    return name, options


def _check_option(name: str, key: str, value: object) -> int:
    least = SAMPLERS[name].options
    if key not in least:
        raise UsageError(unknown(f"option of {name}", key, least))
    if type(value) is not int or value < least[key]:
        raise UsageError(
            f"`{key}` of search {name!r} must be an integer, at least {least[key]}, but got "
            f"{show(value)}."
        )
    return value


def _is_optuna(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "optuna"


def _describe(value: object) -> Json:
    try:
        return plain(value)
    except UsageError:
        # Not its repr, which may hold an address.
        return getattr(value, "__qualname__", type(value).__qualname__)


def _make_grid(made: Request) -> Sampler:
    if made.num_trials is not None:
        raise UsageError(
            f"num_trials belongs to random search: a grid tries every combination, but got "
            f"num_trials={made.num_trials} with search='grid'. Remove it or use search='random'."
        )
    return GridSampler(made.space)


def _make_random(made: Request) -> Sampler:
    return RandomSampler(made.space, seed=made.seed, num_trials=_needed(made))


def _make_sobol(made: Request) -> Sampler:
    return SobolSampler(made.space, seed=made.seed, num_trials=_needed(made))


def _make_optuna(made: Request) -> Sampler:
    num_trials = _needed(made)
    try:
        from cerebro.search.optuna_sampler import OptunaSampler
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise MissingDependencyError(
            f"search={made.search!r} needs Optuna. Install it with `pip install 'cerebro[optuna]'`."
        ) from error
    return OptunaSampler(
        made.space,
        made.search,  # type: ignore[arg-type]  # _read has looked at it
        seed=made.seed,
        num_trials=num_trials,
        modes=made.modes,
        options=made.options,
    )


def _needed(made: Request) -> int:
    if made.num_trials is None:
        name = made.search if isinstance(made.search, str) else type(made.search).__name__
        raise UsageError(f"search={name!r} needs num_trials: how many trials to draw.")
    return made.num_trials


#: Every search by its name, sorted.
SAMPLERS: Mapping[str, Kind] = {
    "grid": Kind(_make_grid),
    "nsga2": Kind(_make_optuna, {"population": 2}),
    "random": Kind(_make_random),
    "sobol": Kind(_make_sobol),
    "tpe": Kind(_make_optuna, {"candidates": 1, "startup_trials": 1}),
}
