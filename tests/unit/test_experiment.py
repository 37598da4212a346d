from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from cerebro import Experiment, tune
from cerebro.backend import InlineBackend
from cerebro.config.machine import available_cores
from cerebro.data import from_arrays
from cerebro.errors import DataError, StoreError, UsageError
from cerebro.search import parse_space
from cerebro.storage import layout
from cerebro.testing.history import check
from cerebro.testing.toy import ToyTask
from cerebro.track.files import leaderboard_csv
from tests.experiments import fast_folder, make_toy_data

FIT = {
    "num_epochs": 1,
    "batch_size": 16,
    "metric": "val_loss",
    "mode": "min",
    "progress": False,
}
SPACE = {"lr": [0.5, 0.05]}


@pytest.fixture(scope="module")
def data():
    with fast_folder() as path:
        make_toy_data(path / "data")
        yield path / "data"


@pytest.fixture
def store():
    with fast_folder() as path:
        yield path


@pytest.fixture
def make(data, store):
    def make(**changes):
        arguments = {"name": "run", "data": data, "store": store, "backend": "inline"}
        return Experiment(**{**arguments, "workers": 1, **changes})

    return make


@pytest.fixture
def experiment(make):
    return make()


def files_of(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


# A whole run


def test_a_run_leaves_all_that_was_promised(experiment, store):
    result = experiment.run_fit(ToyTask(), SPACE, **FIT)
    assert result.is_finished
    assert result.best.params in ({"lr": 0.5}, {"lr": 0.05})
    names = {layout.RUN, layout.JOURNAL, layout.SUMMARY, layout.LEADERBOARD}
    names |= {layout.REPORT, layout.TRACE, layout.params(1), layout.progress(1)}
    assert names <= files_of(store / "run")
    assert any(name.startswith("tensorboard/t0001/") for name in files_of(store / "run"))
    check(store / "run")


def test_the_result_knows_the_task(experiment):
    class Mine(ToyTask):
        pass

    result = experiment.run_fit(Mine(), SPACE, **FIT)
    assert result.load(result.best.id).weight.shape == (4, 3)


def test_a_task_may_be_named(experiment):
    result = experiment.run_fit("cerebro.testing.toy:ToyTask", SPACE, **FIT)
    assert result.load(0).weight.shape == (4, 3)


def test_the_same_call_again_returns_at_once(experiment, store):
    first = experiment.run_fit(ToyTask(), SPACE, **FIT)
    before = (store / "run" / layout.JOURNAL).read_bytes()
    assert experiment.run_fit(ToyTask(), SPACE, **FIT).digest() == first.digest()
    assert (store / "run" / layout.JOURNAL).read_bytes() == before


def test_a_fresh_call_starts_anew(experiment, store):
    experiment.run_fit(ToyTask(), SPACE, **FIT)
    experiment.run_fit(ToyTask(), SPACE, **{**FIT, "num_epochs": 2}, fresh=True)
    assert sorted(path.name for path in store.iterdir()) == ["run", "run.1"]


def test_random_search_draws_as_many_as_asked(experiment):
    space = {"lr": tune.loguniform(1e-3, 1.0)}
    result = experiment.run_fit(ToyTask(), space, search="random", num_trials=3, **FIT)
    rates = {trial.params["lr"] for trial in result}
    assert len(rates) == 3
    assert all(1e-3 <= rate <= 1.0 for rate in rates)


def test_a_space_that_was_parsed_is_taken_as_it_is(experiment):
    result = experiment.run_fit(ToyTask(), parse_space(SPACE), **FIT)
    assert len(result.trials) == 2


def test_batch_size_may_be_searched(experiment):
    options = {**FIT, "batch_size": None}
    result = experiment.run_fit(ToyTask(), {"lr": 0.1, "batch_size": [8, 16]}, **options)
    assert [trial.params["batch_size"] for trial in result] == [8, 16]


@pytest.mark.parametrize(("mode", "files"), [("visit", 1), ("epoch", 1), ("off", 0)])
def test_checkpoints_may_be_had_or_not(experiment, store, mode, files):
    experiment.run_fit(ToyTask(), {"lr": 0.1}, checkpoint=mode, **FIT)
    assert len(list((store / "run").rglob("*.safetensors"))) == files


def test_the_leaderboard_of_the_result_is_that_of_the_file(experiment, store):
    space = {"lr": [0.5, 0.05], "fail": {"choice": [None, {"kind": "raise", "epoch": 1}]}}
    result = experiment.run_fit(ToyTask(), space, **{**FIT, "num_epochs": 3})
    written = (store / "run" / layout.LEADERBOARD).read_text()
    assert leaderboard_csv(result.leaderboard().ranking) == written
    assert list(result.leaderboard()[0]) == written.splitlines()[0].split(",")


def test_keep_top_keeps_the_best(experiment, store):
    result = experiment.run_fit(ToyTask(), SPACE, keep_top=1, **FIT)
    (kept,) = (store / "run").rglob("*.safetensors")
    assert kept.parent.parent.name == result.best.id


def test_progress_is_shown_on_standard_error_when_asked(experiment, capsys):
    experiment.run_fit(ToyTask(), SPACE, **{**FIT, "progress": True})
    shown = capsys.readouterr()
    assert "val_loss" in shown.err
    assert shown.out == ""


def test_nothing_is_shown_where_nobody_looks(experiment, capfd):
    experiment.run_fit(ToyTask(), SPACE, **{**FIT, "progress": None})
    shown = capfd.readouterr()
    assert shown.out + shown.err == ""


def test_integers_of_numpy_are_integers(make):
    experiment = make(workers=np.int64(1), threads_per_worker=np.int32(1), seed=np.uint8(3))
    options = {**FIT, "num_epochs": np.int64(1), "batch_size": np.int16(8), "keep_top": np.int64(1)}
    result = experiment.run_fit(ToyTask(), {"lr": 0.1}, **options)
    assert [len(result.history(0)), result.document.spec["seed"]] == [1, 3]


@pytest.mark.parametrize("stack", [True, 0, "yes", 1.5, None])
def test_a_wrong_setting_for_stacks_is_refused(make, stack):
    with pytest.raises(UsageError, match="stack must be auto, probe, false or a number"):
        make().run_fit(ToyTask(), {"lr": 0.1}, **{**FIT, "stack": stack})
    with pytest.raises(UsageError, match="`same_order` must be True or False"):
        make().run_fit(ToyTask(), {"lr": 0.1}, **{**FIT, "same_order": 1})


def test_trials_of_one_structure_are_stacked_where_asked(make):
    result = make().run_fit(ToyTask(), {"lr": [0.1, 0.2, 0.3]}, **{**FIT, "stack": np.int64(2)})
    assert result.document.stacks["groups"][0]["stacks"] == 2
    assert result.document.spec["stack"] == 2
    assert result.load(2).weight.shape == result.load(0).weight.shape
    auto = make(name="auto").run_fit(ToyTask(gain=9.0), {"lr": [0.1, 0.2, 0.3]}, **FIT)
    assert auto.document.stacks["setting"] == "auto"
    assert auto.document.stacks["groups"][0]["stacks"] == 1


def test_there_is_a_worker_for_every_core_unless_told(make):
    cores = len(os.sched_getaffinity(0))
    assert make(workers=None).count_workers("cpu") == available_cores() == cores
    assert make(workers=None, threads_per_worker=10_000).count_workers("cpu") == 1
    assert make(workers=3).count_workers("cpu") == 3


def test_paths_may_be_relative_of_home_and_urls(make, data, monkeypatch):
    monkeypatch.chdir(data.parent)
    monkeypatch.setenv("HOME", str(data.parent))
    found = {make(data=form).data for form in ("data", "~/data", data.as_uri(), Path("data"))}
    assert found == {os.path.realpath(data)}


# Wrong arguments


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"params": {"train_main": "a.csv"}}, "either params, the locators of raw data, or data"),
        ({"params": {"train": "s3://x"}, "data": None}, "unknown key 'train' in params."),
        ({"name": 3}, "`name` must be a string, but got 3."),
        ({"name": ""}, "a run's name must start with a letter or digit"),
        ({"name": "../other"}, "a run's name must start with a letter or digit"),
        ({"name": "a b"}, "but got 'a b'"),
        ({"name": "_x"}, "a run's name must start with a letter or digit"),
        ({"name": ".tmp-1-0-x"}, "a run's name must start with a letter or digit"),
        ({"data": None}, "of a prepared dataset, but got neither."),
        ({"data": 3}, "`data` must be a string or a path, but got 3."),
        ({"data": ""}, "without NUL"),
        ({"store": "https://host/runs"}, "can be written"),
        ({"store": 3}, "`store` must be a string or a path, but got 3."),
        ({"store": "s3://key:secret@bucket"}, "must hold no credentials"),
        ({"backend": None}, "or an object such as RayBackend(), but got None."),
        ({"backend": InlineBackend}, "Make one: InlineBackend()."),
        (
            {"backend": "lokal"},
            "unknown backend 'lokal'. Known: inline, local, ray, spark. Did you mean 'local'",
        ),
        ({"workers": 0}, "`workers >= 1` must hold, but got workers=0."),
        ({"workers": -1}, "`workers >= 1` must hold, but got workers=-1."),
        ({"workers": "2"}, "`workers >= 1` must hold, but got workers='2'."),
        ({"workers": 1.5}, "`workers >= 1` must hold, but got workers=1.5."),
        ({"workers": True}, "`workers >= 1` must hold, but got workers=True."),
        ({"threads_per_worker": 0}, "`threads_per_worker >= 1` must hold"),
        ({"seed": None}, "`seed` must be an integer, but got None."),
        ({"seed": 0.5}, "`seed` must be an integer, but got 0.5."),
        ({"seed": True}, "`seed` must be an integer, but got True."),
        ({"seed": -1}, "`0 <= seed < 2**63` must hold, but got seed=-1."),
        ({"seed": 2**63}, "`0 <= seed < 2**63` must hold"),
    ],
)
def test_a_wrong_argument_of_an_experiment_says_what_must_hold(make, store, wrong, message):
    with pytest.raises(UsageError) as caught:
        make(**wrong)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)
    assert list(store.iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"task": None}, "the task must be an object of a subclass of cerebro.Task"),
        ({"task": ToyTask}, "but got <class 'cerebro.testing.toy.ToyTask'>. Make one: ToyTask()."),
        ({"task": lambda params: None}, "named as `module:Class`, but got <function"),
        ({"task": "toy"}, "module:Class, but got 'toy'"),
        ({"task": "no_such_module:Task"}, "'no_such_module:Task' cannot be imported"),
        ({"task": "pathlib:Path"}, "must name a subclass of cerebro.Task"),
        ({"space": None}, "a search space must be a dict from names to domains, but got None."),
        ({"space": [("lr", 0.1)]}, "a search space must be a dict"),
        ({"space": {3: [1]}}, "a parameter's name must start with a letter"),
        ({"space": {"lr": []}}, "parameter 'lr'"),
        ({"space": {"lr": {"unifrom": [0, 1]}}}, "Did you mean 'uniform'?"),
        ({"space": {"lr": tune.uniform(0, 1)}}, "grid search needs listed values"),
        ({"space": {"rate": 0.1}}, "asks for params['lr'], but the trial has: rate."),
        ({"num_epochs": 0}, "`num_epochs >= 1` must hold, but got num_epochs=0."),
        ({"num_epochs": "2"}, "`num_epochs >= 1` must hold, but got num_epochs='2'."),
        ({"num_epochs": 1.0}, "`num_epochs >= 1` must hold, but got num_epochs=1.0."),
        ({"num_epochs": True}, "but got num_epochs=True."),
        ({"num_epochs": None}, "num_epochs must be given, or max_epochs with the goal."),
        (
            {"num_epochs": 3, "goal": {"target": 0.1, "max_epochs": 2}},
            "`num_epochs <= goal.max_epochs` must hold, but got num_epochs=3 and max_epochs=2.",
        ),
        ({"metric": 3}, "`metric` must be a string, but got 3."),
        ({"metric": "val_f1"}, "got 'val_f1'. Known: train_loss, val_loss, val_accuracy."),
        ({"metric": "accuracy"}, "got 'accuracy'. Known: train_loss, val_loss, val_accuracy."),
        ({"mode": "best"}, "mode must be one of max, min, but got 'best'."),
        ({"mode": None}, "`mode` must be a string, but got None."),
        (
            {"search": "rnadom"},
            "Known: grid, nsga2, random, sobol, tpe. Did you mean 'random'?",
        ),
        ({"search": "random"}, "search='random' needs num_trials"),
        ({"num_trials": 3}, "num_trials belongs to random search"),
        ({"search": "random", "num_trials": 0}, "`num_trials >= 1` must hold"),
        ({"search": "random", "num_trials": "3"}, "but got num_trials='3'."),
        ({"batch_size": 0}, "`batch_size >= 1` must hold, but got batch_size=0."),
        ({"batch_size": "16"}, "`batch_size >= 1` must hold, but got batch_size='16'."),
        ({"batch_size": None}, "once, in the space or beside it, but got neither."),
        ({"space": {"lr": 1, "batch_size": [8]}}, "but got batch_size and space.batch_size."),
        (
            {"checkpoint": "always"},
            "checkpoint must be one of visit, epoch, off, but got 'always'.",
        ),
        ({"checkpoint": None}, "checkpoint must be one of visit, epoch, off"),
        ({"device": None}, "`device` must be a string, but got None."),
        ({"device": "abacus"}, "abacus"),
        ({"keep_top": 0}, "`keep_top >= 1` must hold, but got keep_top=0."),
        ({"keep_top": -1}, "`keep_top >= 1` must hold"),
        ({"keep_top": "all"}, "but got keep_top='all'."),
    ],
)
def test_a_wrong_argument_of_a_run_is_refused_and_leaves_no_trace(
    experiment, store, wrong, message
):
    arguments = {"task": ToyTask(), "space": SPACE, **FIT, **wrong}
    with pytest.raises(UsageError) as caught:
        experiment.run_fit(**arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(store.iterdir()) == []


def test_a_refused_call_leaves_the_run_of_that_name_alone(experiment, store):
    experiment.run_fit(ToyTask(), SPACE, **FIT)
    before = files_of(store)
    for wrong in ({"metric": "val_f1"}, {"num_epochs": 5}, {"metric": "val_f1", "fresh": True}):
        with pytest.raises(UsageError):
            experiment.run_fit(ToyTask(), SPACE, **{**FIT, **wrong})
    assert files_of(store) == before


def test_data_that_is_not_there_is_a_data_error(make, store):
    with pytest.raises(DataError, match=r"there is no dataset at .*/nowhere.* Prepare one with"):
        make(data=store / "nowhere").run_fit(ToyTask(), SPACE, **FIT)
    assert list(store.iterdir()) == []


def test_a_metric_of_validation_needs_a_validation_split(make, store):
    columns = {"x": np.zeros((8, 4), np.float32), "y": np.zeros(8, np.int64)}
    from_arrays(store / "data", train=columns, shards=2)
    experiment = make(data=store / "data", store=store / "runs")
    with pytest.raises(
        UsageError, match=r"'val_loss' needs a validation split.* rank by train_los"
    ):
        experiment.run_fit(ToyTask(), SPACE, **FIT)
    result = experiment.run_fit(ToyTask(), SPACE, **{**FIT, "metric": "train_loss"})
    assert set(result.best.metrics) == {"train_loss"}


def test_a_store_that_cannot_be_written_is_a_store_error(make, store):
    (store / "file").write_text("mine")
    with pytest.raises(StoreError, match=r"cannot open .*file/run/lock.*Check that you may write"):
        make(store=store / "file").run_fit(ToyTask(), SPACE, **FIT)
    assert files_of(store) == {"file"}
    assert (store / "file").read_text() == "mine"


def test_a_backend_may_be_an_object_and_serves_one_run_after_another(make):
    backend = InlineBackend()
    experiment = make(backend=backend, workers=None)
    digests = {experiment.run_fit(ToyTask(), SPACE, **FIT, fresh=True).digest() for _ in range(2)}
    assert len(digests) == 1
    assert experiment.threads_per_worker == 1
