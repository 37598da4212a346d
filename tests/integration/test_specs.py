"""MiniBatchSpecs run as tasks do: same results everywhere, killed or not, one bad trial alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from cerebro import Experiment, MiniBatchSpec, Result, tune
from cerebro.data import digits, from_arrays
from cerebro.errors import UsageError, WorkerError
from cerebro.storage import DirectoryStore
from cerebro.storage.journal import read
from cerebro.testing.history import check
from cerebro.types import TrialStatus
from tests.experiments import learnt, outcome
from tests.processes import driving
from tests.specs import Counted, Digits, Initialized, Listing, Sick, Uninitialized

pytestmark = pytest.mark.timeout(300)

SPACE = {"lr": [0.01, 0.003], "batch_size": [16, 48]}
FIT = {"num_epochs": 2, "metric": "val_loss", "mode": "min", "progress": False, "stack": False}


@pytest.fixture
def home(folder):
    columns = {name: column[:400] for name, column in digits().items()}
    from_arrays(folder / "data", train=columns, shards=3, validation=0.2)
    return folder


def fit(home, name, spec, space=SPACE, *, backend="inline", workers=1, **options):
    experiment = Experiment(
        name=name, data=home / "data", store=home / "runs", backend=backend, workers=workers, seed=3
    )
    result = experiment.run_fit(spec, space, **{**FIT, **options})
    check(home / "runs" / name)
    return result


def test_two_workers_and_other_ways_to_name_it_give_the_same_digest(home):
    oracle = fit(home, "inline", Digits())
    assert {trial.status for trial in oracle} == {TrialStatus.FINISHED}
    assert oracle.best.metrics["val_accuracy"] > 0.5
    local = fit(home, "local", "tests.specs:Digits", backend="local", workers=2, stack="auto")
    assert outcome(home / "runs" / "local") == outcome(home / "runs" / "inline")
    assert local.document.task == "tests.specs:Digits"
    saved = fit(home, "epochs", Digits(), checkpoint="epoch")
    assert saved.digest() == oracle.digest()


def test_a_loaded_trial_is_a_dict_of_its_modules(home):
    result = fit(home, "run", Digits())
    model = Result.open(result.path).load(result.best.id)
    assert sorted(model) == ["encoder", "head"]
    x, y = (torch.from_numpy(np.array(digits()[name])) for name in ("x", "y"))
    with torch.no_grad():
        right = model["head"](model["encoder"](x)).argmax(1) == y
    assert right.float().mean() > 0.5
    assert sorted(Result.open(result.path).load(0, task=Digits())) == ["encoder", "head"]


def test_means_are_exact_over_unequal_batches_and_shards_and_of_this_epoch_alone(folder):
    def columns(rows):
        y = np.random.default_rng(rows).normal(size=rows)
        return {"x": np.zeros((rows, 1), np.float32), "y": y, "id": np.arange(rows)}

    train, val = columns(101), columns(37)
    data = from_arrays(folder / "data", train=train, val=val, shards=3)
    assert len({shard.rows for shard in data.shards("train")}) > 1
    space = {"batch_size": [7, 16]}
    result = fit(folder, "run", Counted(), space, metric="val_label", mode="max")
    for trial in result:
        for epoch in result.history(trial.id):
            assert epoch["train_label"] == pytest.approx(train["y"].mean(), abs=1e-12)
            assert epoch["train_id"] == pytest.approx(50, abs=1e-12)
            assert epoch["val_label"] == pytest.approx(val["y"].mean(), abs=1e-12)


def test_a_trial_that_diverges_does_so_alone_and_keeps_its_last_checkpoint(home):
    # Three visits of seven steps make an epoch; the fifth visit ends in nothing.
    space = {"lr": [0.01], "batch_size": [16], "sick": [None, 30]}
    result = fit(home, "sick", Sick(), space)
    well = fit(home, "well", Sick(), {**space, "sick": [None]})
    assert learnt(home / "runs" / "sick")[0] == learnt(home / "runs" / "well")[0]
    sick = result.trials[1]
    assert sick.status is TrialStatus.DIVERGED
    assert "train_loss is nan at step 1 of the visit" in sick.error
    assert result.states(1)[-1][0] == 4
    assert result.states(1)[0] == (3, dict(result.states(1))[3])
    model = result.load(1, which="final")
    assert all(torch.isfinite(p).all() for module in model.values() for p in module.parameters())
    assert well.best.metrics == result.best.metrics


def test_metrics_agg_sees_every_batch_of_an_epoch_in_order(home):
    result = fit(home, "run", Listing())
    same = fit(home, "same", "tests.specs:Listing", backend="local", workers=2)
    assert same.digest() == result.digest()
    plain = fit(home, "plain", Digits())
    visits = [r for r in read(DirectoryStore(result.path)).records if r["type"] == "visit"]
    for trial in result:
        rows = plain.history(trial.id)
        for epoch, found in enumerate(result.history(trial.id)):
            values, sizes = [], []
            for record in visits:
                if (record["trial"], record["epoch"]) == (trial.number, epoch):
                    assert record["sums"] == {}
                    values += record["batches"]["loss"][0]
                    sizes += record["batches"]["loss"][1]
            assert sum(sizes) == 320
            assert found["train_batches"] == len(values)
            assert found["train_worst"] == max(values)
            assert found["train_loss"] == pytest.approx(rows[epoch]["train_loss"], rel=1e-12)
            assert found["val_loss"] == pytest.approx(rows[epoch]["val_loss"], rel=1e-12)
    assert plain.states(0) == result.states(0)
    assert not any("batches" in r for r in read(DirectoryStore(plain.path)).records)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("raise", "LookupError: cannot aggregate train"),
        ("nan", "metrics_agg must return finite numbers, but train_loss is nan"),
    ],
)
def test_a_trial_whose_metrics_cannot_be_aggregated_fails_alone(home, broken, said):
    space = {"lr": [0.01], "batch_size": [16], "broken": [broken, None]}
    result = fit(home, "run", Listing(), space)
    failed, good = result.trials
    assert (failed.status, good.status) == (TrialStatus.FAILED, TrialStatus.FINISHED)
    assert said in failed.error
    assert "metrics_agg" in failed.traceback
    assert result.history(0) == []
    assert len(result.history(1)) == 2


def test_a_metric_that_metrics_agg_does_not_give_is_refused_at_once(home):
    with pytest.raises(UsageError, match=r"'val_accuracy'.*train_worst.*val_batches"):
        fit(home, "run", Listing(), metric="val_accuracy", mode="max")


def test_a_spec_without_val_test_is_refused_where_data_have_a_validation_split(home):
    class Silent(Digits):
        val_test = MiniBatchSpec.val_test

    with pytest.raises(UsageError, match="this one has no val_test"):
        fit(home, "run", Silent(), metric="train_loss")


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_to_the_same_digest(home):
    options = {
        "task": "spec",
        "task_options": {},
        "fit": {"space": SPACE, **{k: v for k, v in FIT.items() if k != "progress"}},
        "experiment": {
            "name": "killed",
            "data": str(home / "data"),
            "store": str(home / "runs"),
            "backend": "local",
            "workers": 2,
            "seed": 3,
        },
    }
    with driving(options, home / "first.log") as driver:
        driver.wait_for_visits(8)
        driver.kill()
    with driving(options, home / "second.log") as driver:
        assert driver.wait() == 0, driver.said()
    result = Result.open(home / "runs" / "killed")
    assert result.is_resumed
    check(result.path)
    assert result.digest() == fit(home, "whole", Listing()).digest()


def test_a_worker_that_is_killed_changes_nothing(home):
    log = home / "pids"

    class Killing(Initialized):
        def train(self, model_object, minibatch, hyperparams, device):
            if model_object["steps"] == 5 and not os.path.exists(f"{self.log}.killed"):
                open(f"{self.log}.killed", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().train(model_object, minibatch, hyperparams, device)

    space = {"lr": [0.01, 0.003], "batch_size": [48]}
    killed = fit(home, "killed", Killing(str(log)), space, backend="local")
    # The one that took the place of the first was initialized, too.
    assert len(set(log.read_text().split())) == len(log.read_text().split()) == 2
    assert killed.digest() == fit(home, "whole", Digits(), space).digest()


def test_initialize_worker_runs_once_inline(home):
    log = home / "pids"
    fit(home, "run", Initialized(str(log)), {"lr": [0.01], "batch_size": [48]})
    assert log.read_text().split() == [str(os.getpid())]


@pytest.mark.parametrize("backend", ["inline", "local"])
def test_an_error_in_initialize_worker_ends_the_run_with_its_traceback(home, backend):
    with pytest.raises(WorkerError, match="LookupError: there is no such licence") as caught:
        fit(home, "run", Uninitialized(), backend=backend)
    if backend == "local":
        assert "in initialize_worker" in str(caught.value)
    else:
        assert isinstance(caught.value.__cause__, LookupError)


@pytest.mark.parametrize("stopper", ["asha", {"name": "pbt", "interval": 1}])
def test_searches_that_stop_and_copy_trials_work(home, stopper):
    space = {"lr": tune.loguniform(1e-3, 1e-1), "batch_size": [48]}
    options = {"num_epochs": 4, "stopper": stopper, "search": "random", "num_trials": 4}
    one, other = (fit(home, name, Digits(), space, **options) for name in ("one", "other"))
    assert one.digest() == other.digest()
    assert one.best.metrics["val_accuracy"] > 0.5
    assert len({len(one.history(trial.id)) for trial in one}) > 1


@pytest.mark.slow
def test_a_spec_of_a_script_travels_with_what_it_has_read(home):
    script = home / "script.py"
    script.write_text(
        "import cerebro, torch\n"
        "from tests.specs import Digits\n"
        "class Mine(Digits):\n"
        "    def read_misc(self, misc_path):\n"
        "        self.scale = float(open(misc_path).read())\n"
        "    def train(self, model_object, minibatch, hyperparams, device):\n"
        "        found = super().train(model_object, minibatch, hyperparams, device)\n"
        "        return {**found, 'scale': self.scale}\n"
        "if __name__ == '__main__':\n"
        f"    open({str(home / 'misc')!r}, 'w').write('2.5')\n"
        "    spec = Mine()\n"
        f"    spec.read_misc({str(home / 'misc')!r})\n"
        "    exp = cerebro.Experiment(\n"
        f"        name='run', data={str(home / 'data')!r}, store={str(home / 'runs')!r},\n"
        "        workers=2\n"
        "    )\n"
        "    result = exp.run_fit(\n"
        "        spec, {'lr': [0.01], 'batch_size': [48]}, num_epochs=1, metric='train_scale',\n"
        "        mode='min', progress=False\n"
        "    )\n"
        "    assert result.best.metrics['train_scale'] == 2.5\n"
        "    assert sorted(result.load(0)) == ['encoder', 'head']\n"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, str(script)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
