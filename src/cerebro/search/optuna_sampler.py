"""Optuna's samplers behind our seam: asked for one trial at a time, told how it ended."""

from __future__ import annotations

import contextlib
import copy
import math
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import optuna
from optuna.samplers import BaseSampler, NSGAIISampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from cerebro.errors import UsageError
from cerebro.search.decision import Outcome
from cerebro.search.domain import Choice, same
from cerebro.search.optuna_space import Suggestions, encode
from cerebro.search.seeding import check_num_trials, check_proposal, stream
from cerebro.search.space import Space
from cerebro.search.wording import show, unknown
from cerebro.types import Json, Mode, Params

#: The samplers that have a name here.
NAMES = ("nsga2", "tpe")

_DIRECTIONS = {Mode.MAX: StudyDirection.MAXIMIZE, Mode.MIN: StudyDirection.MINIMIZE}
# Where Optuna's samplers look for the violations of a trial.
_CONSTRAINTS = "constraints"


class OptunaSampler:
    """Proposals of an Optuna sampler: "tpe", "nsga2", or any `optuna.samplers.BaseSampler`.

    The same asks and tells in the same order give the same proposals, in any process: before each
    proposal all randomness is seeded anew from (seed, number). For an object of your own that holds
    as far as its randomness comes from NumPy generators that it keeps; it is copied, not changed.

    What counts: a trial that finished or was stopped, with its values; one that waits, as pruned,
    until it is told again. Optuna's samplers pass over trials that failed, and would propose more
    like them: so one that failed (diverged, out of memory, …) counts with the worst values that
    were told by then, and breaks all constraints; before the first value, from then on. Params
    outside the space are passed over.

    >>> from cerebro.search.space import parse_space
    >>> sampler = OptunaSampler(parse_space({"lr": [0.1, 0.01]}), seed=0, num_trials=1)
    >>> sampler.ask(0)["lr"] in (0.1, 0.01), sampler.ask(1)
    (True, None)
    """

    is_adaptive = True

    def __init__(
        self,
        space: Space,
        sampler: str | BaseSampler = "tpe",
        *,
        seed: int,
        num_trials: int | None = None,
        modes: Sequence[str] = (Mode.MAX,),
        options: Mapping[str, int] | None = None,
    ) -> None:
        if isinstance(sampler, str) and sampler not in NAMES:
            raise UsageError(unknown("sampler", sampler, NAMES))
        self.num_trials = None if num_trials is None else check_num_trials(num_trials)
        self._space = space
        self._seed = seed
        self._sampler = copy.deepcopy(sampler)
        self._options = dict(options or {})
        self._directions = [_DIRECTIONS[Mode(mode)] for mode in modes]
        self._is_exhausted = False
        #: What was proposed or told last under each number, and its place in the study.
        self._params: dict[int, Params] = {}
        self._places: dict[int, int] = {}
        #: Numbers that were proposed, and of which nothing was told yet.
        self._running: set[int] = set()
        #: Trials to put into the study in place of others: Optuna's do not change once they end.
        self._replaced: dict[int, FrozenTrial] = {}
        #: The worst values told so far; failed trials that wait for a value to be worse than.
        self._worst: tuple[float, ...] | None = None
        self._failed: dict[int, tuple[Params, Outcome]] = {}
        with _quiet():
            self._study = self._make_study()

    def ask(self, number: int) -> Params | None:
        """The params of a proposal; asked again, the same. None also where all were tried."""
        check_proposal(number)
        if self.num_trials is not None and number >= self.num_trials:
            return None
        if number not in self._params:
            if self._is_exhausted:
                return None
            self._params[number] = self._propose(number)
            self._places[number] = len(self._places)
            self._running.add(number)
        return copy.deepcopy(self._params[number])

    def tell(self, number: int, params: Params, outcome: Outcome) -> None:
        self._failed.pop(number, None)
        if outcome.status.is_failure:
            self._failed[number] = (copy.deepcopy(params), outcome)
            outcome = outcome._replace(values=self._worst)
        self._tell(number, params, outcome)
        if not outcome.status.is_failure and outcome.values is not None:
            self._compare(outcome.values)
        if self._worst is not None:
            waiting, self._failed = self._failed, {}
            for failed, (given, told) in waiting.items():
                if failed != number:
                    self._tell(failed, given, told._replace(values=self._worst))

    def _compare(self, values: tuple[float, ...]) -> None:
        if all(map(math.isfinite, values)):
            pairs = zip(self._directions, values, self._worst or values, strict=True)
            self._worst = tuple(
                [max(pair) if way is StudyDirection.MINIMIZE else min(pair) for way, *pair in pairs]
            )

    def _tell(self, number: int, params: Params, outcome: Outcome) -> None:
        state = self._state_of(outcome)
        is_new = number not in self._places
        if not self._space.has(params):
            if is_new:
                return
            params, state = self._params[number], TrialState.FAIL
        is_expected = number in self._running and same(dict(params), dict(self._params[number]))
        if is_expected and state is TrialState.RUNNING:
            return
        with _quiet():
            if is_new:
                self._study.add_trial(self._freeze(params, outcome, state))
                self._places[number] = len(self._places)
            elif is_expected and state is not TrialState.PRUNED:
                self._finish(number, outcome, state)
            else:
                self._replaced[self._places[number]] = self._freeze(params, outcome, state)
        self._running.discard(number)
        self._params[number] = copy.deepcopy(params)

    def _propose(self, number: int) -> dict[str, Json]:
        with _quiet():
            self._rebuild()
            self._study.sampler = self._sampler_for(number)
            try:
                return self._space.fill(Suggestions(self._study.ask()))
            except Exception as error:
                raise UsageError(
                    f"the Optuna sampler {type(self._study.sampler).__name__} must propose params "
                    f"for this space, but failed at proposal {number}: {error}"
                ) from error

    def _sampler_for(self, number: int) -> BaseSampler:
        rng = stream(self._seed, number, "optuna")
        if not isinstance(self._sampler, str):
            reseed(self._sampler, rng)
            return self._sampler
        seed = rng.getrandbits(32)
        # Up to version 4 a sampler looks at violations only where it is given a function.
        is_old = int(optuna.__version__.split(".")[0]) < 5
        look = _violations if is_old else None
        if self._sampler == "nsga2":
            size = self._options.get("population", 50)
            return NSGAIISampler(seed=seed, population_size=size, constraints_func=look)
        return TPESampler(
            seed=seed,
            n_startup_trials=self._options.get("startup_trials", 10),
            n_ei_candidates=self._options.get("candidates", 24),
            multivariate=True,
            group=any(isinstance(d, Choice) and d.is_nested for d in self._space.values()),
            constant_liar=True,
            constraints_func=look,
        )

    def _state_of(self, outcome: Outcome) -> TrialState:
        if outcome.values is None:
            return TrialState.RUNNING if _waits(outcome) else TrialState.FAIL
        if len(outcome.values) != len(self._directions):
            raise UsageError(
                f"a trial must be told with {len(self._directions)} values, one for each "
                f"objective, but got {show(outcome.values)}."
            )
        if not all(map(math.isfinite, outcome.values)):
            return TrialState.FAIL
        if not _waits(outcome):
            return TrialState.COMPLETE
        # Optuna ranks a pruned trial by its last value, of which there is one.
        return TrialState.PRUNED if len(outcome.values) == 1 else TrialState.RUNNING

    def _finish(self, number: int, outcome: Outcome, state: TrialState) -> None:
        study, place = self._study, self._places[number]
        trial = study._storage.get_trial_id_from_study_id_trial_number(study._study_id, place)
        study._storage.set_trial_system_attr(trial, _CONSTRAINTS, _violations_of(outcome))
        study.tell(place, outcome.values if state is TrialState.COMPLETE else None, state)

    def _freeze(self, params: Params, outcome: Outcome, state: TrialState) -> FrozenTrial:
        values, distributions = encode(self._space, params)
        known = outcome.values if state in (TrialState.COMPLETE, TrialState.PRUNED) else None
        return optuna.trial.create_trial(
            state=state,
            params=values,
            distributions=distributions,
            values=known,
            intermediate_values={1: known[0]} if known and state is TrialState.PRUNED else None,
            system_attrs={_CONSTRAINTS: _violations_of(outcome)},
        )

    def _rebuild(self) -> None:
        """A study like the last one, with the trials that were told of again."""
        if not self._replaced:
            return
        old = self._study
        self._study = self._make_study()
        storage, number = self._study._storage, self._study._study_id
        for key, value in old._storage.get_study_system_attrs(old._study_id).items():
            storage.set_study_system_attr(number, key, value)
        for trial in old.get_trials(deepcopy=False):
            new = self._replaced.get(trial.number)
            if new is not None:
                new.system_attrs = {**trial.system_attrs, **new.system_attrs}
            self._study.add_trial(new or trial)
        self._replaced = {}

    def _make_study(self) -> optuna.Study:
        study = optuna.create_study(directions=self._directions)
        # A sampler that has tried everything stops its study.
        study.stop = self._end  # type: ignore[method-assign]
        return study

    def _end(self) -> None:
        self._is_exhausted = True


def reseed(sampler: BaseSampler, rng: random.Random) -> None:
    """Seed every NumPy generator that a sampler and the samplers inside it keep."""
    seen: set[int] = set()

    def visit(part: object) -> None:
        if id(part) in seen:
            return
        seen.add(id(part))
        if isinstance(part, np.random.RandomState):
            part.seed(rng.getrandbits(32))
        elif isinstance(part, np.random.Generator):
            kind = type(part.bit_generator)
            part.bit_generator.state = kind(rng.getrandbits(32)).state
        elif isinstance(part, BaseSampler) or type(part).__module__.startswith("optuna.samplers"):
            visit(getattr(part, "rng", None))  # some are made when they are first looked at
            for inner in getattr(part, "__dict__", {}).values():
                visit(inner)

    visit(sampler)


def _waits(outcome: Outcome) -> bool:
    return not outcome.status.is_final


def _violations_of(outcome: Outcome) -> list[float]:
    return [math.inf if math.isnan(far) else float(far) for far in outcome.violations]


def _violations(trial: FrozenTrial) -> Sequence[float]:
    found: Sequence[float] = trial.system_attrs.get(_CONSTRAINTS, ())
    return found


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without Optuna's lines on standard error and its warnings about experimental arguments."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(before)
