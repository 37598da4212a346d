"""From raw files to predictions: locators, run_etl, run_fit, run_test, run_predict."""

from __future__ import annotations

import csv
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from cerebro import ETLSpec, Experiment, MiniBatchSpec
from cerebro.data import open_dataset
from cerebro.errors import MissingDependencyError, UsageError


class Files(ETLSpec):
    """Two numbers from a file, scaled by what a misc file says."""

    def read_misc(self, misc_path):
        with open(f"{misc_path}/scale.json", encoding="utf-8") as file:
            self.scale = json.load(file)

    def set_features(self):
        return [False, True, False]

    def row_prep(self, row, mode, object_dir):
        numbers = np.fromfile(f"{object_dir}/{row.file}", np.float32) * self.scale
        return torch.from_numpy(numbers), None if mode == "predict" else row.label


class Sides(MiniBatchSpec):
    """Which side of a line a point is on."""

    def create_model_components(self, hyperparams):
        line = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(line.parameters(), lr=hyperparams["lr"])
        return {"line": line, "optimizer": optimizer}

    def train(self, model_object, minibatch, hyperparams, device):
        x, y, _ = minibatch
        loss = torch.nn.functional.cross_entropy(model_object["line"](x), y)
        model_object["optimizer"].zero_grad()
        loss.backward()
        model_object["optimizer"].step()
        return {"loss": loss}

    def val_test(self, model_object, minibatch, hyperparams, device):
        x, y, _ = minibatch
        out = model_object["line"](x)
        right = (out.argmax(1) == y).float().mean()
        return {"loss": torch.nn.functional.cross_entropy(out, y), "accuracy": right}

    def predict(self, model_object, minibatch, hyperparams, device):
        x, _ = minibatch
        probabilities = model_object["line"](x).softmax(1)
        return probabilities.argmax(1).tolist(), probabilities.tolist()


ROWS = {"train": 80, "val": 21, "test": 33, "predict": 17}
GRID = {"lr": [0.5, 0.01], "batch_size": [8]}


