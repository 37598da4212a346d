"""Test and predict, driven: each row once, in order, whatever happens."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from cerebro.data import from_arrays, open_dataset
from cerebro.data.predictions import read_predictions
from cerebro.errors import DataError, RunLockedError
from cerebro.results import Result
from cerebro.storage import DirectoryStore
from cerebro.storage.lock import RunLock
from cerebro.testing.toy import ToyTask
from cerebro.train.score.calls import ScoreMode
from cerebro.types import Split
from tests.experiments import fast_folder
from tests.scored import answer, ask, files, trained_run


@pytest.fixture(scope="module")
def run():
    with fast_folder() as folder:
        yield trained_run(folder)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def rows_of(root, split):
    data = open_dataset(root.parent / "data")
    shards = [data.open_shard(split, n) for n in range(len(data.shards(split)))]
    assert len(shards) > 1
    return np.concatenate([shard.columns["x"] for shard in shards]), shards


def test_predictions_hold_every_row_once_in_input_order(run, out):
    found = answer(ask(run), out)
    x, _ = rows_of(run, "predict")
    table = read_predictions(out / "predictions.parquet")
    assert found.rows == len(x) == 53
    assert table["id"] == [f"r{2000 + n}" for n in range(53)]
    for trial in ("t0000", "t0001"):
        scores = Result.open(run).load(trial, task=ToyTask()).scores(x)
        assert table[f"{trial}.score"].shape == (53, 3)
        assert np.allclose(table[f"{trial}.score"], scores)
        assert table[f"{trial}.class"].tolist() == scores.argmax(1).tolist()


def test_the_csv_file_says_the_same_with_a_column_for_each_number(run, out):
    answer(ask(run), out)
    table = read_predictions(out / "predictions.parquet")
    with (out / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:5] == ["id", "t0000.class", *(f"t0000.score_{n}" for n in range(3))]
    assert [row["id"] for row in rows] == table["id"]
    for place in range(3):
        assert [float(row[f"t0001.score_{place}"]) for row in rows] == table["t0001.score"][
            :, place
        ].tolist()


def test_a_single_model_needs_no_prefix(run, out):
    request = ask(run)
    answer(replace(request, members=request.members[:1]), out)
    assert list(read_predictions(out / "predictions.parquet")) == ["id", "class", "score"]


def test_rows_without_ids_are_numbered(run, tmp_path, out):
    x = np.random.default_rng(0).normal(size=(11, 4)).astype(np.float32)
    from_arrays(tmp_path / "data", predict={"x": x}, shards=3)
    answer(ask(run, data=str(tmp_path / "data")), out)
    assert read_predictions(out / "predictions.parquet")["id"].tolist() == list(range(11))


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_means_of_a_test_are_exact_whatever_the_batches(run, out, size):
    found = answer(ask(run, ScoreMode.TEST, batch_size=size), out)
    x, shards = rows_of(run, "test")
    y = np.concatenate([shard.columns["y"] for shard in shards])
    for trial in ("t0000", "t0001"):
        scores = Result.open(run).load(trial, task=ToyTask()).scores(x)
        logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        expected = {
            "loss": -logs[np.arange(len(y)), y].mean(),
            "accuracy": (scores.argmax(1) == y).mean(),
        }
        assert found.metrics[trial] == pytest.approx(expected, rel=1e-12)


def test_another_split_may_be_tested_or_predicted(run, out):
    assert answer(ask(run, ScoreMode.TEST, split=Split.VAL), out / "a").rows == 16
    assert answer(ask(run, split=Split.TEST), out / "b").rows == 53


def test_asked_again_nothing_is_computed(run, out):
    for mode in ScoreMode:
        first = answer(ask(run, mode), out / mode)
        before = files(out / mode)
        # A task that would say so if anything were.
        again = answer(ask(run, mode), out / mode, backend=Refusing())
        assert not first.is_repeated
        assert again.is_repeated
        assert (again.rows, again.metrics) == (first.rows, first.metrics)
        assert files(out / mode) == before


class Refusing:
    """A backend that must not be started."""

    def start(self, setup, workers):
        raise AssertionError("nothing was to be done")


@pytest.mark.parametrize(
    "change",
    [
        {"batch_size": 8},
        {"task": ToyTask(gain=2.0)},
        {"split": Split.TEST},
        {"members": ()},
        {"fresh": True},
    ],
)
def test_another_request_is_not_answered_with_the_old_result(run, out, change):
    answer(ask(run), out)
    if "members" in change:
        change = {"members": ask(run).members[:1]}
    assert not answer(replace(ask(run), **change), out).is_repeated


def test_a_result_whose_file_is_gone_is_made_again(run, out):
    answer(ask(run), out)
    before = files(out)
    (out / "predictions.csv").unlink()
    assert not answer(ask(run), out).is_repeated
    assert files(out) == before


def test_parts_of_other_requests_and_damaged_ones_are_not_used(run, out):
    whole = out.with_name("whole")
    answer(ask(run), whole)
    request = ask(run)
    stop_after_first_part(request, out)
    (part,) = out.glob("parts/*.arrow")
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    answer(request, out)
    assert files(out) == files(whole)
    stop_after_first_part(replace(request, batch_size=3), out)
    answer(replace(request, fresh=False, batch_size=5), out)
    assert not list(out.glob("parts/*"))


def test_parts_that_are_whole_are_kept(run, out):
    stop_after_first_part(ask(run), out)
    assert [path.name for path in sorted(out.glob("parts/*"))] == ["00000.arrow", "00000.json"]
    told = []
    answer(ask(run), out, progress=lambda done, total: told.append((done, total)))
    first = open_dataset(run.parent / "data").shards("predict")[0].rows
    assert told[0] == (first, 53)
    assert told[-1] == (53, 53)
    assert not list(out.glob("parts/*"))


def stop_after_first_part(request, out):
    def stop(done, total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer(replace(request, fresh=True), out, progress=stop)


def test_two_at_once_do_not_mix(run, out):
    with RunLock(DirectoryStore(out)), pytest.raises(RunLockedError):
        answer(ask(run), out)


def test_a_split_that_is_not_there_is_named_with_what_to_do(run, out, tmp_path):
    from_arrays(tmp_path / "data", predict={"x": np.ones((3, 4), np.float32)}, shards=1)
    with pytest.raises(
        DataError, match=r"must have a test split, .* has only: predict.*test=\.\.\."
    ):
        answer(ask(run, ScoreMode.TEST, data=str(tmp_path / "data")), out)


def test_the_result_is_plain_json(run, out):
    answer(ask(run, ScoreMode.TEST), out)
    body = json.loads((out / "result.json").read_text())
    assert body["rows"] == 53
    assert body["models"]["t0000"]["params"] == {"lr": 0.5}
    assert set(body["models"]["t0001"]["metrics"]) == {"loss", "accuracy"}
