"""Overrides of files with a task: how far they reach, and what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.search.domain import Choice, Constant
from tests.unit.config.task_files import FULL, SHORT, failure, load, make_project


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_project()


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("epochs=3", "epochs", 3),
        ("name=other", "name", "other"),
        ("metric=a=b", "metric", ["a=b"]),
        ("device=cuda:0", "device", "cuda:0"),
        ("workers=", "workers", None),
    ],
)
def test_an_override_wins_over_the_file(override: str, key: str, value: object) -> None:
    assert getattr(load(FULL, override), key) == value


def test_an_override_may_set_a_key_the_file_leaves_out() -> None:
    assert load(SHORT, "seed=7").seed == 7


def test_a_later_override_wins() -> None:
    assert load(FULL, "epochs=3", "epochs=4").epochs == 4


def test_an_override_reaches_into_the_space() -> None:
    config = load(FULL, "space.lr=[1e-3]", "space.wd={uniform: [0, 1]}")
    assert config.space["lr"] == Choice([0.001])
    assert config.space["wd"].name == "uniform"
    assert list(config.space) == ["lr", "width", "wd", "dropout"]


def test_an_override_reaches_a_parameter_with_a_dot_in_its_name() -> None:
    text = SHORT.replace("lr:", "opt.lr:")
    assert load(text, "space.opt.lr=1").space["opt.lr"] == Constant(1)


@pytest.mark.parametrize(
    "overrides",
    [
        ["search=random", "num_trials=3"],
        ["search.name=random", "search.trials=3"],
        ["search=random", "search.trials=3"],
        ["search={name: random, trials: 3}"],
    ],
)
def test_an_override_may_change_the_search(overrides: list[str]) -> None:
    config = load(SHORT, *overrides)
    assert (config.search, config.num_trials) == ("random", 3)


@pytest.mark.parametrize(
    ("overrides", "key", "value"),
    [
        (["stopper.patience=3"], "stopper", {"name": "patience", "patience": 3}),
        (["seeds=1", "stopper=asha", "stopper.eta=3"], "stopper", {"name": "asha", "eta": 3}),
        (["seeds=1", "stopper=[asha, patience]"], "stopper", ["asha", "patience"]),
        (["budget=10m"], "budget", "10m"),
        (["budget=", "budget.epochs=9"], "budget", {"epochs": 9}),
        (["goal.target=0.9"], "goal", {"target": 0.9}),
        (["constraints.size=3"], "constraints", {"val_seconds": 2.5, "size": 3}),
    ],
)
def test_an_override_may_change_how_far_trials_are_trained(
    overrides: list[str], key: str, value: object
) -> None:
    assert getattr(load(FULL, *overrides), key) == value


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stopper.patience=0", "override 'stopper.patience=0': `patience >= 1` must hold"),
        ("budget.epochs=9", "override 'budget.epochs=9': `budget` is '30m', which has no keys"),
        ("budget=10x", "override 'budget=10x': `budget`: a time must be a positive number"),
        ("epochz=3", "override 'epochz=3': unknown key 'epochz'. Known: name, "),
        ("epochz=3", "Did you mean 'epochs'?"),
        ("epochs", "override 'epochs': an override is written key=value or key.sub=value."),
        ("=3", "an override is written key=value"),
        ("epochs=three", "override 'epochs=three': `epochs` must be an integer, but got 'three'"),
        ("epochs.x=3", "override 'epochs.x=3': `epochs` has no keys below it."),
        ("space.lrr=3", "override 'space.lrr=3': unknown parameter 'lrr'. Known: lr, width, "),
        ("space.lrr=3", "Did you mean 'lr'?"),
        ("space.lr={uniform: [1, 0]}", "}': `space.lr`: `low < high` must hold"),
        ("epochs=[1", "override 'epochs=[1': not valid YAML"),
        ("epochs=!!python/name:os.system x", "': tags are not allowed"),
        ("name=\udce9", "must be UTF-8"),
        ("search.nam=grid", "override 'search.nam=grid': unknown key of search 'nam'."),
        ("backend=rey", "override 'backend=rey': unknown backend 'rey'."),
    ],
)
def test_a_wrong_override_is_named(override: str, message: str) -> None:
    assert message in failure(FULL, override)
