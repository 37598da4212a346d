"""Eight models over JPEGs, in one pass or in eight: the third case of the ETL benchmark."""

from __future__ import annotations

import io
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from benchmarks.etl_ours import Watched
from benchmarks.report import Report, speedup
from cerebro import Experiment, Task
from cerebro import data as cdata
from cerebro.backend import Backend
from cerebro.data.inputs import Input
from cerebro.scores import PredictResult

MODELS = 8
#: Pictures are so wide as JPEGs, and so wide for the network: decoding is what takes time.
WIDE, SMALL = 128, 32
TRAINED = 512
SHARDS = 8
BATCH = 256


class Jpegs(Task):
    """1024-16-10 on pictures that are decoded and made smaller."""

    def model(self, params):
        width = SMALL * SMALL
        return nn.Sequential(nn.Flatten(), nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 10))

    def optimizer(self, model, params):
        return torch.optim.SGD(model.parameters(), lr=params["lr"], momentum=0.9)

    def loss(self, model, batch, params):
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def predict(self, model, batch, params):
        return {"class": model(batch["x"]).argmax(1)}

    def decode(self, batch):
        jpegs = batch.pop("jpeg")
        x = np.empty((len(jpegs), SMALL, SMALL), np.float32)
        for number, jpeg in enumerate(jpegs):
            with Image.open(io.BytesIO(jpeg)) as image:
                x[number] = np.asarray(image.reduce(WIDE // SMALL))
        batch["x"] = torch.from_numpy(x) / 255
        return batch


@dataclass(frozen=True, slots=True)
class Pass:
    """One or more calls of run_predict."""

    call_s: float
    #: Without what workers took to start.
    work_s: float
    results: list[PredictResult]


def prepare(
    pictures: tuple[np.ndarray, np.ndarray],
    rows: int,
    folder: Path,
    backend: Backend | None = None,
) -> Experiment:
    """A dataset of JPEGs, and eight models trained on a few of them."""
    x, y = pictures
    few, many = np.arange(TRAINED) % len(x), np.arange(rows) % len(x)
    train: dict[str, Input] = {"jpeg": [jpeg_of(x[n]) for n in few], "y": y[few]}
    cdata.from_arrays(folder / "train", train, shards=2)
    cdata.from_arrays(
        folder / "predict", predict={"jpeg": [jpeg_of(x[n]) for n in many]}, shards=SHARDS
    )
    runs = folder / "runs"
    trained = Experiment(name="run", data=folder / "train", store=runs, workers=2)
    experiment = Experiment(
        name="run", data=folder / "predict", store=runs, backend=backend or Watched(), workers=2
    )
    rates = np.geomspace(0.001, 0.1, MODELS).tolist()
    trained.run_fit(Jpegs(), {"lr": rates}, 1, batch_size=64, stack=False, progress=False)
    return experiment


def jpeg_of(picture: np.ndarray) -> bytes:
    file = io.BytesIO()
    wide = Image.fromarray(picture).resize((WIDE, WIDE), Image.Resampling.BILINEAR)
    wide.save(file, "jpeg", quality=90)
    return file.getvalue()


def run(experiment: Experiment, rounds: int, report: Report) -> float:
    """One pass and eight, in turn; how many times as fast one is, without starts."""
    one: list[Pass] = []
    eight: list[Pass] = []
    for number in range(rounds):
        ways = [(one, [list(range(MODELS))]), (eight, [[model] for model in range(MODELS)])]
        for found, calls in ways if number % 2 == 0 else reversed(ways):
            found.append(passes(experiment, calls))
        check_same(one[-1], eight[-1])
    return tell(one, eight, report)


def passes(experiment: Experiment, calls: list[list[int]]) -> Pass:
    results, call_s, start_s = [], 0.0, 0.0
    for models in calls:
        began = time.perf_counter()
        found = experiment.run_predict(Jpegs(), models, BATCH, fresh=True, progress=False)
        call_s += time.perf_counter() - began
        start_s += Watched.take_start_s()
        results.append(found)
    return Pass(call_s, call_s - start_s, results)


def check_same(one: Pass, eight: Pass) -> None:
    """What each model says must not depend on who sees the rows with it."""
    together = one.results[0].columns()
    for model, result in enumerate(eight.results):
        alone = result.columns()
        if not np.array_equal(alone["class"], together[f"t{model:04d}.class"]):
            raise SystemExit(f"predict: model {model} says something else alone")
    said = {tuple(result.columns()["class"].tolist()) for result in eight.results}
    if len(said) < 2:
        raise SystemExit("predict: all models say the same, which shows nothing")


def tell(one: list[Pass], eight: list[Pass], report: Report) -> float:
    rows = one[0].results[0].rows
    print(f"\n{'predict':<14}{'work s':>9}{'call s':>9}{'rows/s':>11}")
    for name, found in (("one_pass", one), ("eight_passes", eight)):
        work_s = statistics.median(each.work_s for each in found)
        call_s = statistics.median(each.call_s for each in found)
        print(f"{name:<14}{work_s:>9.2f}{call_s:>9.2f}{rows * MODELS / work_s:>11.0f}")
        report.add(f"predict_{name}_s", work_s)
        report.add(f"predict_{name}_whole_s", call_s)
    gain = speedup([each.work_s for each in eight], [each.work_s for each in one])
    whole = speedup([each.call_s for each in eight], [each.call_s for each in one])
    print(f"one pass is {gain:.2f} times as fast, {whole:.2f} with starts", flush=True)
    report.add("predict_speedup_whole", whole)
    return gain
