"""Who is best: trials, and the configurations that they repeat, in order."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cerebro.types import Json, Metrics, Mode, Params, TrialStatus, trial_id


@dataclass(slots=True, kw_only=True)
class TrialRow:
    """One trial. ``metric`` is its best value, reached with ``metrics`` in ``best_epoch``."""

    trial: int
    params: Params
    status: TrialStatus = TrialStatus.PENDING
    epochs: int = 0
    metric: float | None = None
    best_epoch: int | None = None
    metrics: Metrics = field(default_factory=dict)
    loss: float | None = None
    error: str | None = None
    #: which proposal of the search it repeats, and the how manieth time; None: a trial of its own
    proposal: int | None = None
    repeat: int = 0
    #: the trial it began as a copy of, and the epochs behind that state
    parent: int | None = None
    parent_epochs: int = 0
    #: a person lets it wait
    is_held: bool = False
    #: worker -> (phase, shard) of the visits in flight
    visits: dict[int, tuple[str, int]] = field(default_factory=dict)
    #: the trials of its last visit
    stack: tuple[int, ...] = ()
    #: visits answered, for the progress bar
    done: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """What trials are ranked by.

    ``others`` are further objectives, for the Pareto front alone. A configuration of the search is
    tried ``repeats`` times; with ``is_folded`` each holds out another part of the data.
    """

    metric: str
    mode: Mode
    others: tuple[tuple[str, Mode], ...] = ()
    #: metric -> the largest value it may have
    constraints: Mapping[str, float] = field(default_factory=dict)
    repeats: int = 1
    is_folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A configuration and where it stands; ``rows`` are its trials, by repeat.

    ``mean`` and ``std`` (of a sample) are over the best values of the trials that have one and did
    not fail; the configuration ``is_complete`` if that is all of them. It ``is_feasible`` where the
    means of its metrics keep the constraints.
    """

    rows: tuple[TrialRow, ...]
    rank: int | None
    mean: float | None
    std: float | None
    is_complete: bool
    is_feasible: bool
    is_on_front: bool = False


@dataclass(frozen=True, slots=True)
class Ranking:
    """Configurations from best to worst; see ``rank``."""

    criteria: Criteria
    configs: Sequence[Config]

    @property
    def rows(self) -> list[TrialRow]:
        """All trials in that order, those of a configuration by repeat."""
        return [row for config in self.configs for row in config.rows]

    @property
    def best(self) -> TrialRow | None:
        """The best trial of the best configuration."""
        return best_of(self.configs[0].rows, self.criteria.mode) if self.configs else None


def has_rank(row: TrialRow) -> bool:
    """Whether the trial takes part in the ranking: it has a value and did not fail.

    >>> has_rank(TrialRow(trial=0, params={}, metric=0.5, status=TrialStatus.DIVERGED))
    False
    """
    return row.metric is not None and not row.status.is_failure


def best_of(rows: Iterable[TrialRow], mode: Mode) -> TrialRow | None:
    """The best of some trials, of equal ones the first; None where none has a rank."""
    sign = _sign(mode)
    return min(
        (row for row in rows if has_rank(row)),
        key=lambda row: (sign * (row.metric or 0.0), row.trial),
        default=None,
    )


def mean_of(rows: Iterable[TrialRow], name: str) -> float | None:
    """The mean of a metric over the trials that have a rank; None where one lacks it."""
    counted = [row.metrics for row in rows if has_rank(row)]
    if not all(name in metrics for metrics in counted):
        return None
    return _mean([metrics[name] for metrics in counted])


def is_better(value: float, than: float | None, mode: Mode) -> bool:
    """Whether a value beats another; NaN and infinities never do.

    >>> is_better(0.9, 0.8, Mode.MAX), is_better(float("nan"), None, Mode.MIN)
    (True, False)
    """
    if not math.isfinite(value):
        return False
    if than is None:
        return True
    return value > than if mode == Mode.MAX else value < than


def rank(rows: Iterable[TrialRow], criteria: Criteria) -> Ranking:
    """Put trials in order, those of one configuration together.

    By the mean over its repeats, a configuration stands among those that are complete and keep the
    constraints; after them come those of which a repeat failed or is not there yet, then those that
    break a constraint, and last, without a rank and by number, those without a value.

    >>> rows = [TrialRow(trial=n, params={}, metric=n / 10, proposal=n // 2, repeat=n % 2)
    ...         for n in range(4)]
    >>> ranking = rank(rows, Criteria(metric="val_accuracy", mode=Mode.MAX, repeats=2))
    >>> [(config.rank, config.mean, [row.trial for row in config.rows])
    ...  for config in ranking.configs]
    [(1, 0.25, [2, 3]), (2, 0.05, [0, 1])]
    """
    groups = [_Group(members, criteria) for members in _grouped(rows, criteria)]
    groups.sort(key=lambda group: group.key)
    front = _front(groups, criteria) if criteria.others else set()
    configs = [
        group.config(place, group.rows[0].trial in front) for place, group in enumerate(groups, 1)
    ]
    return Ranking(criteria, configs)


