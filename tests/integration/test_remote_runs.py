"""A run whose store is at a URL: everything a run in a directory can do."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys

import numpy as np
import pytest

import cerebro
from cerebro.errors import RunLockedError, UsageError
from cerebro.storage import open_store
from cerebro.storage.journal import read
from cerebro.storage.lock import RunLock
from cerebro.testing import bucket
from cerebro.testing.history import check
from cerebro.testing.toy import ToyTask
from tests.buckets import BucketTask
from tests.processes import hold, wait_for

pytestmark = pytest.mark.timeout(300)

SPACE = {"lr": [0.5, 0.05]}
FIT = {"num_epochs": 2, "batch_size": 16, "metric": "val_loss", "mode": "min"}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """The URL of a store."""
    bucket.register()
    monkeypatch.setenv("CEREBRO_CACHE", str(tmp_path / "cache"))
    return f"bucket://{tmp_path}/bucket/runs"


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)

    def rows(count):
        y = rng.integers(0, 3, count)
        return {"x": (rng.normal(size=(count, 4)) + y[:, None]).astype(np.float32), "y": y}

    cerebro.data.from_arrays(
        tmp_path / "data", train=rows(96), val=rows(32), test=rows(40), predict=rows(24), shards=2
    )
    return tmp_path / "data"


def experiment(data, runs, **options):
    chosen = {"name": "toy", "backend": "inline", "workers": 1, **options}
    return cerebro.Experiment(data=data, store=runs, **chosen)


def test_a_run_gives_the_same_result_as_in_a_directory(data, runs, tmp_path):
    remote = experiment(data, runs).run_fit(ToyTask(), SPACE, **FIT)
    local = experiment(data, tmp_path / "local").run_fit(ToyTask(), SPACE, **FIT)
    assert remote.digest() == local.digest()
    assert remote.path == f"{runs}/toy"
    check(remote.path)


def test_pages_and_tables_are_in_the_store_and_not_left_here(data, runs, tmp_path):
    experiment(data, runs).run_fit(ToyTask(), SPACE, **FIT)
    store = open_store(f"{runs}/toy")
    assert {"leaderboard.csv", "report.html", "trace.json", "tensorboard"} <= set(store.list())
    table = list(csv.DictReader(io.StringIO(store.read("leaderboard.csv").decode())))
    assert [row["trial"] for row in table] == ["t0000", "t0001"]
    assert len(store.list("tensorboard/t0000")) == 1


def test_a_finished_run_is_not_trained_again(data, runs, tmp_path):
    log = tmp_path / "visits"
    for _ in range(2):
        experiment(data, runs).run_fit(ToyTask(log=str(log)), SPACE, **FIT)
    assert len(log.read_text().splitlines()) == 2 * 2 * 2


def test_a_fresh_run_moves_the_old_one_aside(data, runs):
    first = experiment(data, runs).run_fit(ToyTask(), SPACE, **FIT)
    digest = first.digest()
    experiment(data, runs).run_fit(ToyTask(), {"lr": [0.1]}, fresh=True, **FIT)
    assert cerebro.Result.open(f"{runs}/toy.1").digest() == digest
    assert len(cerebro.Result.open(f"{runs}/toy").trials) == 1


def test_reset_moves_a_run_aside(data, runs):
    exp = experiment(data, runs)
    exp.run_fit(ToyTask(), SPACE, **FIT)
    exp.reset()
    assert not open_store(f"{runs}/toy").exists("run.json")
    assert cerebro.Result.open(f"{runs}/toy.1").is_finished


def test_trials_are_tested_and_predict_from_the_store(data, runs, tmp_path):
    results = []
    for store in (runs, tmp_path / "local"):
        exp = experiment(data, store)
        exp.run_fit(ToyTask(), SPACE, **FIT)
        test = exp.run_test(ToyTask(), ["t0000", "best"])
        predicted = exp.run_predict(ToyTask())
        where = open_store(predicted.path)
        results.append((test.metrics, where.read("predictions.csv")))
        assert exp.run_test(ToyTask(), ["t0000", "best"]).is_repeated
    assert results[0] == results[1]


def test_a_model_is_exported_from_the_store(data, runs, tmp_path):
    result = experiment(data, runs).run_fit(ToyTask(), SPACE, **FIT)
    path = result.export("best", path=tmp_path / "model.safetensors", task=ToyTask())
    assert (tmp_path / "model.safetensors").samefile(path)
    assert (tmp_path / "model.safetensors").stat().st_size > 0


def test_a_store_that_workers_cannot_see_is_refused_before_anything_starts(data):
    exp = experiment(data, "memory://unseen", backend="local")
    with pytest.raises(UsageError, match="lives in this process alone"):
        exp.run_fit(ToyTask(), SPACE, **FIT)


def test_a_prepared_dataset_at_a_url_is_fetched(data, runs, tmp_path):
    place = open_store(f"bucket://{tmp_path}/bucket/data")
    for name in os.listdir(data):
        if (data / name).is_file():
            place.write(name, (data / name).read_bytes())
    remote = experiment(place.url, runs).run_fit(ToyTask(), SPACE, **FIT)
    local = experiment(data, tmp_path / "local").run_fit(ToyTask(), SPACE, **FIT)
    assert remote.digest() == local.digest()


def test_a_run_can_be_steered_while_nobody_drives_it(data, runs):
    experiment(data, runs).run_fit(ToyTask(), SPACE, **FIT)
    answer = cerebro.Steering(f"{runs}/toy").clone("t0000", {"lr": 0.2})
    assert str(answer.state) == "waiting"
    result = experiment(data, runs).run_fit(ToyTask(), SPACE, **FIT)
    assert [trial.params["lr"] for trial in result.trials] == [0.5, 0.05, 0.2]


def test_a_url_without_a_run_is_told_as_such(runs):
    with pytest.raises(UsageError, match=r"a run directory must have a run.json, but bucket://"):
        cerebro.Result.open(f"{runs}/nope")


CLI = """
import sys
from cerebro.testing import bucket
bucket.register()
from cerebro.cli import main
sys.argv[0] = "cerebro"
main()
"""


def cli(*words):
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", CLI, *words], capture_output=True, text=True, env=environ
    )


def test_commands_take_a_url(data, runs):
    experiment(data, runs).run_fit(ToyTask(), SPACE, **FIT)
    status = cli("status", f"{runs}/toy")
    assert (status.returncode, "finished" in status.stdout) == (0, True), status.stderr
    table = cli("results", f"{runs}/toy", "--csv")
    assert (table.returncode, table.stdout.count("t000")) == (0, 2), table.stderr
    health = cli("doctor", f"{runs}/toy")
    assert health.returncode == 0, health.stdout + health.stderr
    above = cli("status", runs)
    assert (above.returncode, "Runs in it: toy" in above.stderr) == (2, True)


DRIVER = """
import sys
import cerebro
from tests.buckets import BucketTask
data, runs, held = sys.argv[1:]
exp = cerebro.Experiment(name="toy", data=data, store=runs, backend="local", workers=2)
fit = {"num_epochs": 2, "batch_size": 16, "metric": "val_loss", "mode": "min"}
exp.run_fit(BucketTask(hold=held), {"lr": [0.5, 0.05]}, progress=False, **fit)
"""


def drive(data, runs, held):
    """A driver that does not come through its last epoch while the file is there."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [data, runs, str(held).removesuffix("1")]
    return subprocess.Popen([sys.executable, "-c", DRIVER, *words], env=environ)


