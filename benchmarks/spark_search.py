"""A model selection on two executors: the second case of the Spark benchmark."""

from __future__ import annotations

import atexit
import datetime
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Report
from benchmarks.workload import Mlp, load_pictures
from cerebro import Experiment
from cerebro import data as cdata
from cerebro.backend import SparkBackend
from cerebro.backend.base import Job, Source
from cerebro.train.visit import VisitCall

EPOCHS, SHARDS, BATCH, HIDDEN = 2, 4, 128, 128
RATES = [0.002, 0.004, 0.006, 0.008, 0.01, 0.012, 0.016, 0.02]
#: How long a side may take, and a process may wait for the other one.
SIDE_S, PEER_S = 420.0, 60.0


class Counted(SparkBackend):
    """Notes which shards each worker opens; it keeps them mapped."""

    def __init__(self, spark: Any) -> None:
        super().__init__(spark, num_workers=2)
        self.opened: set[tuple[int, str, int]] = set()

    def submit(
        self, worker: int, call: VisitCall | Job, source: Source, *, consume: bool = False
    ) -> None:
        if isinstance(call, VisitCall):
            self.opened.add((worker, str(call.split), call.shard))
        super().submit(worker, call, source, consume=consume)


def run(spark: Any, folder: Path, file: Path | None, trials: int, report: Report) -> None:
    """Makespans, and bytes of shards that processes have read from files."""
    x, y = load_pictures(file)
    cdata.from_arrays(folder / "pictures", train={"x": x, "y": y}, shards=SHARDS)
    sides = {"ours": _ours, "distributor": _distributor, "task_a_trial": _tasks}
    seconds: dict[str, float] = {}
    for name, side in sides.items():
        began = time.perf_counter()
        read = bounded(spark, name, partial(side, spark, folder, RATES[:trials]))
        seconds[name] = time.perf_counter() - began
        print(f"search: {name} {seconds[name]:.1f} s, {read / 1e6:.1f} MB read", flush=True)
        report.add(f"search_{name}_s", seconds[name], 1)
        report.add(f"search_{name}_bytes_read", read)
    for name in ("distributor", "task_a_trial"):
        report.add(f"search_vs_{name}", seconds[name] / seconds["ours"])


def bounded(spark: Any, name: str, side: Callable[[], int]) -> int:
    """What a side gives, if it does in time; else its jobs are ended, and so is the benchmark."""
    from pyspark import InheritableThread

    told: list[int | BaseException] = []

    def work() -> None:
        try:
            told.append(side())
        except BaseException as error:
            told.append(error)

    thread: threading.Thread = InheritableThread(target=work, daemon=True)
    thread.start()
    thread.join(SIDE_S)
    if not told:
        spark.sparkContext.cancelAllJobs()
        thread.join(PEER_S)
        raise SystemExit(f"{name} must be through in {SIDE_S:.0f} s, but is not")
    if isinstance(told[0], BaseException):
        raise told[0]
    return told[0]


def _ours(spark: Any, folder: Path, rates: Sequence[float]) -> int:
    backend = Counted(spark)
    experiment = Experiment(
        name="search",
        data=folder / "pictures",
        store=folder / "runs",
        backend=backend,
    )
    result = experiment.run_fit(
        Mlp(),
        {"lr": list(rates), "weight_decay": 0.0, "hidden": HIDDEN},
        EPOCHS,
        batch_size=BATCH,
        stack=False,
        progress=False,
    )
    assert result.is_finished
    dataset = cdata.open_dataset(folder / "pictures")
    return sum(dataset.shards(split)[shard].bytes for _, split, shard in backend.opened)


def _distributor(spark: Any, folder: Path, rates: Sequence[float]) -> int:
    from pyspark.ml.torch.distributor import TorchDistributor

    read = 0
    for rate in rates:
        distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
        loss, bytes_read = distributor.run(_train_together, str(folder / "pictures"), rate)
        assert np.isfinite(loss)
        read += bytes_read
    return read


def _tasks(spark: Any, folder: Path, rates: Sequence[float]) -> int:
    path = str(folder / "pictures")
    context = spark.sparkContext
    told = context.parallelize(rates, len(rates)).map(lambda rate: _train(path, rate)).collect()
    assert np.isfinite([loss for loss, _ in told]).all()
    return sum(bytes_read for _, bytes_read in told)


def _train(path: str, rate: float) -> tuple[float, int]:
    """One trial over all the data, in a plain loop."""
    import torch

    torch.set_num_threads(1)
    model, optimizer = _network(rate)
    return _loop(model, optimizer, path, 0, 1), _bytes_of(path)


def _train_together(path: str, rate: float) -> tuple[float, int]:
    """The same trial in two processes, each with half of every batch."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=PEER_S))
    world = dist.get_world_size()
    model, optimizer = _network(rate)
    together = DistributedDataParallel(model)
    loss = _loop(together, optimizer, path, dist.get_rank(), world)
    # Nobody leaves while the other one still listens, and what holds threads goes first.
    dist.barrier()
    del together
    dist.destroy_process_group()
    atexit.register(_leave)
    return loss, world * _bytes_of(path)


def _leave() -> None:
    """End at once: threads of torch's own store may outlive Python, which then aborts."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _bytes_of(path: str) -> int:
    """All shards: a process maps each of them once."""
    return sum(info.bytes for info in cdata.open_dataset(path).shards("train"))


def _network(rate: float) -> tuple[Any, Any]:
    params = {"lr": rate, "weight_decay": 0.0, "hidden": HIDDEN}
    model = Mlp().model(params)
    return model, Mlp().optimizer(model, params)


def _loop(model: Any, optimizer: Any, path: str, rank: int, world: int) -> float:
    import torch

    loss = torch.tensor(0.0)
    dataset = cdata.open_dataset(path)
    for epoch in range(EPOCHS):
        for x, y in _batches(dataset, epoch, rank, world):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x.float() / 255), y)
            loss.backward()
            optimizer.step()
    return float(loss.detach())


def _batches(
    dataset: cdata.Dataset, epoch: int, rank: int, world: int
) -> Iterator[tuple[Any, Any]]:
    import torch

    for number in range(SHARDS):
        columns = dataset.open_shard("train", number).columns
        x, y = (torch.from_numpy(np.array(columns[name])) for name in ("x", "y"))
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH):
            part = batch[rank::world]
            yield x[part], y[part]
