"""ModelSelection: one run over what an estimator_gen_fn makes."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from cerebro.config import arguments
from cerebro.config.resolve import BACKENDS, backend_reference, load_reference
from cerebro.data import Dataset
from cerebro.data.tabular import check_validation
from cerebro.data.use import in_use
from cerebro.errors import UsageError
from cerebro.estimators.dropped import OF_SEARCHES, refuse
from cerebro.estimators.estimator import DEFAULT_BATCH_SIZE, Estimator
from cerebro.estimators.generation import Generation
from cerebro.estimators.history import History
from cerebro.estimators.kinds import task_of, trained
from cerebro.estimators.metric import known_names, ranked_by
from cerebro.estimators.models import CerebroModel, model_class
from cerebro.estimators.options import OF_EXPERIMENT, OF_FIT, Options, deciding, of
from cerebro.estimators.preparation import Ground, Source, prepare, prepared
from cerebro.estimators.result import ModelSelectionResult
from cerebro.estimators.tryout import try_out
from cerebro.experiment import Experiment
from cerebro.result_rows import TrialResult
from cerebro.search.space import parse_space
from cerebro.search.wording import show
from cerebro.storage import PrefixStore

#: What `verbose` means for `Experiment.run_fit`.
_PROGRESS: Mapping[int, bool | None] = {0: False, 1: None, 2: True}


class ModelSelection:
    """What all search classes can do: prepare data, train what a space says, give back models.

    It is not made by itself: `GridSearch`, `RandomSearch` and `TPESearch` are, and say what its
    arguments mean.
    """

    #: The name of the search in `Experiment.run_fit`.
    search: ClassVar[str]

    def __init__(
        self,
        *,
        backend: Any,
        store: PrefixStore | str | os.PathLike[str],
        estimator_gen_fn: Callable[[Any], object],
        search_space: Mapping[str, object],
        num_models: int | None,
        num_epochs: int,
        evaluation_metric: str,
        validation: float | str | None,
        label_columns: Sequence[str],
        feature_columns: Sequence[str],
        verbose: int,
        logdir: str | os.PathLike[str] | None,
        options: Options,
    ) -> None:
        refuse(
            type(self).__name__,
            [name for name in options if name not in Options.__annotations__],
            instead=OF_SEARCHES,
            known=[name for name in _parameters(self) if name != "options"],
        )
        # One that belongs to a cluster: it prepares data too.
        self.backend = _cluster(backend) if backend == "spark" else backend
        self.store = _store(store)
        self.search_space = parse_space(search_space)
        self.num_models = arguments.optional_count("num_models", num_models)
        self.num_epochs = arguments.count("num_epochs", num_epochs)
        self.evaluation_metric = evaluation_metric
        self.validation = check_validation(validation)
        self.label_columns = _names("label_columns", label_columns)
        self.feature_columns = _names("feature_columns", feature_columns)
        self.verbose = _verbose(verbose)
        self.logdir = logdir
        self._generation = Generation(estimator_gen_fn, self.feature_columns, self.label_columns)
        self._options = options

    def fit(self, df: object) -> ModelSelectionResult:
        """Prepare a table, train, and rank. Called again with the same, it goes on, or is done.

        Args:
            df: A Spark DataFrame with a SparkBackend; else a pandas or polars DataFrame, an Arrow
                table, or a dict of arrays by name.
        """
        estimator = try_out(self.search_space, self._generation)
        return self._select(estimator, prepare(self._ground(estimator), df))

    def fit_on_prepared_data(self) -> ModelSelectionResult:
        """Train on what `backend.prepare_data` or an earlier `fit` has put into the store.

        Plain Parquet files at the store's train and val paths are taken as well.
        """
        estimator = try_out(self.search_space, self._generation)
        return self._select(estimator, prepared(self._ground(estimator)))

    def fit_on_parquet(self, path: str | os.PathLike[str] | None = None) -> ModelSelectionResult:
        """Train on plain Parquet files: at the store's train and val paths, or at `path`.

        What is at `path` is divided as `validation` says.
        """
        estimator = try_out(self.search_space, self._generation)
        source = Source.of_store(self.store) if path is None else Source(os.fspath(path))
        return self._select(estimator, prepare(self._ground(estimator), source))

    def _ground(self, estimator: Estimator) -> Ground:
        weights = [estimator.sample_weight_col] if estimator.sample_weight_col else []
        options = self._options
        return Ground(
            backend=self.backend,
            store=self.store,
            features=(*self.feature_columns, *weights),
            labels=self.label_columns,
            validation=None if "folds" in options else self.validation,
            shards=options.get("shards", options.get("num_partitions")),
            seed=arguments.seed_of(options.get("seed", 0)),
            compress_sparse=options.get("compress_sparse", False),
        )

    def _select(self, estimator: Estimator, dataset: Dataset) -> ModelSelectionResult:
        options = self._options
        has_validation = bool(dataset.shards("val")) or "folds" in options
        metric, mode = ranked_by(
            self.evaluation_metric,
            options.get("mode"),
            known=known_names(estimator.metrics),
            has_validation=has_validation,
        )
        name = options.get("name") or self._name(dataset, metric, mode)
        experiment = Experiment(
            name=name,
            data=dataset.path,
            store=self.store.get_runs_path(),
            backend=self.backend,
            **of(options, OF_EXPERIMENT),
        )
        with in_use(dataset):
            run = experiment.run_fit(
                task_of(estimator.kind, self._generation),
                self.search_space,
                self.num_epochs,
                metric=metric,
                mode=mode,
                search=self.search,
                num_trials=self.num_models,
                batch_size=None if "batch_size" in self.search_space else DEFAULT_BATCH_SIZE,
                stack=False,
                progress=_PROGRESS[self.verbose],
                logdir=self.store.get_logs_path() if self.logdir is None else self.logdir,
                **of(options, OF_FIT),
            )

        def make_model(trial: TrialResult, history: History) -> CerebroModel:
            return model_class(self.backend)(
                lambda: trained(estimator.kind, run.load(trial.id), self._generation, trial.params),
                run_id=trial.id,
                params=trial.params,
                history=history,
                label_columns=self.label_columns,
            )

        return ModelSelectionResult(run, make_model)

    def _name(self, dataset: Dataset, metric: str, mode: str) -> str:
        """One for each search: what decides results is in it, so that the same one goes on."""
        told: dict[str, object] = {
            "data": dataset.digest,
            "space": self.search_space.to_json(),
            "models": self.num_models,
            "epochs": self.num_epochs,
            "metric": [metric, mode],
            "columns": [self.feature_columns, self.label_columns],
            "code": self._generation.code,
            "options": deciding(self._options),
        }
        text = json.dumps(told, sort_keys=True, default=lambda value: type(value).__qualname__)
        return f"{self.search}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _cluster(name: str) -> Any:
    return load_reference(backend_reference(name), BACKENDS[name].hint)()  # type: ignore[operator]


def _parameters(search: ModelSelection) -> list[str]:
    return [*inspect.signature(type(search)).parameters, *Options.__annotations__]


def _store(store: object) -> PrefixStore:
    if isinstance(store, PrefixStore):
        return store
    if not isinstance(store, str | os.PathLike):
        raise UsageError(
            "store must be a LocalStore, an HDFSStore, or a path or URL such as 's3://bucket/runs',"
            f" but got {show(store)}."
        )
    return PrefixStore.create(store)


def _verbose(verbose: object) -> int:
    if not isinstance(verbose, int) or verbose not in _PROGRESS:
        raise UsageError(f"verbose must be 0, 1 or 2, but got {show(verbose)}.")
    return verbose


def _names(argument: str, names: object) -> tuple[str, ...]:
    listed = [names] if isinstance(names, str) else names
    if (
        not isinstance(listed, list | tuple)
        or not listed
        or not all(isinstance(name, str) for name in listed)
        or len(set(listed)) < len(listed)
    ):
        raise UsageError(
            f"{argument} must be a list of different column names, but got {show(names)}."
        )
    return tuple(listed)
