"""A model selection on two executors: the second case of the Spark benchmark."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Report, speedup
from benchmarks.workload import Mlp, load_pictures
from cerebro import Experiment
from cerebro import data as cdata
from cerebro.backend import SparkBackend

EPOCHS, SHARDS, BATCH, HIDDEN = 2, 4, 128, 128
RATES = [0.002, 0.004, 0.006, 0.008, 0.01, 0.012, 0.016, 0.02]


def run(spark: Any, folder: Path, file: Path | None, rounds: int, report: Report) -> None:
    """Makespans."""
    x, y = load_pictures(file)
    cdata.from_arrays(folder / "pictures", train={"x": x, "y": y}, shards=SHARDS)
    sides = {"ours": _ours, "distributor": _distributor, "task_a_trial": _tasks}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, side in sides.items():
            began = time.perf_counter()
            side(spark, folder, number)
            seconds[name].append(time.perf_counter() - began)
    for name, each in seconds.items():
        median = statistics.median(each)
        print(f"search: {name} {median:.1f} s")
        report.add(f"search_{name}_s", median, 1)
    for name in ("distributor", "task_a_trial"):
        report.add(f"search_vs_{name}", speedup(seconds[name], seconds["ours"]))


def _ours(spark: Any, folder: Path, number: int) -> None:
    experiment = Experiment(
        name=f"search{number}",
        data=folder / "pictures",
        store=folder / "runs",
        backend=SparkBackend(spark, num_workers=2),
    )
    result = experiment.run_fit(
        Mlp(),
        {"lr": RATES, "weight_decay": 0.0, "hidden": HIDDEN},
        EPOCHS,
        batch_size=BATCH,
        stack=False,
        progress=False,
    )
    assert result.is_finished


def _distributor(spark: Any, folder: Path, number: int) -> None:
    from pyspark.ml.torch.distributor import TorchDistributor

    for rate in RATES:
        distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
        distributor.run(_train_together, str(folder / "pictures"), rate)


def _tasks(spark: Any, folder: Path, number: int) -> None:
    path = str(folder / "pictures")
    context = spark.sparkContext
    losses = context.parallelize(RATES, len(RATES)).map(lambda rate: _train(path, rate)).collect()
    assert np.isfinite(losses).all()


def _train(path: str, rate: float) -> float:
    """One trial over all the data, in a plain loop."""
    import torch

    torch.set_num_threads(1)
    model, optimizer = _network(rate)
    return _loop(model, optimizer, path, 0, 1)


def _train_together(path: str, rate: float) -> float:
    """The same trial in two processes, each with half of every batch."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    model, optimizer = _network(rate)
    together = DistributedDataParallel(model)
    loss = _loop(together, optimizer, path, dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()
    return loss


def _network(rate: float) -> tuple[Any, Any]:
    params = {"lr": rate, "weight_decay": 0.0, "hidden": HIDDEN}
    model = Mlp().model(params)
    return model, Mlp().optimizer(model, params)


def _loop(model: Any, optimizer: Any, path: str, rank: int, world: int) -> float:
    import torch

    loss = torch.tensor(0.0)
    for epoch in range(EPOCHS):
        for x, y in _batches(path, epoch, rank, world):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x.float() / 255), y)
            loss.backward()
            optimizer.step()
    return float(loss.detach())


def _batches(path: str, epoch: int, rank: int, world: int) -> Iterator[tuple[Any, Any]]:
    import torch

    dataset = cdata.open_dataset(path)
    for number in range(SHARDS):
        columns = dataset.open_shard("train", number).columns
        x, y = (torch.from_numpy(np.array(columns[name])) for name in ("x", "y"))
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH):
            part = batch[rank::world]
            yield x[part], y[part]