@pytest.fixture
def locators(tmp_path):
    """Points in files, tables that name them, and where things go."""
    rng = np.random.default_rng(0)
    found = {"misc": [str(tmp_path / "raw" / "scale.json")], "output_dir": str(tmp_path / "out")}
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "scale.json").write_text("2.0")
    for split, rows in ROWS.items():
        folder = tmp_path / "raw" / split
        folder.mkdir()
        points = rng.normal(size=(rows, 2)).astype(np.float32)
        with (tmp_path / "raw" / f"{split}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["id", "file"] if split == "predict" else ["id", "file", "label"])
            for number, point in enumerate(points):
                point.tofile(folder / f"{number}.bin")
                row = [f"{split}-{number}", f"{number}.bin"]
                table.writerow(row if split == "predict" else [*row, int(point.sum() > 0)])
        found[f"{split}_main"] = str(tmp_path / "raw" / f"{split}.csv")
        found[f"{split}_dir"] = str(folder)
    return found


def experiment(locators, *, backend="inline", **changes):
    return Experiment({**locators, **changes}, name="points", backend=backend, workers=2)


def test_the_whole_way_from_files_to_predictions(locators, tmp_path):
    exp = experiment(locators, backend="local")
    report = exp.run_etl(Files(), shards=4)
    assert {name: split.rows for name, split in report.splits.items()} == ROWS
    result = exp.run_fit(Sides(), GRID, 4)
    assert result.metric == "val_loss"
    assert result.best.params["lr"] == 0.5
    tested = exp.run_test(Sides(), "best", 10)
    assert "accuracy" in repr(tested)
    predicted = exp.run_predict(Sides(), "best", 5)
    with open(predicted.csv, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [f"predict-{n}" for n in range(17)]
    points = np.stack(
        [np.fromfile(tmp_path / "raw" / "predict" / f"{n}.bin", np.float32) for n in range(17)]
    )
    model = result.load(result.best.id, task=Sides())["line"]
    with torch.no_grad():
        expected = model(torch.from_numpy(points * 2.0)).argmax(1).tolist()
    assert [int(row["class"]) for row in rows] == expected


def test_data_that_was_kept_is_used_without_its_sources(locators, tmp_path):
    kept = {"etl_dir": str(tmp_path / "kept")}
    experiment(locators, **kept).run_etl(Files(), shards=2)
    only = {**kept, "output_dir": str(tmp_path / "other")}
    result = Experiment(only, name="points", backend="inline", workers=1).run_fit(Sides(), GRID, 1)
    assert len(result.trials) == 2


def test_kept_data_may_be_elsewhere(locators, tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    try:
        exp = experiment(locators, etl_dir="memory://kept-data")
        exp.run_etl(Files(), shards=2)
        only = {"etl_dir": "memory://kept-data", "output_dir": str(tmp_path / "other")}
        other = Experiment(only, name="points", backend="inline", workers=1)
        assert len(other.run_fit(Sides(), GRID, 1).trials) == 2
        assert open_dataset(other.data).digest == open_dataset(exp.data).digest
    finally:
        memory.rm("/kept-data", recursive=True)


def test_splits_kept_elsewhere_stay_when_others_are_added(locators, tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    train = {key: locators[key] for key in locators if not key.startswith(("test", "predict"))}
    test = {key: locators[key] for key in ("test_main", "test_dir", "misc")}
    places = {"etl_dir": "memory://kept-splits"}
    try:
        experiment({**train, **places}).run_etl(Files(), shards=2)
        other = experiment({**test, **places, "output_dir": str(tmp_path / "other")})
        other.run_etl(Files(), shards=2)
        assert set(map(str, open_dataset(other.data).splits)) == {"train", "val", "test"}
        third = experiment({**places, "output_dir": str(tmp_path / "third")})
        assert len(third.run_fit(Sides(), GRID, 1).trials) == 2
    finally:
        memory.rm("/kept-splits", recursive=True)


def test_data_that_could_not_be_sent_is_sent_by_the_next_call(locators, tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    exp = experiment(locators, etl_dir="memory://kept-late")
    try:
        exp.run_etl(Files(), shards=2)
        # Another copy, whose sending is cut short.
        memory.rm("/kept-late/dataset.json")
        (tmp_path / "out" / "points.data" / "unsent").touch()
        exp.run_fit(Sides(), GRID, 1)
        assert memory.exists("/kept-late/dataset.json")
        assert not (tmp_path / "out" / "points.data" / "unsent").exists()
    finally:
        memory.rm("/kept-late", recursive=True)


def test_misc_files_must_be_there_and_differ_in_name(locators, tmp_path):
    (tmp_path / "raw" / "more").mkdir()
    (tmp_path / "raw" / "more" / "scale.json").write_text("9")
    twice = [*locators["misc"], str(tmp_path / "raw" / "more" / "scale.json")]
    with pytest.raises(UsageError, match=r"'scale.json' comes twice"):
        experiment(locators, misc=twice).run_etl(Files())
    with pytest.raises(UsageError, match=r"misc must name files, but .*none.json is none"):
        experiment(locators, misc=[str(tmp_path / "none.json")]).run_etl(Files())


def test_what_is_not_prepared_yet_is_asked_for(locators):
    with pytest.raises(UsageError, match="call run_etl first"):
        experiment(locators).run_fit(Sides(), GRID, 1)


def test_a_split_that_nobody_gave_is_refused_when_it_is_needed(locators):
    for key in ("test_main", "test_dir"):
        del locators[key]
    exp = experiment(locators)
    exp.run_etl(Files(), shards=2)
    exp.run_fit(Sides(), GRID, 1)
    with pytest.raises(UsageError, match=r"there is no test data\. Give test_main"):
        exp.run_test(Sides(), "best", 10)


def test_a_directory_of_objects_without_a_table_is_refused(locators):
    del locators["val_main"]
    with pytest.raises(UsageError, match="there is no val_main"):
        experiment(locators).run_etl(Files())


def test_nothing_to_prepare_is_said(tmp_path):
    exp = Experiment({"output_dir": str(tmp_path)}, name="points")
    with pytest.raises(UsageError, match="there is nothing to prepare"):
        exp.run_etl(Files())


def test_prepared_data_needs_no_etl(tmp_path):
    with pytest.raises(UsageError, match="made with data=, which is prepared already"):
        Experiment(data=tmp_path, name="points", store=tmp_path).run_etl(Files())


def test_a_class_instead_of_a_spec_is_told(locators):
    with pytest.raises(UsageError, match=r"Make one: Files\(\)"):
        experiment(locators).run_etl(Files)


def test_reset_forgets_what_was_made_and_keeps_what_is_the_users(locators, tmp_path):
    exp = experiment(locators)
    exp.run_etl(Files(), shards=2)
    exp.run_fit(Sides(), GRID, 1)
    exp.reset()
    assert (tmp_path / "out" / "points.1" / "run.json").exists()
    with pytest.raises(UsageError, match="call run_etl first"):
        exp.run_fit(Sides(), GRID, 1)
    assert len(list((tmp_path / "raw").iterdir())) == 9
    kept = experiment(locators, etl_dir=str(tmp_path / "kept"))
    kept.run_etl(Files(), shards=2)
    kept.reset()
    assert open_dataset(tmp_path / "kept").rows("train") == 80


def test_a_table_without_a_spec_keeps_its_columns(tmp_path):
    rows = "".join(f"{n},{n / 2},word{n % 3}\n" for n in range(20))
    (tmp_path / "t.csv").write_text(f"id,value,text\n{rows}")
    params = {"train_main": tmp_path / "t.csv", "output_dir": tmp_path / "out"}
    exp = Experiment(params, name="plain", backend="inline")
    exp.run_etl(shards=2, columns={"value": "float32"})
    schema = open_dataset(exp.data).schema
    assert {name: str(column) for name, column in schema.items()} == {
        "id": "int64",
        "value": "float32",
        "text": "text",
    }


def test_requirements_are_installed_or_it_is_said_why_not(tmp_path):
    (tmp_path / "requirements.txt").write_text("numpy\n")
    Experiment({"output_dir": tmp_path}, requirements=tmp_path / "requirements.txt")
    (tmp_path / "requirements.txt").write_text("./no-such-package-here\n")
    with pytest.raises(MissingDependencyError, match="no-such-package-here"):
        Experiment({"output_dir": tmp_path}, requirements=tmp_path / "requirements.txt")
    with pytest.raises(UsageError, match=r"there is no .*absent.txt"):
        Experiment({"output_dir": tmp_path}, requirements=tmp_path / "absent.txt")


SCRIPT = """
import sys
from cerebro import ETLSpec, Experiment
from beside import halve

class Mine(ETLSpec):
    def row_prep(self, row, mode, object_dir):
        return [halve(row["value"])], 0

if __name__ == "__main__":
    exp = Experiment({"train_main": "t.csv", "output_dir": "out"}, name="mine", workers=2)
    print(exp.run_etl(Mine(), shards=2))
"""


def test_modules_beside_a_script_travel_to_the_workers(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("def halve(value):\n    return value / 2\n")
    (tmp_path / "t.csv").write_text("id,value\n" + "".join(f"{n},{n}\n" for n in range(10)))
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "prepared 10 rows" in done.stdout
    assert open_dataset(tmp_path / "out" / "mine.data" / "etl").rows("train") == 10
