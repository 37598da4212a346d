"""GridSearch, RandomSearch and TPESearch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Unpack

from cerebro.config import arguments
from cerebro.estimators.options import Options
from cerebro.estimators.search import ModelSelection
from cerebro.storage import PrefixStore

Store = PrefixStore | str | os.PathLike[str]
Generator = Callable[[Any], object]
Validation = float | str | None


class GridSearch(ModelSelection):
    """Trains every combination of the listed values of a space.

    Args:
        backend: "local" (processes of this machine), "inline" (this process, for debugging), or a
            `SparkBackend`.
        store: Where data, models and logs are kept: `LocalStore`, `HDFSStore`, or a path or URL.
        estimator_gen_fn: A function that takes the params of a trial, a dict, and returns an
            estimator. It is called on workers as well.
        search_space: Param name -> domain: `hp_choice([...])`, or a list.
        num_epochs: How often a model sees every row.
        evaluation_metric: What ranks models: "loss", or one of the estimator's metrics. Whether
            more or less is better follows from well-known names; else `mode=` must say it. It is
            that of validation, of each model's best epoch.
        validation: A fraction of the rows, or the name of a column that is true (or above 0) for
            validation rows; None or 0 for none: then the loss of training ranks.
        label_columns: What shall be predicted.
        feature_columns: What models are shown.
        verbose: 0 shows nothing, 1 shows progress on terminals and in notebooks, 2 always.
        logdir: Where TensorBoard's files go, in `<run>/<trial>`; default the store's logs path.
        options: `seed`, `name`, `mode`, `workers`, `shards`, and whatever `Experiment.run_fit`
            takes: `stopper`, `goal`, `budget`, `seeds`, `folds`, `fresh`, ….

    >>> import tempfile, numpy as np
    >>> from torch import nn
    >>> from cerebro.torch import TorchEstimator
    >>> from cerebro.tune import GridSearch, hp_choice
    >>> def line(params):
    ...     model = nn.Linear(1, 1)
    ...     return TorchEstimator(model=model, optimizer="sgd", loss=params["loss"], batch_size=4)
    >>> x = np.linspace(-1, 1, 64).astype("float32")[:, None]
    >>> folder = tempfile.TemporaryDirectory()
    >>> search = GridSearch("inline", folder.name, line, {"loss": hp_choice(["mse", "mae"])}, 2)
    >>> result = search.fit({"features": x, "label": 2 * x[:, 0]})
    >>> len(result.get_all_models()), sorted(result.get_history())
    (2, ['train_loss', 'val_loss'])
    >>> result.transform({"features": x})["label__output"].shape
    (64,)
    >>> folder.cleanup()
    """

    search: ClassVar[str] = "grid"

    def __init__(
        self,
        backend: Any,
        store: Store,
        estimator_gen_fn: Generator,
        search_space: Mapping[str, object],
        num_epochs: int,
        evaluation_metric: str = "loss",
        validation: Validation = 0.25,
        label_columns: Sequence[str] = ("label",),
        feature_columns: Sequence[str] = ("features",),
        verbose: int = 1,
        logdir: str | os.PathLike[str] | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            backend=backend,
            store=store,
            estimator_gen_fn=estimator_gen_fn,
            search_space=search_space,
            num_models=None,
            num_epochs=num_epochs,
            evaluation_metric=evaluation_metric,
            validation=validation,
            label_columns=label_columns,
            feature_columns=feature_columns,
            verbose=verbose,
            logdir=logdir,
            options=options,
        )


class RandomSearch(ModelSelection):
    """Trains combinations drawn at random, each value independently of the others.

    The arguments are those of `GridSearch`, and `num_models`, how many are drawn.
    """

    search: ClassVar[str] = "random"

    def __init__(
        self,
        backend: Any,
        store: Store,
        estimator_gen_fn: Generator,
        search_space: Mapping[str, object],
        num_models: int,
        num_epochs: int,
        evaluation_metric: str = "loss",
        validation: Validation = 0.25,
        label_columns: Sequence[str] = ("label",),
        feature_columns: Sequence[str] = ("features",),
        verbose: int = 1,
        logdir: str | os.PathLike[str] | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            backend=backend,
            store=store,
            estimator_gen_fn=estimator_gen_fn,
            search_space=search_space,
            num_models=arguments.count("num_models", num_models),
            num_epochs=num_epochs,
            evaluation_metric=evaluation_metric,
            validation=validation,
            label_columns=label_columns,
            feature_columns=feature_columns,
            verbose=verbose,
            logdir=logdir,
            options=options,
        )


class TPESearch(ModelSelection):
    """Trains combinations that a tree of Parzen estimators (TPE) proposes, by what is known.

    It is also called `HyperOpt`.

    The arguments are those of `RandomSearch`, and `parallelism`: how many models are under way at
    once; default what keeps the workers busy. The fewer, the more each proposal is based on.
    """

    search: ClassVar[str] = "tpe"

    def __init__(
        self,
        backend: Any,
        store: Store,
        estimator_gen_fn: Generator,
        search_space: Mapping[str, object],
        num_models: int,
        num_epochs: int,
        evaluation_metric: str = "loss",
        validation: Validation = 0.25,
        label_columns: Sequence[str] = ("label",),
        feature_columns: Sequence[str] = ("features",),
        parallelism: int | None = None,
        verbose: int = 1,
        logdir: str | os.PathLike[str] | None = None,
        **options: Unpack[Options],
    ) -> None:
        if parallelism is not None:
            options["concurrent"] = arguments.count("parallelism", parallelism)
        super().__init__(
            backend=backend,
            store=store,
            estimator_gen_fn=estimator_gen_fn,
            search_space=search_space,
            num_models=arguments.count("num_models", num_models),
            num_epochs=num_epochs,
            evaluation_metric=evaluation_metric,
            validation=validation,
            label_columns=label_columns,
            feature_columns=feature_columns,
            verbose=verbose,
            logdir=logdir,
            options=options,
        )


#: The name that it has in older programs.
HyperOpt = TPESearch
