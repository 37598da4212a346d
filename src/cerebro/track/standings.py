"""The leaderboard as people read it: one line a configuration, epochs counted from 1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from cerebro.track.ranking import Config, Criteria, Ranking, TrialRow, best_of, mean_of
from cerebro.track.text import clean, show, show_params, show_trials
from cerebro.types import Params, TrialStatus, trial_id

LEADERBOARD_ROWS = 20
#: With more params than this, constants are left out of tables.
MANY_PARAMS = 8


class Cells(NamedTuple):
    """A table; its first ``fixed`` columns say who is best by how much."""

    header: list[str]
    lines: list[list[str]]
    fixed: int


def leaderboard_cells(ranking: Ranking, limit: int = LEADERBOARD_ROWS) -> Cells:
    """Header and cells of a leaderboard, one column a param.

    >>> from cerebro.track.ranking import rank
    >>> from cerebro.types import Mode
    >>> rows = [TrialRow(trial=0, params={"lr": 0.1})]
    >>> leaderboard_cells(rank(rows, Criteria(metric="val_loss", mode=Mode.MIN)))
    ... # doctest: +NORMALIZE_WHITESPACE
    Cells(header=['rank', 'trial', 'val_loss', 'epoch', 'lr', 'status'],
          lines=[['', 't0000', '-', '-', '0.1', 'pending']], fixed=4)
    """
    criteria, shown = ranking.criteria, ranking.configs[:limit]
    is_repeated = criteria.repeats > 1
    others = [name for name, _ in criteria.others]
    names = shown_params([config.rows[0].params for config in ranking.configs])
    has_copies = any(row.parent is not None for config in shown for row in config.rows)
    header = ["rank", "trials" if is_repeated else "trial", clean(criteria.metric, 24)]
    header += [] if is_repeated else ["epoch"]
    fixed = len(header)
    header += [clean(name, 24) for name in others] + (["pareto"] if others else [])
    header += (["copy of"] if has_copies else []) + [clean(name, 24) for name in names]
    lines = []
    for config in shown:
        first = config.rows[0]
        line = ["" if config.rank is None else str(config.rank)]
        line += [show_trials([row.trial for row in config.rows]), show_value(config)]
        line += [] if is_repeated else [_epoch(first)]
        line += [show(mean_of(config.rows, name)) for name in others]
        line += (["*" if config.is_on_front else ""] if others else []) + (
            [show_origin(first)] if has_copies else []
        )
        line += [show(first.params[name]) if name in first.params else "" for name in names]
        lines.append([*line, show_config_status(config, criteria)])
    return Cells([*header, "status"], lines, fixed)


def shown_params(params: Sequence[Params]) -> list[str]:
    """Params that are worth a column: all, or of many those in which trials differ.

    >>> shown_params([{"lr": 0.1, "width": 8}, {"lr": 0.2, "width": 8}])
    ['lr', 'width']
    """
    names = list(dict.fromkeys(name for own in params for name in own))
    if len(names) <= MANY_PARAMS:
        return names
    return [name for name in names if len({repr(own.get(name)) for own in params}) > 1]


def format_leaderboard(ranking: Ranking, *, limit: int = LEADERBOARD_ROWS) -> str:
    """The leaderboard as aligned text.

    >>> from cerebro.track.ranking import rank
    >>> from cerebro.types import Mode
    >>> row = TrialRow(trial=3, params={"lr": 0.1}, metric=0.97, best_epoch=4)
    >>> print(format_leaderboard(rank([row], Criteria(metric="val_accuracy", mode=Mode.MAX))))
    rank  trial  val_accuracy  epoch  lr   status
    1     t0003  0.97          5      0.1  pending
    """
    header, cells, _ = leaderboard_cells(ranking, limit)
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [header, *cells]
    ]
    if len(ranking.configs) > limit:
        lines.append(f"… and {len(ranking.configs) - limit} more")
    return "\n".join(lines)


def show_value(config: Config) -> str:
    """The metric of a configuration, over its repeats where there are several.

    >>> rows = (TrialRow(trial=0, params={}), TrialRow(trial=1, params={}))
    >>> show_value(Config(rows=rows, rank=1, mean=0.97, std=0.0123, is_complete=True,
    ...                   is_feasible=True))
    '0.97 ± 0.012'
    """
    spread = "" if config.std is None else f" ± {config.std:.2g}"
    return show(config.mean) + spread


def show_status(status: TrialStatus, *, is_held: bool = False) -> str:
    """Where a trial stands, in words.

    >>> show_status(TrialStatus.OUT_OF_MEMORY), show_status(TrialStatus.PAUSED)
    ('out of memory', 'waiting')
    """
    if status is TrialStatus.PAUSED and not is_held:
        return "waiting"
    return status.value.replace("_", " ")


def show_config_status(config: Config, criteria: Criteria) -> str:
    """Where its trials stand, the first error, and the constraints that it breaks."""
    words = Counter(show_status(row.status, is_held=row.is_held) for row in config.rows)
    text = ", ".join(
        word if len(config.rows) == 1 or len(words) == 1 else f"{count} {word}"
        for word, count in words.items()
    )
    error = next((row.error for row in config.rows if row.error), None)
    text += f": {clean(error, 60)}" if error else ""
    if config.is_feasible or config.mean is None:
        return text
    broken = [
        f"{clean(name, 24)} {show(value)} > {show(bound)}"
        for name, bound in criteria.constraints.items()
        if (value := mean_of(config.rows, name)) is None or not value <= bound
    ]
    return f"{text}; {', '.join(broken)}" if broken else text


def show_counts(statuses: Counter[TrialStatus]) -> str:
    """How many trials stand where.

    >>> show_counts(Counter([TrialStatus.RUNNING, TrialStatus.PAUSED, TrialStatus.PAUSED]))
    '1 running, 2 waiting'
    """
    return ", ".join(
        f"{n} {show_status(status)}" for status in TrialStatus if (n := statuses[status])
    )


def show_origin(row: TrialRow) -> str:
    """What a trial is a copy of, in few characters.

    >>> show_origin(TrialRow(trial=9, params={}, parent=3, parent_epochs=4))
    't0003, epoch 4'
    """
    return "" if row.parent is None else f"{trial_id(row.parent)}, epoch {row.parent_epochs}"


def show_lineage(parent: int, epochs: int, visits: int, old: Params, new: Params) -> str:
    """What a trial is a copy of, how far that was, and which params changed.

    >>> show_lineage(3, 4, 0, {"lr": 0.1, "width": 8}, {"lr": 0.12, "width": 8})
    'a copy of t0003 after epoch 4, lr 0.1 -> 0.12'
    """
    when = f"after epoch {epochs}" if epochs else "before its first epoch was over"
    if visits:
        when += f" and {visits} visit{'s' if visits > 1 else ''}"
    changes = [
        f"{clean(name, 40)} {show(old.get(name))} -> {show(new.get(name))}"
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]
    return f"a copy of {trial_id(parent)} {when}, {', '.join(changes) or 'with the same params'}"


def show_best(rows: Sequence[TrialRow], criteria: Criteria) -> str:
    """The best of some trials, its value and params; empty where none has a rank.

    >>> from cerebro.types import Mode
    >>> row = TrialRow(trial=3, params={"lr": 0.1}, metric=0.97)
    >>> show_best([row], Criteria(metric="val_accuracy", mode=Mode.MAX))
    'best val_accuracy 0.97  t0003 [lr=0.1]'
    """
    best = best_of(rows, criteria.mode)
    if best is None:
        return ""
    value = f"{clean(criteria.metric, 24)} {show(best.metric)}"
    return f"best {value}  {trial_id(best.trial)} [{clean(show_params(best.params), 60)}]"


def _epoch(row: TrialRow) -> str:
    return "-" if row.best_epoch is None else str(row.best_epoch + 1)