class _Group:
    """The trials of a configuration, before its place is known."""

    def __init__(self, rows: Sequence[TrialRow], criteria: Criteria) -> None:
        self.rows = tuple(rows)
        self._counted = [row for row in rows if has_rank(row)]
        expected = criteria.repeats if rows[0].proposal is not None else 1
        self._is_complete = len(self._counted) >= expected
        self._is_feasible = not criteria.constraints or self._keeps(criteria.constraints)
        values = [row.metric for row in self._counted if row.metric is not None]
        self._mean = _mean(values)
        self._std = statistics.stdev(values) if len(values) > 1 else None
        first = rows[0].trial
        if self._mean is None:
            self.key = (3, 0.0, first)
        else:
            kind = 2 if not self._is_feasible else 0 if self._is_complete else 1
            self.key = (kind, _sign(criteria.mode) * self._mean, first)

    @property
    def is_eligible(self) -> bool:
        """Whether it may lie on the front."""
        return self.key[0] < 2

    def config(self, place: int, is_on_front: bool) -> Config:
        return Config(
            rows=self.rows,
            rank=None if self._mean is None else place,
            mean=self._mean,
            std=self._std,
            is_complete=self._is_complete,
            is_feasible=self._is_feasible,
            is_on_front=is_on_front,
        )

    def _keeps(self, constraints: Mapping[str, float]) -> bool:
        means = ((mean_of(self._counted, name), bound) for name, bound in constraints.items())
        return all(mean is not None and mean <= bound for mean, bound in means)


def _grouped(rows: Iterable[TrialRow], criteria: Criteria) -> Iterable[list[TrialRow]]:
    if criteria.repeats <= 1:
        return ([row] for row in rows)
    groups: dict[tuple[bool, int], list[TrialRow]] = {}
    for row in rows:
        own = row.proposal is None
        groups.setdefault((own, row.trial if row.proposal is None else row.proposal), []).append(
            row
        )
    return (sorted(group, key=lambda row: (row.repeat, row.trial)) for group in groups.values())


def _front(groups: Iterable[_Group], criteria: Criteria) -> set[int]:
    """First trials of the configurations that no other is better than in all objectives."""
    objectives = [(criteria.metric, criteria.mode), *criteria.others]
    points: list[tuple[tuple[float, ...], int]] = []
    for group in groups:
        means = [mean_of(group.rows, name) for name, _ in objectives]
        point = tuple(
            _sign(mode) * mean
            for (_, mode), mean in zip(objectives, means, strict=True)
            if mean is not None and math.isfinite(mean)
        )
        if group.is_eligible and len(point) == len(objectives):
            points.append((point, group.rows[0].trial))
    front: list[tuple[tuple[float, ...], int]] = []
    # In this order nobody is dominated by one who comes later.
    for point, trial in sorted(points):
        if not any(_dominates(other, point) for other, _ in front):
            front.append((point, trial))
    return {trial for _, trial in front}


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _sign(mode: Mode) -> float:
    return -1.0 if mode == Mode.MAX else 1.0


def leaderboard(ranking: Ranking) -> list[dict[str, Json]]:
    """What leaderboard.csv and `Result.leaderboard` say, one row a trial.

    >>> row = TrialRow(trial=0, params={"lr": 0.1}, metric=0.5, metrics={"val_loss": 0.5})
    >>> leaderboard(rank([row], Criteria(metric="val_loss", mode=Mode.MIN)))
    ... # doctest: +NORMALIZE_WHITESPACE
    [{'rank': 1, 'trial': 't0000', 'status': 'pending', 'val_loss': 0.5, 'epoch': None,
      'epochs': 0, 'params.lr': 0.1, 'error': None}]
    """
    has_copies = any(row.parent is not None for row in ranking.rows)
    return [
        {
            "rank": config.rank if has_rank(row) else None,
            "trial": trial_id(row.trial),
            **_repetition(config, row, ranking.criteria),
            "status": str(row.status),
            **row.metrics,
            "epoch": row.best_epoch,
            "epochs": row.epochs,
            **_marks(config, ranking.criteria),
            **(_lineage(row) if has_copies else {}),
            **{f"params.{name}": value for name, value in row.params.items()},
            "error": row.error,
        }
        for config in ranking.configs
        for row in config.rows
    ]


def _repetition(config: Config, row: TrialRow, criteria: Criteria) -> dict[str, Json]:
    if criteria.repeats <= 1:
        return {}
    first = trial_id(config.rows[0].trial)
    return {"config": first, "repeat": row.repeat, "mean": config.mean, "std": config.std}


def _marks(config: Config, criteria: Criteria) -> dict[str, Json]:
    marks: dict[str, Json] = {"feasible": config.is_feasible} if criteria.constraints else {}
    return {**marks, "pareto": config.is_on_front} if criteria.others else marks


def _lineage(row: TrialRow) -> dict[str, Json]:
    if row.parent is None:
        return {"parent": None, "parent_epochs": None}
    return {"parent": trial_id(row.parent), "parent_epochs": row.parent_epochs}
