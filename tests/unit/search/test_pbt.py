"""Population-based training: who is replaced by whom, and how params change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.errors import UsageError
from cerebro.search.decision import Clone, Decision, Promote, Report
from cerebro.search.mutation import Mutation
from cerebro.search.pbt import Pbt
from cerebro.search.space import parse_space
from cerebro.types import Json, Mode, TrialStatus

SPACE = parse_space(
    {
        "lr": {"loguniform": [1e-4, 1e-1]},
        "dropout": {"uniform": [0, 0.5]},
        "heads": {"randint": [1, 8]},
        "width": {"quniform": [16, 256, 16]},
        "act": ["relu", "gelu", "tanh"],
        "layers": 3,
    }
)
PARAMS: dict[str, Json] = {
    **{"lr": 1e-2, "dropout": 0.1, "heads": 4, "width": 64, "act": "gelu", "layers": 3}
}


def population(count: int, **arguments: object) -> Pbt:
    context = {"metric": "acc", "mode": Mode.MAX, "epochs": 10, "space": SPACE, "seed": 0}
    stopper = Pbt(**{**context, **arguments})  # type: ignore[arg-type]
    for trial in range(count):
        stopper.added(trial, {**PARAMS, "layers": 3}, 0)
    return stopper


def report(stopper: Pbt, trial: int, epochs: int, value: float) -> list[Decision]:
    return stopper.evaluated(Report(trial, epochs, 4 * epochs, {"acc": value}))


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 2, 0, 3, 1)])
def test_at_a_boundary_the_worst_quarter_makes_way_for_the_best(order: tuple[int, ...]) -> None:
    stopper = population(5, interval=2)
    # Of five, ceil(5 / 4) = 2 are the worst, and 2 the best.
    values = {0: 0.5, 1: 0.6, 2: 0.4, 3: 0.55, 4: 0.7}
    decisions: list[Decision] = []
    for trial in order:
        assert decisions == []
        assert report(stopper, trial, 1, 0.1) == []
        decisions = report(stopper, trial, 2, values[trial])
    kinds = [(type(decision), decision.trial) for decision in decisions]  # type: ignore[union-attr]
    assert kinds == [(Clone, 0), (Promote, 1), (Clone, 2), (Promote, 3), (Promote, 4)]
    clones = [decision for decision in decisions if isinstance(decision, Clone)]
    assert all(clone.source in (1, 4) for clone in clones)
    assert clones[1].reason.startswith("acc 0.4 after epoch 2 is among the worst of 5")


def test_those_at_a_boundary_wait_for_those_behind_them_and_not_for_who_has_ended() -> None:
    stopper = population(3)
    assert report(stopper, 0, 1, 0.5) == []
    assert stopper.ended(2, TrialStatus.FAILED) == []
    assert len(report(stopper, 1, 1, 0.6)) == 2


def test_who_is_paused_by_people_is_not_waited_for_once_nothing_else_happens() -> None:
    stopper = population(2)
    assert report(stopper, 0, 1, 0.5) == []
    assert stopper.exhausted() == [Promote(0, 2)]


def test_a_copy_goes_on_to_the_next_boundary() -> None:
    stopper = population(0, interval=3)
    assert [stopper.added(n, PARAMS, epochs) for n, epochs in enumerate((0, 2, 3, 8, 9))] == [
        *(3, 3, 6, 9, 10)
    ]


def test_the_last_interval_ends_with_the_run() -> None:
    stopper = population(1, interval=3)
    assert report(stopper, 0, 9, 0.5) == [Promote(0, 10)]
    assert report(stopper, 0, 10, 0.5) == []


def test_nobody_is_replaced_by_an_equal() -> None:
    stopper = population(2)
    told = [report(stopper, trial, 1, 0.5) for trial in range(2)]
    assert told == [[], [Promote(0, 2), Promote(1, 2)]]


def test_nobody_goes_on_from_a_trial_that_ended_or_is_through() -> None:
    stopper = population(3)
    report(stopper, 0, 1, 0.9)
    stopper.ended(0, TrialStatus.FAILED)
    report(stopper, 1, 10, 0.9)
    assert report(stopper, 2, 1, 0.1) == [Promote(2, 2)]


def test_copies_depend_on_seed_trial_and_epochs_alone() -> None:
    def clone(seed: int) -> Decision:
        stopper = population(2, seed=seed)
        report(stopper, 0, 1, 0.9)
        return report(stopper, 1, 1, 0.1)[1]

    assert clone(0) == clone(0)
    assert clone(0) != clone(1)


def test_only_ranges_of_numbers_change_unless_others_are_named() -> None:
    assert Mutation(SPACE, None, (0.8, 1.2), 0.25).names == ("lr", "dropout", "heads", "width")
    changed = Mutation(SPACE, ["act"], (2.0,), 0.0).apply(PARAMS, seed=0, trial=0, epochs=1)
    assert changed == {**PARAMS, "act": "tanh"}


@pytest.mark.parametrize(
    ("name", "value", "factor", "expected"),
    [
        ("dropout", 0.1, 2.0, 0.2),
        ("dropout", 0.4, 2.0, 0.5),
        ("lr", 1e-4, 0.5, 1e-4),
        ("heads", 4, 1.2, 5),
        ("heads", 1, 1.2, 2),  # 1.2 rounds to itself: the next one
        ("heads", 2, 0.8, 1),
        ("heads", 8, 1.2, 8),
        ("width", 64, 1.5, 96),
        ("width", 16, 0.8, 16),
        ("width", 256, 1.2, 256),
        ("act", "relu", 0.8, "relu"),
        ("act", "relu", 1.2, "gelu"),
        ("act", "tanh", 1.2, "tanh"),
    ],
)
def test_a_value_moves_by_the_factor_and_stays_inside(
    name: str, value: Json, factor: float, expected: Json
) -> None:
    changed = Mutation(SPACE, [name], (factor,), 0.0).apply(
        {**PARAMS, name: value}, seed=0, trial=0, epochs=1
    )[name]
    assert changed == expected
    assert type(changed) is type(value)


@given(st.integers(0, 2**32), st.floats(0.1, 10), st.floats(0, 1))
def test_params_never_leave_the_space(seed: int, factor: float, resample: float) -> None:
    names = [name for name in SPACE if name != "layers"]
    changed = Mutation(SPACE, names, (factor,), resample).apply(
        PARAMS, seed=seed, trial=0, epochs=1
    )
    assert list(changed) == list(PARAMS)
    assert all(SPACE[name].has(value) for name, value in changed.items())


def test_a_value_from_outside_is_drawn_anew() -> None:
    changed = Mutation(SPACE, ["heads"], (1.2,), 0.0).apply(
        {**PARAMS, "heads": "many"}, seed=0, trial=0, epochs=1
    )
    assert SPACE["heads"].has(changed["heads"])


@pytest.mark.parametrize("domain", [3, [{"kind": "a", "x": {"uniform": [0, 1]}}, {"kind": "b"}]])
def test_what_shapes_the_trial_cannot_change(domain: object) -> None:
    with pytest.raises(UsageError, match="must be a range of numbers or a choice of values"):
        Mutation(parse_space({"model": domain}), ["model"], (1.2,), 0.0)


def test_a_space_without_ranges_needs_names() -> None:
    with pytest.raises(UsageError, match="Name some in `mutate`"):
        Mutation(parse_space({"act": ["relu", "gelu"]}), None, (1.2,), 0.0)
