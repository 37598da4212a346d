"""A whole sweep from a cold process to its leaderboard, against a script that trains in turn.

Run as a program it is that script: a few models one after the other in the eager loop.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.report import Report
from benchmarks.stacks_measure import state_bound
from cerebro import Result

TRIALS, EPOCHS = 1024, 3
#: On a CPU, where a thousand would take long.
FEW_TRIALS = 32
#: How many the script trains; its time is scaled to all.
SERIAL = 3
BATCH = 128
#: How far accuracies may be apart: rows come in another order.
TOLERANCE = 0.015
AIM_S = 10.0


def sweep(file: Path | None, device: str, report: Report) -> None:
    """Both as programs of their own, timed from start to exit."""
    trials = TRIALS if device == "cuda" else FEW_TRIALS
    print(f"sweep of {trials} models x {EPOCHS} epochs on {file or 'the digits'}", flush=True)
    with tempfile.TemporaryDirectory(prefix="cerebro-sweep-") as folder:
        told = {"trials": trials, "epochs": EPOCHS, "folder": folder, "data": file or ""}
        arguments = [f"--{name}={value}" for name, value in told.items()]
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
        environment = {**os.environ, **hidden}
        ours_s, said = _timed(["examples.thousand_models", *arguments], environment)
        print("\n".join(f"    {line}" for line in said.splitlines()[-14:]))
        result = Result.open(os.path.join(folder, "mlps"))
        report.add("sweep_run_makespan_s", float(result.summary["makespan_s"]))
        chosen = _choose(result)
        asked = json.dumps([params for params, _ in chosen])
        serial = ["benchmarks.stacks_sweep", device, str(file or ""), asked]
        script_s, line = _timed(serial, environment)
    found = json.loads(line.splitlines()[-1])
    for (params, ours), theirs in zip(chosen, found["accuracy"], strict=True):
        if not abs(ours - theirs) <= TOLERANCE:
            raise SystemExit(f"accuracy {ours:.4f}, in the eager loop {theirs:.4f}: {params}")
    each_s = statistics.fmean(found["seconds"])
    serial_s = script_s - sum(found["seconds"]) + trials * each_s
    print(f"  ours {ours_s:.1f} s; a serial eager script {serial_s:.0f} s", end="")
    print(f" (start-up + {trials} x {each_s:.3f} s, from {len(chosen)} models)")
    report.add("sweep_trials", trials)
    report.add("sweep_s", ours_s)
    report.add("sweep_serial_s", serial_s)
    if trials == TRIALS:
        state_bound("sweep_vs_serial", serial_s / ours_s, 40, None, report)
        print(f"  sweep_s: aim <= {AIM_S:g}, {'met' if ours_s <= AIM_S else 'missed'}")
    else:
        report.add("sweep_vs_serial", serial_s / ours_s)
        print(f"  {serial_s / ours_s:.1f}x; the bound is for {TRIALS} models on CUDA")


def _timed(program: Sequence[str], environment: Mapping[str, str]) -> tuple[float, str]:
    """Seconds from start to exit of a Python module, and what it printed."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", *program], env=environment, stdout=subprocess.PIPE, text=True
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{program[0]} failed:\n{done.stdout}")
    return seconds, done.stdout


def _choose(result: Result) -> list[tuple[dict[str, Any], float]]:
    """Params and final accuracy of some models: the best, and others of the better half.

    What is far from learned yet depends too much on how it began.
    """
    trials = {trial.id: trial for trial in result.trials}
    ranked = [trials[row["trial"]] for row in result.leaderboard() if row["rank"] is not None]
    if not ranked:
        raise SystemExit(f"no model was trained: {result.trials[0].error}")
    places = np.linspace(0, len(ranked) // 2, SERIAL).astype(int)
    return [
        (dict(ranked[at].params), result.history(ranked[at].id)[-1]["val_accuracy"])
        for at in places
    ]


def train_in_turn(device: str, file: str, models: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What people write without any system: one model after the other, scored every epoch."""
    torch.backends.cuda.matmul.allow_tf32 = True
    (x, y), (x_val, y_val) = (
        [torch.from_numpy(array).to(device) for array in split] for split in _load(file)
    )
    seconds, accuracies = [], []
    for params in models:
        began = time.perf_counter()
        model = nn.Sequential(nn.Linear(x.shape[1], 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
        numbers = {name: params[name] for name in ("lr", "momentum", "weight_decay")}
        optimizer = torch.optim.SGD(model.parameters(), **numbers)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(x), device=device).split(BATCH):
                inputs, labels = x.index_select(0, rows), y.index_select(0, rows)
                loss = nn.functional.cross_entropy(model(inputs.float() / 255), labels)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                correct = (model(x_val.float() / 255).argmax(1) == y_val).float().mean().item()
        seconds.append(time.perf_counter() - began)
        accuracies.append(correct)
    return {"seconds": seconds, "accuracy": accuracies}


def _load(file: str) -> list[tuple[np.ndarray, np.ndarray]]:
    from examples.thousand_models import load

    train, val = load(file)
    if val is None:
        cut = len(train["y"]) // 10
        train, val = (
            {name: column[part] for name, column in train.items()}
            for part in (slice(cut, None), slice(cut))
        )
    return [(split["x"], split["y"]) for split in (train, val)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(json.dumps(train_in_turn(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))))
