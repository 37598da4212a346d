"""What every framework that tests and predicts must do, as a suite of tests.

Subclass it in a test module, name the subclass `Test...`, and write the four methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cerebro.data import Dataset, Shard
from cerebro.task import ParamDict
from cerebro.testing.stack_contract import Memory
from cerebro.train.progress import PROGRESS
from cerebro.train.score.calls import MemberScore, ScoreCall, ScoreMode
from cerebro.train.visit import Framework, State, VisitCall
from cerebro.types import Json, Split


class ScoreContract:
    """Tests that hold for any framework.

    >>> class TestMyFramework(ScoreContract):
    ...     def make(self):
    ...         return MyFramework(MyTask(), device="cpu")
    >>> TestMyFramework.params
    {'lr': 0.1}
    """

    #: The params of a trial that learns.
    params: Mapping[str, Json] = {"lr": 0.1}
    batch_size = 8

    def make(self) -> Framework:
        """A fresh framework for a task with metrics and predictions, the same every time."""
        raise NotImplementedError("write make(self)")

    def dataset(self, directory: Path) -> Dataset:
        """A train split, and a test split of two shards with no multiple of 7 rows each."""
        raise NotImplementedError("write dataset(self, directory)")

    def means(self, model: object, shard: Shard) -> Mapping[str, float]:
        """The mean loss and metrics of a loaded model over all rows, computed by hand."""
        raise NotImplementedError("write means(self, model, shard)")

    def predicted(self, model: object, shard: Shard) -> Mapping[str, Any]:
        """What a loaded model predicts of all rows at once, computed by hand."""
        raise NotImplementedError("write predicted(self, model, shard)")

    def test_means_are_exact_over_batches_of_unequal_size(self, tmp_path: Path) -> None:
        framework, data = self.make(), self.dataset(tmp_path)
        (model,) = self._models(framework, data, 1)
        shard = data.open_shard(Split.TEST, 0)
        assert shard.rows % 7
        expected = self.means(model, shard)
        for size in (1, 7, shard.rows, 10 * shard.rows):
            (found,) = self._score(framework, ScoreMode.TEST, shard, [model], size)
            assert found.sums.keys() == expected.keys()
            for name, (total, rows) in found.sums.items():
                assert rows == shard.rows
                assert np.isclose(total / rows, expected[name], rtol=1e-5, atol=1e-7), name

    def test_predictions_come_in_the_order_of_the_rows(self, tmp_path: Path) -> None:
        framework, data = self.make(), self.dataset(tmp_path)
        (model,) = self._models(framework, data, 1)
        for number in range(2):
            shard = data.open_shard(Split.TEST, number)
            (found,) = self._score(framework, ScoreMode.PREDICT, shard, [model], 7)
            expected = self.predicted(model, shard)
            assert found.columns.keys() == expected.keys()
            for name, values in expected.items():
                assert np.allclose(found.columns[name], values, rtol=1e-5, atol=1e-6), name

    def test_no_model_depends_on_who_else_is_there(self, tmp_path: Path) -> None:
        framework, data = self.make(), self.dataset(tmp_path)
        models, shard = self._models(framework, data, 3), data.open_shard(Split.TEST, 0)
        for mode in ScoreMode:
            together = self._score(framework, mode, shard, models, 7)
            for model, found in zip(models, together, strict=True):
                (alone,) = self._score(framework, mode, shard, [model], 7)
                assert found.sums == alone.sums
                assert found.columns.keys() == alone.columns.keys()
                for name, values in alone.columns.items():
                    assert np.array_equal(found.columns[name], values)

    def test_each_batch_is_read_once_for_all_models(self, tmp_path: Path) -> None:
        framework, data = self.make(), self.dataset(tmp_path)
        models, shard = self._models(framework, data, 3), data.open_shard(Split.TEST, 0)
        before = PROGRESS.batches
        self._score(framework, ScoreMode.TEST, shard, models, 7)
        assert PROGRESS.batches - before == -(-shard.rows // 7)

    def test_the_same_call_gives_the_same(self, tmp_path: Path) -> None:
        framework, data = self.make(), self.dataset(tmp_path)
        models, shard = self._models(framework, data, 2), data.open_shard(Split.TEST, 1)
        one, other = (self._score(framework, ScoreMode.TEST, shard, models, 7) for _ in range(2))
        assert [found.sums for found in one] == [found.sums for found in other]

    def test_there_is_memory_for_models(self) -> None:
        assert self.make().memory_bytes() > 0

    def _score(
        self,
        framework: Framework,
        mode: ScoreMode,
        shard: Shard,
        models: Sequence[object],
        size: int,
    ) -> tuple[MemberScore, ...]:
        params = tuple(ParamDict(self.params) for _ in models)
        call = ScoreCall(mode=mode, params=params, batch_size=size)
        report = framework.score(call, shard, models)
        assert report.rows == shard.rows
        return report.members

    def _models(self, framework: Framework, data: Dataset, count: int) -> list[object]:
        """Models of different trials, each trained on one shard."""
        shard = data.open_shard(Split.TRAIN, 0)
        call = VisitCall(
            unit=0,
            trials=(0,),
            params=(ParamDict(self.params),),
            seed=0,
            epoch=0,
            step=0,
            steps=1,
            split=Split.TRAIN,
            shard=0,
            attempt=0,
            batch_size=self.batch_size,
        )
        states: list[State] = [
            framework.train(replace(call, trials=(trial,), unit=trial), shard, None, Memory())[0]
            for trial in range(count)
        ]
        return [framework.load(ParamDict(self.params), state) for state in states]
