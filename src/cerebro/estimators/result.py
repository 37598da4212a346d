"""ModelSelectionResult: what a search found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from cerebro.data.tabular import Frame
from cerebro.estimators.history import Histories, History, history_of
from cerebro.estimators.models import CerebroModel
from cerebro.result_rows import TrialResult
from cerebro.results import Result


class ModelSelectionResult:
    """The models of a search, the best first of all; used like the best model itself.

    Models are those of their best epoch, by the metric of the search. They are loaded when they
    are first used.

    Args:
        run: The run behind it, which has more: `run.leaderboard()`, `run.trials`, `run.path`.
        make_model: Gives the model of a trial.
    """

    def __init__(self, run: Result, make_model: Callable[[TrialResult, History], CerebroModel]):
        self.run = run
        self._make_model = make_model

    def set_output_columns(self, columns: Sequence[str]) -> ModelSelectionResult:
        """Name the columns that `transform` adds, of all models; returns the result."""
        for model in self._models.values():
            model.set_output_columns(columns)
        return self

    def transform(self, frame: Frame) -> Frame:
        """A table with the best model's predictions added; see `CerebroModel.transform`."""
        return self.get_best_model().transform(frame)

    def keras(self) -> Any:
        """The best model as a plain Keras model."""
        return self.get_best_model().keras()

    def torch(self) -> Any:
        """The best model as a plain `nn.Module`."""
        return self.get_best_model().torch()

    def get_best_model(self) -> CerebroModel:
        """The model of the best trial; an error with the causes if all have failed."""
        return self._models[self.run.best.id]

    def get_history(self) -> History:
        """How the best model was trained: metric -> its value in each epoch."""
        return self._histories[self.run.best.id]

    get_best_model_history = get_history

    def get_all_models(self) -> list[CerebroModel]:
        """The models of all trials that finished an epoch, in the order of their numbers."""
        return list(self._models.values())

    def get_all_model_history(self) -> Histories:
        """The histories of all trials, by run id, and by number."""
        return self._histories

    @cached_property
    def _histories(self) -> Histories:
        return Histories({t.id: history_of(self.run.history(t.id)) for t in self.run.trials})

    @cached_property
    def _models(self) -> dict[str, CerebroModel]:
        return {
            trial.id: self._make_model(trial, self._histories[trial.id])
            for trial in self.run.trials
            if trial.epoch is not None
        }

    def __repr__(self) -> str:
        return f"ModelSelectionResult({self.run!r})"

    def _repr_html_(self) -> str:
        return self.run._repr_html_()
