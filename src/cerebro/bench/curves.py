"""Charts of convergence: each overlays what is compared, and says what that is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cerebro.bench.cases import Case, families, without_twins
from cerebro.bench.chart import LineChart, Series
from cerebro.bench.sweep import Rule, Setting

#: More lines than this are not told apart.
MOST_LINES = 8
#: Less of an accuracy is not drawn over a whole axis: it would look like a difference.
_ACCURACY_SPAN = 0.05


@dataclass(frozen=True, slots=True)
class _Group:
    """Cases whose curves are in one chart; the first is in each where it takes several."""

    name: str
    title: str
    cases: Sequence[Case]
    label: Callable[[Setting], str]

    def split(self) -> list[_Group]:
        if len(self.cases) <= MOST_LINES:
            return [self]
        base, *others = self.cases
        size = MOST_LINES - 1
        parts = [others[start : start + size] for start in range(0, len(others), size)]
        return [
            _Group(
                "-".join(filter(None, [self.name, str(number)])),
                ", ".join(filter(None, [self.title, f"{number} of {len(parts)}"])),
                [base, *part],
                self.label,
            )
            for number, part in enumerate(parts, 1)
        ]


def convergence(cases: Sequence[Case]) -> list[LineChart]:
    """Against rows and against time: nodes at each batch, then batches, then other keys.

    States that are saved do not change a curve: of such twins the one without is shown.
    """
    alone = without_twins([case for case in cases if case.shown.curve])
    groups = [*_by_nodes(alone), *_by_batch(alone), *_by_change(alone)]
    drawn = {case.setting for group in groups for case in group.cases}
    left = [case for case in alone if case.setting not in drawn]
    if left:
        groups.append(_Group("", "", left, lambda setting: setting.label))
    return [chart for group in groups for part in group.split() for chart in _pair(part)]


def _by_nodes(cases: Sequence[Case]) -> Iterator[_Group]:
    for family in families(cases):
        last = family[-1].setting
        title = [*_batch(last), *last.changed] or ["nodes and processes"]
        yield _Group(_name(last, with_batch=True), ", ".join(title), family, _where)


def _by_batch(cases: Sequence[Case]) -> Iterator[_Group]:
    """On the fewest nodes and processes."""
    for group in _smallest(cases, lambda s: (s.changes, s.rule)):
        if len({case.setting.batch for case in group}) > 1:
            first = group[0].setting
            title = ", ".join(["batch sizes", first.where, *first.changed])
            name = "-".join(["batches", _name(first, with_batch=False)]).strip("-")
            found = sorted(group, key=lambda case: case.setting.batch or 0)
            yield _Group(name, title, found, lambda s: _batch(s)[0] if _batch(s) else s.label)


def _by_change(cases: Sequence[Case]) -> Iterator[_Group]:
    """On the fewest nodes and processes, at each batch."""
    for group in _smallest(cases, lambda s: (s.batch, s.rule)):
        if len({case.setting.changes for case in group}) > 1:
            first = group[0].setting
            keys = ", ".join(key for key, _ in first.changes)
            title = ", ".join([keys, first.where, *_batch(first)])
            name = "changes" if first.batch is None else f"changes-b{first.batch}-{first.rule}"
            yield _Group(name, title, group, lambda s: ", ".join(s.changed))


def _smallest(
    cases: Sequence[Case], key: Callable[[Setting], tuple[object, ...]]
) -> list[list[Case]]:
    """Cases of the fewest nodes and processes that are alike in a key."""
    fewest = min(((c.setting.ranks, c.setting.nodes) for c in cases), default=None)
    groups: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        if (case.setting.ranks, case.setting.nodes) == fewest:
            groups.setdefault(key(case.setting), []).append(case)
    return list(groups.values())


def _where(setting: Setting) -> str:
    return setting.where


def _batch(setting: Setting) -> list[str]:
    if setting.batch is None:
        return []
    if setting.ranks == 1:
        return [f"batch {setting.batch}"]
    rule = "in all" if setting.rule is Rule.GLOBAL else "for each process"
    return [f"batch {setting.batch} {rule}"]


def _name(setting: Setting, *, with_batch: bool) -> str:
    """What the cases of a chart have in common, as a part of a file's name."""
    bare = Setting(changes=setting.changes).key.split("-")[2:-1]
    batch = [f"b{setting.batch}", str(setting.rule)] if with_batch and setting.batch else []
    return "-".join([*batch, *bare])


def _pair(group: _Group) -> Iterator[LineChart]:
    metric = group.cases[0].shown.metric
    is_accuracy = group.cases[0].shown.is_accuracy
    said = f": {group.title}" if group.title else ""
    for name, what, label in (
        ("rows", "rows seen", "rows seen"),
        ("time", "time", "seconds since the first visit"),
    ):
        series = tuple(
            Series(
                group.label(case.setting),
                tuple(p.seconds if name == "time" else float(p.samples) for p in case.shown.curve),
                tuple(p.value for p in case.shown.curve),
            )
            for case in group.cases
        )
        yield LineChart(
            name="-".join(filter(None, ["convergence", name, group.name])),
            title=f"{metric} against {what}{said}",
            x_label=label,
            y_label=metric,
            series=series,
            from_zero=False,
            min_span=_ACCURACY_SPAN if is_accuracy else 0.0,
        )
