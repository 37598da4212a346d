"""Train, test, predict and export with PyTorch on worker processes."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from cerebro import Experiment, Task
from cerebro.data import digits, from_arrays
from cerebro.errors import DataError, UsageError
from tests.experiments import fast_folder
from tests.tasks import Perceptron

SPACE = {"lr": [0.01, 0.001, 0.1]}


class Predictor(Perceptron):
    def predict(self, model, batch, params):
        scores = model(batch["x"])
        return {"class": scores.argmax(1), "probability": scores.softmax(1)}


@pytest.fixture(scope="module")
def place():
    """A trained run: its folder, its data and its result."""
    with fast_folder() as folder:
        data = digits()
        cut = {"train": (0, 600), "val": (600, 750), "test": (750, 1101)}
        splits = {k: {n: v[a:b] for n, v in data.items()} for k, (a, b) in cut.items()}
        predict = {"x": data["x"][1101:1301], "id": np.arange(200) * 3 + 5}
        for columns in splits.values():
            columns["id"] = np.arange(len(columns["x"]))
        from_arrays(folder / "data", **splits, predict=predict, shards=4)
        result = experiment(folder).run_fit(
            Predictor(), SPACE, num_epochs=1, batch_size=32, metric="val_loss", mode="min"
        )
        yield folder, predict, splits["test"], result


def experiment(folder, **changes):
    options = {"data": folder / "data", "backend": "inline", "workers": 1, **changes}
    return Experiment(name="digits", store=folder / "runs", **options)


def by_hand(model, columns):
    with torch.no_grad():
        return model(torch.from_numpy(columns["x"]))


def test_workers_and_this_process_predict_the_same_bytes(place, tmp_path):
    folder, predict, _, result = place
    found = [
        experiment(folder, **how).run_predict(Predictor(), ["best", 0], 33, output=tmp_path / name)
        for name, how in (("a", {}), ("b", {"backend": "local", "workers": 2}))
    ]
    for name in ("predictions.csv", "predictions.parquet"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    columns = found[0].columns()
    assert columns["id"].tolist() == predict["id"].tolist()
    expected = by_hand(result.load(0), predict).softmax(1).numpy()
    assert np.allclose(columns["t0000.probability"], expected, atol=1e-6)
    assert "200 rows" in repr(found[0])
    assert "<table>" in found[0]._repr_html_()


def test_a_test_of_many_gives_each_its_exact_metrics(place):
    folder, _, test, result = place
    found = experiment(folder).run_test(Predictor(), [0, "1", "t0002", result], 50)
    assert list(found.metrics) == ["t0000", "t0001", "t0002"]
    y = torch.from_numpy(test["y"])
    for trial in range(3):
        scores = by_hand(result.load(trial), test).double()
        expected = {
            "loss": nn.functional.cross_entropy(scores, y).item(),
            "accuracy": (scores.argmax(1) == y).double().mean().item(),
        }
        assert found[f"t{trial:04d}"] == pytest.approx(expected, rel=1e-5)
    assert "351 rows" in repr(found)
    again = experiment(folder).run_test(Predictor(), [0, "1", "t0002", result], 50)
    assert again.is_repeated
    assert again.metrics == found.metrics


@pytest.mark.parametrize("to", ["safetensors", "torch-export"])
def test_exported_models_predict_the_same_without_any_run(place, tmp_path, to):
    folder, _, _, result = place
    trained = experiment(folder).run_predict(Predictor(), "best").columns()
    path = result.export(result.best.id, to=to, path=tmp_path / f"m{ENDINGS[to]}")
    alone = Experiment(
        name="alone", data=folder / "data", store=tmp_path, backend="inline", workers=1
    )
    columns = alone.run_predict(Predictor(), path).columns()
    assert columns.keys() == trained.keys()
    for name, values in trained.items():
        assert np.array_equal(columns[name], values)


ENDINGS = {"safetensors": ".safetensors", "torch-export": ".pt2"}


@pytest.mark.parametrize("stack", [False, 3])
def test_a_checkpoint_is_a_model_file_too_unless_it_is_a_stack_s(place, tmp_path, stack):
    exp = Experiment(
        name="alone", data=place[0] / "data", store=tmp_path, backend="inline", workers=1
    )
    exp.run_fit(
        Predictor(),
        SPACE,
        num_epochs=1,
        batch_size=32,
        metric="val_loss",
        mode="min",
        stack=stack,
    )
    last = sorted((tmp_path / "alone").glob("*/?0000/checkpoints/*.safetensors"))[-1]
    if stack:
        with pytest.raises(UsageError, match="holds a whole stack of trials"):
            exp.run_predict(Predictor(), last)
        return
    found = exp.run_predict(Predictor(), last).columns()
    trained = exp.run_predict(Predictor(), 0, which="final").columns()
    assert np.array_equal(found["probability"], trained["probability"])


@pytest.mark.parametrize(
    ("tag", "error"),
    [
        ("t0009", "unknown trial 't0009'"),
        ("no.safetensors", "there is no"),
        ([], "list of them is empty"),
        (1.5, "a model is named by"),
    ],
)
def test_models_that_are_not_there_are_named(place, tag, error):
    with pytest.raises(UsageError, match=error):
        experiment(place[0]).run_test(Predictor(), tag)


def test_without_a_run_a_trial_is_refused(place, tmp_path):
    alone = Experiment(name="none", data=place[0] / "data", store=tmp_path, backend="inline")
    with pytest.raises(UsageError, match="there is no run at"):
        alone.run_test(Predictor(), "best")


def test_without_a_test_split_it_says_what_to_do(place, tmp_path):
    from_arrays(tmp_path / "data", {"x": np.ones((4, 64), np.float32)}, shards=1)
    other = experiment(place[0], data=tmp_path / "data")
    with pytest.raises(DataError, match=r"Prepare it with test=\.\.\., or name another"):
        other.run_test(Predictor(), 0)


class Pictures(Task):
    """Learns from JPEG files, which it decodes itself."""

    def decode(self, batch):
        pictures = [np.asarray(Image.open(io.BytesIO(data))) for data in batch["jpeg"]]
        x = torch.from_numpy(np.stack(pictures)).float().flatten(1) / 255
        return {"x": x, **{n: v for n, v in batch.items() if n != "jpeg"}}

    def model(self, params):
        return nn.Linear(64, 10)

    def optimizer(self, model, params):
        return torch.optim.SGD(model.parameters(), lr=params["lr"])

    def loss(self, model, batch, params):
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def predict(self, model, batch, params):
        return model(batch["x"]).argmax(1)


def as_jpeg(row):
    out = io.BytesIO()
    Image.fromarray((row.reshape(8, 8) * 255).astype(np.uint8)).save(out, "JPEG", quality=95)
    return out.getvalue()


def test_bytes_are_decoded_in_training_testing_and_predicting(tmp_path):
    data = digits()
    jpeg = [as_jpeg(row) for row in data["x"][:300]]
    columns = {"jpeg": jpeg[:200], "y": data["y"][:200]}
    test = {"jpeg": jpeg[200:], "y": data["y"][200:300]}
    from_arrays(
        tmp_path / "data", columns, val=test, test=test, predict={"jpeg": jpeg[200:]}, shards=2
    )
    exp = experiment(tmp_path)
    result = exp.run_fit(
        Pictures(), {"lr": [0.5, 0.1]}, num_epochs=4, batch_size=16, metric="val_loss", mode="min"
    )
    obstacles = [group["obstacle"] for group in result.document.stacks["groups"]]
    assert obstacles == ["Pictures.decode makes each batch anew"]
    tested = exp.run_test(Pictures(), [0, 1])
    for trial in result:
        assert tested[trial.id]["loss"] == pytest.approx(trial.metrics["val_loss"], rel=1e-6)
    classes = exp.run_predict(Pictures(), "best").columns()["prediction"]
    x = Pictures().decode({"jpeg": jpeg[200:]})["x"]
    assert classes.tolist() == result.load(result.best.id)(x).argmax(1).tolist()
