"""Visits of Keras trials, one after another, for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cerebro.data import Dataset
from cerebro.task import ParamDict
from cerebro.testing.stack_contract import Memory
from cerebro.train.keras.compiled import Compiled
from cerebro.train.keras.framework import KerasFramework
from cerebro.train.keras.task import KerasTask
from cerebro.train.visit import State, VisitCall, VisitReport
from cerebro.types import Split


def make(build: Any) -> KerasFramework:
    return KerasFramework(KerasTask(build), device="cpu")


def call_of(visit: int, **changes: Any) -> VisitCall:
    """A visit in epochs of two shards each."""
    epoch, step = divmod(visit, 2)
    call = VisitCall(
        unit=0,
        trials=(0,),
        params=(ParamDict(lr=0.01),),
        seed=0,
        epoch=epoch,
        step=step,
        steps=2,
        split=Split.TRAIN,
        shard=(epoch + step) % 2,
        attempt=0,
        batch_size=8,
    )
    return replace(call, **changes)


def train(
    framework: KerasFramework, data: Dataset, visits: int, **changes: Any
) -> tuple[State, list[VisitReport]]:
    """The state after so many visits, and what was reported."""
    state: State | None = None
    reports = []
    for visit in range(visits):
        call = call_of(visit, **changes)
        shard = data.open_shard(Split.TRAIN, call.shard)
        state, report = framework.train(call, shard, state, Memory())
        reports.append(report)
    assert state is not None
    return state, reports


def evaluate(
    framework: KerasFramework, data: Dataset, state: State, shard: int = 0, **changes: Any
) -> dict[str, float]:
    """Means over a validation shard."""
    call = call_of(0, split=Split.VAL, shard=shard, **changes)
    report = framework.evaluate(call, data.open_shard(Split.VAL, shard), state)
    return {name: total / rows for name, (total, rows) in report.members[0].sums.items()}


def line(**changes: Any) -> Any:
    """A function that builds a linear model of "x", with these changes to what is compiled."""

    def build(params: Any) -> Compiled:
        import keras

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        given = {name: value(keras) for name, value in changes.items()}
        return Compiled(
            **{
                "model": model,
                "optimizer": keras.optimizers.SGD(params["lr"]),
                "loss": "mse",
                **given,
            }
        )

    return build
