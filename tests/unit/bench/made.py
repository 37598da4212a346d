"""Measurements that were never taken, for what is made of them."""

from __future__ import annotations

import math
from typing import Any

from cerebro.bench.measurement import Measurement, NodeUse, Point
from cerebro.bench.sweep import Setting

ABOUT = {
    "file": "/job/mlp.yaml",
    "overrides": ["epochs=3"],
    "hosts": [],
    "machine": {
        "host": "here",
        "cores": 2,
        "processor": "Abacus <mk. 1>",
        "memory_bytes": 2**33,
        "system": "Linux",
        "python": "3.11",
    },
    "cerebro": "0.1.0",
}


def measured(
    setting: Setting, training_s: float = 10.0, *, communication: float = 0.0, **changes: Any
) -> Measurement:
    """A run of 100 steps in so many seconds, with this part of a step spent on communication."""
    steps = int(changes.pop("steps", 100))
    best = float(changes.pop("best", 0.9))
    # Of each epoch, as a part of the best.
    rise = changes.pop("rise", (1 / 3, 2 / 3, 1.0))
    losses = changes.pop("losses", (math.nan,) * len(rise))
    changes.setdefault("metric", "val_accuracy")
    return Measurement(
        setting=setting,
        is_done=True,
        completion_s=training_s + 5,
        training_s=training_s,
        startup_s=5.0,
        samples_per_s=6400 / training_s,
        steps=steps,
        parts={
            "data": 0.0,
            "compute": training_s * (1 - communication),
            "communication": training_s * communication,
            "hop": 0.0,
            "validation": 0.0,
            "other": 0.0,
        },
        curve=tuple(
            Point(epoch, training_s * (epoch + 1) / 3, 3200 * (epoch + 1), best * part, loss)
            for epoch, (part, loss) in enumerate(zip(rise, losses, strict=True))
        ),
        nodes=tuple(used(f"node {number}", training_s) for number in range(setting.nodes)),
        **changes,
    )


def used(name: str, seconds: float) -> NodeUse:
    times = tuple(float(second) for second in range(int(seconds) + 1))
    flat = {
        "cpu/tree": 90.0,
        "cpu/system": 95.0,
        "memory/tree_rss": 5e8,
        "memory/tree_pss": 3e8,
        "network/lo/out": 1e6,
    }
    return NodeUse(name, {what: (times, (value,) * len(times)) for what, value in flat.items()})


def failed(setting: Setting, error: str) -> Measurement:
    return Measurement(setting=setting, is_done=False, error=error)
