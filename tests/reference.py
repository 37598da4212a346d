"""What trials must have learnt: each trained alone, by hand, from what the journal says it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cerebro.data import open_dataset
from cerebro.mop import shard_at
from cerebro.run.spec import RunSpec
from cerebro.testing.toy import ToyFramework, ToyTask
from cerebro.train.visit import State, VisitCall
from cerebro.types import Split


class Reference:
    """The trials of a toy run, without a driver, stacks, checkpoints or anything that fails."""

    def __init__(self, spec: RunSpec, records: Iterable[Mapping[str, Any]]) -> None:
        self._spec = spec
        self._data = open_dataset(spec.data)
        self._framework = ToyFramework(ToyTask())
        self._trials: dict[int, Mapping[str, Any]] = {}
        self._starts: dict[int, int] = {}
        self._states: dict[tuple[int, int], State | None] = {}
        self._losses: dict[tuple[int, int], float] = {}
        for record in records:
            if record["type"] == "trial":
                self._trials[record["trial"]] = record
                self._starts[record["trial"]] = record["start"]
            for stack in record.get("stacks", []) if record["type"] == "stacks" else []:
                self._starts |= dict.fromkeys(stack["trials"], stack["start"])

    def val_loss(self, trial: int, epoch: int) -> float:
        """The validation loss of a trial after so many epochs and one."""
        visits = (epoch + 1) * self._spec.train_shards
        trial = self._owner(trial, visits)
        if (trial, epoch) not in self._losses:
            state = self._state(trial, visits)
            assert state is not None
            total, rows = 0.0, 0
            for shard in range(self._spec.val_shards):
                call = self._call(trial, epoch, shard, Split.VAL, shard)
                found = self._data.open_shard(Split.VAL, shard)
                loss, count = self._framework.evaluate(call, found, state).members[0].sums["loss"]
                total, rows = total + loss, rows + count
            self._losses[trial, epoch] = total / rows
        return self._losses[trial, epoch]

    def _owner(self, trial: int, visits: int) -> int:
        """Whose training led to a trial's state after so many visits."""
        record = self._trials[trial]
        if record.get("parent") is not None and visits <= record["visits"]:
            return self._owner(record["parent"], visits)
        return trial

    def _state(self, trial: int, visits: int) -> State | None:
        trial = self._owner(trial, visits)
        if visits == 0:
            return None
        if (trial, visits) not in self._states:
            epoch, step = divmod(visits - 1, self._spec.train_shards)
            shard = shard_at(self._starts[trial], epoch, step, self._spec.train_shards)
            call = self._call(trial, epoch, step, Split.TRAIN, shard)
            before = self._state(trial, visits - 1)
            found = self._data.open_shard(Split.TRAIN, shard)
            self._states[trial, visits], _ = self._framework.train(call, found, before, _allocate)
        return self._states[trial, visits]

    def _call(self, trial: int, epoch: int, step: int, split: Split, shard: int) -> VisitCall:
        params = {**self._trials[trial]["params"], "fail": None}
        return VisitCall(
            unit=trial,
            trials=(trial,),
            params=(params,),
            seed=self._spec.seed,
            epoch=epoch,
            step=step,
            steps=self._spec.train_shards,
            split=split,
            shard=shard,
            attempt=0,
            batch_size=self._spec.batch_size_of(params),
        )


def _allocate(size: int) -> memoryview:
    return memoryview(bytearray(size))