def visits(url):
    store = open_store(url)
    if not store.exists("journal.jsonl"):
        return 0
    return sum(record["type"] == "visit" for record in read(store).records)


def test_a_run_whose_driver_is_killed_goes_on_from_the_store(data, runs, tmp_path):
    """Its lease is that of a dead process; its workers load their states by URL."""
    whole = experiment(data, tmp_path / "local").run_fit(ToyTask(), SPACE, **FIT)
    held = hold(tmp_path, 1)
    with drive(data, runs, held) as driver:
        try:
            wait_for(lambda: visits(f"{runs}/toy") >= 2, "some visits")
        finally:
            driver.kill()
    held.unlink()
    assert not cerebro.Result.open(f"{runs}/toy").is_finished
    resumed = experiment(data, runs, backend="local", workers=2)
    result = resumed.run_fit(BucketTask(), SPACE, force=True, **FIT)
    assert result.digest() == whole.digest()
    assert result.is_resumed
    check(result.path)


def test_a_second_driver_is_refused_while_the_first_one_works(data, runs):
    with RunLock(open_store(f"{runs}/toy")), pytest.raises(RunLockedError, match="one driver"):
        experiment(data, runs).run_fit(ToyTask(), SPACE, **FIT)


def test_a_live_run_takes_commands_that_are_put_into_its_inbox(data, runs, tmp_path):
    held = hold(tmp_path, 1)
    with drive(data, runs, held) as driver:
        try:
            wait_for(lambda: visits(f"{runs}/toy") >= 1, "a visit")
            answer = cerebro.Steering(f"{runs}/toy").stop(wait_s=60)
            assert str(answer.state) == "applied"
            held.unlink()
            assert driver.wait(60) == 0
        finally:
            driver.kill()
    assert cerebro.Result.open(f"{runs}/toy").is_finished
