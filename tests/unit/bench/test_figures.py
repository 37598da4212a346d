"""Which charts are drawn, and what is in them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cerebro.bench.cases import gather
from cerebro.bench.chart import Frame, LineChart, lay_out
from cerebro.bench.figures import draw
from cerebro.bench.measurement import Measurement, NodeUse, Point
from cerebro.bench.sweep import Setting
from tests.unit.bench.made import measured


def bars(*runs: Measurement) -> dict[str, float]:
    split = draw(gather(runs)).split
    assert split is not None
    return {label: sum(lengths) for label, lengths in split.bars}


def test_bars_are_as_long_as_the_training_whatever_a_step_has() -> None:
    small = measured(Setting(batch=32), 10.0, steps=1000)
    large = measured(Setting(batch=256), 5.0, steps=125)
    assert bars(small, large) == pytest.approx({"1 node, batch 32": 10, "1 node, batch 256": 5})


def test_of_several_workers_bars_are_as_long_as_the_training() -> None:
    run = measured(Setting(), 10.0)
    both = replace(run, parts={part: 2 * seconds for part, seconds in run.parts.items()})
    assert bars(both) == pytest.approx({"1 node": 10})


def usage(epochs: int) -> LineChart:
    """The processors of a run with so many epochs of a second each, which began at second 3."""
    run = measured(Setting())
    cpu = {"cpu/tree": ((0.0, epochs + 5.0), (50.0, 60.0))}
    curve = tuple(Point(n, n + 1.0, 64 * n, 0.5) for n in range(epochs))
    node = NodeUse("node 0", cpu, (3.0, epochs + 3.0))
    ((_, (chart,)),) = draw(gather([replace(run, curve=curve, nodes=(node,))])).usage
    return chart


def test_ends_of_epochs_are_marked_where_processors_and_memory_are_shown() -> None:
    chart = usage(3)
    assert chart.marks == ((3.0, "first visit"), (4.0, "end of epoch 1"), (6.0, "last visit"))
    assert chart.faint == (5.0, 6.0)


def test_of_many_epochs_ends_are_marked_that_are_as_far_apart() -> None:
    chart = usage(120)
    assert chart.marks[1] == (6.0, "end of epoch 3")
    assert chart.faint == tuple(range(9, 124, 3))


def test_a_run_that_is_not_timed_has_no_marks() -> None:
    run = measured(Setting())
    ((_, charts),) = draw(gather([run])).usage
    assert {(chart.marks, chart.faint) for chart in charts} == {((), ())}


@pytest.mark.parametrize(
    ("metric", "least", "most"), [("val_accuracy", 0.05, 0.1), ("val_auc", 0.0, 0.01)]
)
def test_an_accuracy_that_hardly_moves_fills_no_axis(
    metric: str, least: float, most: float
) -> None:
    run = measured(Setting(), best=0.0986, rise=(0.972, 1.0, 0.98), metric=metric)
    for chart in draw(gather([run])).convergence:
        axis = lay_out(chart, Frame()).y
        assert least <= axis.high - axis.low <= most
        assert axis.low <= 0.0958 < 0.0986 <= axis.high


@pytest.mark.parametrize(("best", "low", "high"), [(0.999, 0.95, 1.0), (0.001, 0.0, 0.05)])
def test_the_axis_of_an_accuracy_ends_where_accuracies_end(
    best: float, low: float, high: float
) -> None:
    run = measured(Setting(), best=best, rise=(1.0, 1.0, 1.0))
    for chart in draw(gather([run])).convergence:
        axis = lay_out(chart, Frame()).y
        assert (axis.low, axis.high) == pytest.approx((low, high))
