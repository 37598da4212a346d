"""The race on CPUs: a recipe to its target with `cerebro run`, and plain scripts beside it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.environment import ROOT
from benchmarks.race_script import Work
from benchmarks.report import Report
from benchmarks.workload import load_weights
from cerebro import Result, zoo
from cerebro import data as cdata
from cerebro.config.files import load_file
from cerebro.config.recipe import RecipeExperiment
from cerebro.zoo.pictures import as_floats

PROCESSES = 2
#: Nodes that are processes of this machine.
SIMULATED = 3
TIMEOUT_S = 400.0
#: What evaluations in float32 and in bfloat16 may differ by.
ROUNDING = 0.003
#: As handed out: six hidden layers and plain SGD; and the tutorial's network with Adam.
MLP6 = {"model": {"name": "mlp6"}, "optimizer": "SGD", "options": {}}
HANDED_OUT: Mapping[str, Mapping[str, Any]] = {
    "mnist": {**MLP6, "phases": [(10, 1e-2), (10, 1e-3), (20, 1e-4)]},
    "cifar10": {
        "model": {"name": "cnn", "dropout": 0.1},
        "optimizer": "Adam",
        "options": {},
        "phases": [(24, 1e-3)],
        "shift": 0.1,
        "flip": True,
    },
}
HANDED_OUT_BATCH = 64
AS_HANDED_OUT = "script, as handed out"
#: Races by the recipe of another, whose pictures theirs are like.
RECIPES = {"digits": "mnist"}


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one side; seconds from the start of its process to its exit."""

    wall_s: float
    #: From the first step to the last validation.
    training_s: float
    epochs: int
    #: As it was told, and by the saved weights.
    accuracy: float
    judged: float

    @property
    def startup_s(self) -> float:
        return self.wall_s - self.training_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """A recipe of `configs/`, its data, and how long others may take."""

    name: str
    folder: Path
    #: Changes of the recipe, all of its command line.
    overrides: tuple[str, ...]
    #: Of the script as it is handed out.
    limit_s: float
    #: Of those that are over soon.
    rounds: int

    def config(self) -> RecipeExperiment:
        found = load_file(self.file, [*self.overrides, f"output_dir={self.folder}/unused"])
        if not isinstance(found, RecipeExperiment):
            raise SystemExit(f"{self.file} is no recipe")
        return found

    @property
    def recipe(self) -> str:
        return RECIPES.get(self.name, self.name)

    @property
    def file(self) -> Path:
        return ROOT / "configs" / f"race_{self.recipe}.yaml"


