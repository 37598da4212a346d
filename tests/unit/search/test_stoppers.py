"""Every stopper keeps the contract; by name, and several at once."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from cerebro.errors import UsageError
from cerebro.search.asha import Asha
from cerebro.search.decision import Promote, Report, Stop
from cerebro.search.patience import Patience
from cerebro.search.space import parse_space
from cerebro.search.stopper import Endless, Stopper
from cerebro.search.stoppers import STOPPERS, Stoppers, make_goal, make_stopper
from cerebro.testing.stopper_contract import StopperContract
from cerebro.types import Json, Mode

SPACE = parse_space({"lr": {"uniform": [0, 1]}})


def make(value: object, **changes: object) -> Stopper:
    context = {"metric": "val_loss", "mode": "min", "epochs": 9, "num_trials": 12, "seed": 3}
    given: dict[str, Any] = {"space": SPACE, **context, **changes}
    return make_stopper(value, **given)


class NamedContract(StopperContract):
    value: ClassVar[object] = None

    def make(self) -> Stopper:
        return make(self.value)

    def remake(self, description: dict[str, Json]) -> Stopper:
        return make(description)


class TestNone(NamedContract):
    pass


class TestAsha(NamedContract):
    value: ClassVar[object] = "asha"


class TestAshaWithBrackets(NamedContract):
    value: ClassVar[object] = {"name": "asha", "eta": 2, "grace": 2, "brackets": 2}


class TestAshaThatStops(NamedContract):
    value: ClassVar[object] = {"name": "asha", "kind": "stop", "eta": 2}


class TestHalving(NamedContract):
    value: ClassVar[object] = {"name": "halving", "eta": 2}


class TestHyperband(NamedContract):
    value: ClassVar[object] = "hyperband"


class TestMedian(NamedContract):
    value: ClassVar[object] = {"name": "median", "min_trials": 2, "grace": 2}


class TestPatience(NamedContract):
    value: ClassVar[object] = {"name": "patience", "patience": 2, "min_delta": 0.01}


class TestPbt(NamedContract):
    value: ClassVar[object] = {"name": "pbt", "interval": 2}


class TestGoal(NamedContract):
    value: ClassVar[object] = {"name": "goal", "target": 0.02, "max_epochs": 60}


class TestSeveral(NamedContract):
    value: ClassVar[object] = (
        {"name": "asha", "eta": 2},
        {"name": "halving", "grace": 3},
        "patience",
        {"name": "goal", "target": 0.01},
    )


@pytest.mark.parametrize("name", STOPPERS)
def test_every_name_makes_a_stopper_of_that_name(name: str) -> None:
    value: object = {"name": name, "target": 0.5} if name == "goal" else name
    assert make(value).describe()["name"] == name


def test_names_are_sorted() -> None:
    assert list(STOPPERS) == sorted(STOPPERS)


def test_an_object_is_taken_as_it_is() -> None:
    stopper = Endless()
    assert make(stopper) is stopper


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("ahsa", "unknown stopper 'ahsa'.*Did you mean 'asha'"),
        ({"eta": 3}, "needs a name, one of asha, .*pbt and all.*but got {'eta': 3}"),
        ([{"name": None}], "needs a name, one of asha"),
        ({"name": "asha", "etta": 3}, "unknown argument of stopper 'asha' 'etta'.*'eta'"),
        ({"name": "asha", "epochs": 3}, "unknown argument"),
        ({"name": "asha", "eta": 1}, "`eta >= 2` must hold, but got eta=1"),
        ({"name": "asha", "eta": 2.5}, "`eta` must be a whole number, but got eta=2.5"),
        ({"name": "asha", "eta": True}, "`eta` must be a whole number"),
        ({"name": "asha", "grace": 0}, "`grace >= 1` must hold"),
        ({"name": "asha", "grace": 9}, "`grace < epochs` must hold.*grace=9, epochs=9"),
        ({"name": "asha", "brackets": 3}, "`brackets <= 2` must hold.*1, 3 epochs"),
        ({"name": "asha", "kind": "promot"}, "unknown kind of asha.*'promote'"),
        ({"name": "asha", "metric": "val_accuracy"}, "needs its mode"),
        ({"name": "asha", "mode": "best"}, "`mode` must be 'max' or 'min'"),
        ({"name": "asha", "metric": 3}, "`metric` must be a name"),
        ({"name": "hyperband", "eta": 0}, "`eta >= 2` must hold"),
        ({"name": "median", "min_trials": 0}, "`min_trials >= 1` must hold"),
        ({"name": "patience", "patience": 0}, "`patience >= 1` must hold"),
        ({"name": "patience", "min_delta": -1}, "`0 <= min_delta` must hold"),
        ({"name": "patience", "min_delta": "a"}, "`min_delta` must be a finite number"),
        ({"name": "goal"}, "stopper 'goal' needs target"),
        ({"name": "goal", "target": None}, "`target` must be a finite number"),
        ({"name": "pbt", "interval": 9}, "`interval < epochs` must hold"),
        ({"name": "pbt", "quantile": 0.6}, "`0 <= quantile <= 0.5` must hold"),
        ({"name": "pbt", "factors": []}, "`factors` must be a list of numbers"),
        ({"name": "pbt", "mutate": "lr"}, "`mutate` must be a list of names"),
        ({"name": "pbt", "mutate": ["rl"]}, "unknown param in `mutate` 'rl'. Known: lr"),
        ({"name": "pbt", "mutate": []}, "needs params to change"),
        ({"name": "all"}, "stopper 'all' needs `stoppers`"),
        ([], "at least one"),
        (3, "a stopper is a name"),
        (Endless, "a stopper is a name"),
    ],
)
def test_wrong_arguments_are_named(value: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(value)


def test_halving_needs_the_number_of_trials() -> None:
    with pytest.raises(UsageError, match="needs num_trials"):
        make("halving", num_trials=None)


def test_a_population_needs_the_space() -> None:
    with pytest.raises(UsageError, match="needs the search space"):
        make("pbt", space=None)


def test_a_stopper_may_go_by_another_metric() -> None:
    described = make({"name": "patience", "metric": "val_accuracy", "mode": "max"}).describe()
    assert (described["metric"], described["mode"]) == ("val_accuracy", "max")


def test_a_goal_is_a_mapping_and_goes_by_the_metric_of_the_run() -> None:
    goal = make_goal({"target": 0.9}, metric="val_accuracy", mode=Mode.MAX)
    assert goal.describe()["mode"] == "max"
    with pytest.raises(UsageError, match="needs its mode"):
        make_goal({"metric": "val_loss", "target": 1}, metric="val_accuracy", mode=Mode.MAX)
    with pytest.raises(UsageError, match=r"unknown key of goal 'max_node'.*, devices, max_nodes\."):
        make_goal({"target": 1, "max_node": 3}, metric="val_accuracy", mode=Mode.MAX)
    with pytest.raises(UsageError, match="a goal is a mapping"):
        make_goal(0.9, metric="val_accuracy", mode=Mode.MAX)  # type: ignore[arg-type]


def loss(trial: int, epochs: int, value: float) -> Report:
    return Report(trial, epochs, 4 * epochs, {"val_loss": value})


def test_several_hold_a_trial_until_all_of_them_let_it_go() -> None:
    scale: dict[str, Any] = {"metric": "val_loss", "mode": Mode.MIN, "epochs": 9}
    both = Stoppers([Asha(eta=2, **scale), Asha(eta=4, **scale)])
    assert [both.added(trial, {}, 0) for trial in range(4)] == [1, 1, 1, 1]
    told = [both.evaluated(loss(trial, 1, trial / 10)) for trial in range(4)]
    # The first lets trial 0 go when 2 are there, trial 1 when 4 are; the second trial 0 then.
    assert told == [[], [], [], [Promote(0, 2)]]
    # At 2 epochs the second one does not hold it, the first one does.
    assert both.evaluated(loss(0, 2, 0.1)) == []


def test_one_of_several_stops_a_trial() -> None:
    scale: dict[str, Any] = {"metric": "val_loss", "mode": Mode.MIN, "epochs": 9}
    both = Stoppers([Asha(grace=4, **scale), Patience(patience=1, **scale)])
    assert both.added(0, {}, 0) == 1
    assert both.evaluated(loss(0, 1, 0.5)) == [Promote(0, 2)]
    assert [type(decision) for decision in both.evaluated(loss(0, 2, 0.6))] == [Stop]


def test_several_want_as_many_trials_as_one_of_them() -> None:
    several = make(["patience", "hyperband"])
    assert isinstance(several, Stoppers)
    # Brackets of 9, 5 and 3.
    assert several.num_trials == 17
    assert several.is_comparing
    assert not make(["patience", {"name": "goal", "target": 0}]).is_comparing