def race(case: Race, report: Report) -> None:
    """All sides of one race, in turns."""
    began = time.perf_counter()
    config = case.config().prepare(lambda text: None)
    prepared_s = time.perf_counter() - began
    arrays = _arrays(config.data)
    np.savez(case.folder / "data.npz", allow_pickle=False, **arrays)
    target = float((config.goal or {})["target"])
    print(f"{case.name}: to {target:.0%}; {len(arrays['y_train'])} rows, prepared", end=" ")
    print(f"in {prepared_s:.1f} s, once", flush=True)
    referee = Referee(config, arrays)
    own, handed_out = works_of(case, config)
    found: dict[str, list[Run]] = {}
    for number in range(case.rounds):
        turns = {
            "ours": lambda: run_ours(case, referee),
            "script, our recipe": lambda: run_script(case, own, referee),
        }
        for side in turns if number % 2 else reversed(turns):
            found.setdefault(side, []).append(turns[side]())
    nodes = f"ours, {SIMULATED} nodes (simulated)"
    found[nodes] = [run_ours(case, referee, nodes=SIMULATED)]
    # As many rows a step as ours, or one or two more: no more steps than ours.
    each = replace(own, batch_size=-(-own.batch_size * PROCESSES // SIMULATED))
    script_nodes = f"script, our recipe, {SIMULATED} nodes (simulated)"
    found[script_nodes] = [run_script(case, each, referee, nodes=SIMULATED, procs=1)]
    found[AS_HANDED_OUT] = [run_script(case, handed_out, referee)]
    tell(case, target, found, report)


def tell(case: Race, target: float, found: Mapping[str, Sequence[Run]], report: Report) -> None:
    """A table, medians, and how many times longer than ours the others took."""
    print(f"  {'side':<40}{'to target s':>12}{'start-up s':>12}{'epochs':>8}", end="")
    print(f"{'told':>8}{'judged':>8}{'times ours':>12}")
    ours_s = statistics.median(run.wall_s for run in found["ours"])
    report.add(f"{case.name}_load", os.getloadavg()[0])
    for side, runs in found.items():
        wall_s = statistics.median(run.wall_s for run in runs)
        startup_s = statistics.median(run.startup_s for run in runs)
        last = runs[-1]
        is_there = all(run.accuracy >= target for run in runs)
        shown = f"{wall_s:.1f}" if is_there else f"> {wall_s:.1f}"
        print(f"  {side:<40}{shown:>12}{startup_s:>12.1f}{last.epochs:>8}", end="")
        print(f"{last.accuracy:>8.4f}{last.judged:>8.4f}{wall_s / ours_s:>11.2f}x", flush=True)
        key = key_of(case.name, side)
        report.add(f"{key}_s", wall_s, 2)
        report.add(f"{key}_startup_s", startup_s, 2)
        report.add(f"{key}_reached", is_there)
        # Who trains by the same recipe must learn the same.
        bound = None if side == AS_HANDED_OUT else target - ROUNDING
        judged = min(run.judged for run in runs)
        report.gate(f"{key}_judged", judged, at_least=bound, digits=4)
        if side != "ours":
            report.add(f"{key}_times_ours", wall_s / ours_s, 2)


def key_of(name: str, side: str) -> str:
    """What a side is called in JSON.

    >>> key_of("mnist", "script, our recipe, 3 nodes (simulated)")
    'mnist_script_our_recipe_3_nodes_simulated'
    """
    words = "".join(letter if letter.isalnum() else " " for letter in side).split()
    return "_".join((name, *words))


class Referee:
    """Judges models by the validation pictures, in float32, whoever trained them."""

    def __init__(self, config: RecipeExperiment, arrays: Mapping[str, np.ndarray]) -> None:
        self._x, self._y = (torch.from_numpy(arrays[name]) for name in ("x_val", "y_val"))
        params = {name: domain.nth(0) for name, domain in config.space.items()}
        self.preprocess = params.get("data.preprocess", "unit")

    def judge(self, model: nn.Module, preprocess: object) -> float:
        model.eval()
        right = 0
        with torch.no_grad():
            for x, y in zip(self._x.split(1000), self._y.split(1000), strict=True):
                right += int((model(as_floats(x, preprocess)).argmax(1) == y).sum())
        return right / len(self._y)


def works_of(case: Race, config: RecipeExperiment) -> tuple[Work, Work]:
    """What the script is asked to do: our recipe, and the one that it is handed out with."""
    recipe = config.recipe.model_dump()
    shape = {key: recipe["model"][key] for key in ("input_shape", "n_classes")}
    handed_out = dict(HANDED_OUT[case.recipe])
    common: dict[str, Any] = {
        "data": str(case.folder / "data.npz"),
        "target": float((config.goal or {})["target"]),
    }
    own = Work(
        **common,
        out=str(case.folder / "own"),
        **_own(recipe),
    )
    theirs = Work(
        **common,
        **{**handed_out, "model": {**handed_out["model"], **shape}},
        out=str(case.folder / "handed-out"),
        batch_size=HANDED_OUT_BATCH,
        limit_s=case.limit_s,
    )
    return own, theirs


def _own(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe in the script's words."""
    optimizer, training = dict(recipe["optimizer"]), recipe["training"]
    model = {key: value for key, value in recipe["model"].items() if value is not None}
    schedule = training["lr_schedule"]
    augment = recipe["data"]["augment"]
    augment = augment if isinstance(augment, Mapping) else {}
    standard = recipe["data"]["preprocess"]
    standard = standard if isinstance(standard, Mapping) else {}
    epochs = int(training["n_epochs"])
    name, lr = optimizer.pop("name"), float(optimizer.pop("lr"))
    optimizer.pop("lr_scaling", None)
    return {
        "model": model,
        "optimizer": name,
        "options": {key: value for key, value in optimizer.items() if value is not None},
        "batch_size": training["global_batch_size"] // PROCESSES,
        "phases": [(epochs, lr)],
        "floor": float(schedule.get("floor", 0.0)),
        "end_epoch": float(schedule.get("end_epoch") or epochs),
        "shift": float(augment.get("shift", 0.0)),
        "flip": bool(augment.get("flip", False)),
        "mean": list(standard.get("mean", ())),
        "std": list(standard.get("std", ())),
        "is_short": training["amp"] == "bf16",
    }


_NUMBERS = itertools.count()


def run_ours(case: Race, referee: Referee, *, nodes: int = 1) -> Run:
    """`cerebro run`, on this machine or as nodes on it."""
    out = case.folder / f"ours-{next(_NUMBERS)}"
    wall_s = _time(commands_of(case, out, nodes))
    result = Result.open(out)
    accuracies = [float(epoch["val_accuracy"]) for epoch in result.history(0)]
    judged = referee.judge(result.load(0, which="final"), referee.preprocess)
    training_s = float(result.summary["makespan_s"])
    return Run(wall_s, training_s, len(accuracies), accuracies[-1], judged)


def commands_of(case: Race, out: Path, nodes: int) -> list[list[str]]:
    """What starts ours: as many processes as the script has, or one on each node."""
    command = [sys.executable, "-m", "cerebro", "run", str(case.file), *case.overrides]
    command += [f"output_dir={out}", "--quiet"]
    if nodes == 1:
        return [[*command, f"workers={PROCESSES}"]]
    command += ["-n", str(nodes), "-np", "1", "--master", f"127.0.0.1:{_free_port()}"]
    return [[*command, "-nr", str(node)] for node in range(nodes)]


def run_script(
    case: Race, work: Work, referee: Referee, *, nodes: int = 1, procs: int = PROCESSES
) -> Run:
    """The plain script, in as many processes."""
    work = replace(work, master=f"127.0.0.1:{_free_port()}")
    file = case.folder / "work.json"
    work.save(file)
    command = [sys.executable, "-m", "benchmarks.race_script", str(file)]
    command += ["-n", str(nodes), "-np", str(procs)]
    wall_s = _time([[*command, "-nr", str(node)] for node in range(nodes)])
    told = json.loads(Path(f"{work.out}.json").read_text())
    model = zoo.build(**work.model)
    weights = load_weights(f"{work.out}.npz")
    model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    standard = {"mean": work.mean, "std": work.std} if work.mean else "unit"
    judged = referee.judge(model, standard)
    return Run(wall_s, told["training_s"], len(told["accuracies"]), max(told["accuracies"]), judged)


def _time(commands: Sequence[Sequence[str]]) -> float:
    """Seconds from the start of the first to the exit of the last."""
    began = time.perf_counter()
    with _started(commands) as processes:
        for process in processes:
            try:
                output, _ = process.communicate(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                raise SystemExit(f"{commands[0]} took more than {TIMEOUT_S:g} s") from None
            if process.returncode:
                raise SystemExit(f"{' '.join(process.args)} failed:\n{output[-2000:]}")  # type: ignore[arg-type]
    return time.perf_counter() - began


@contextlib.contextmanager
def _started(commands: Sequence[Sequence[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Programs that end with the block, whatever happens."""
    processes: list[subprocess.Popen[str]] = []
    try:
        for command in commands:
            processes.append(
                subprocess.Popen(
                    command,
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
            process.communicate()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _arrays(path: str) -> dict[str, np.ndarray]:
    """All rows of a prepared data set."""
    dataset = cdata.open_dataset(path)
    found: dict[str, np.ndarray] = {}
    for split in ("train", "val"):
        shards = [dataset.open_shard(split, n) for n in range(len(dataset.shards(split)))]
        for name in ("x", "y"):
            found[f"{name}_{split}"] = np.concatenate([shard.columns[name] for shard in shards])
    return found
