"""Arguments that are not there: what to use in their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cerebro.errors import UsageError
from cerebro.search.wording import unknown

#: Of estimators, as earlier versions and similar libraries have them.
OF_ESTIMATORS: Mapping[str, str] = {
    "backend": "it is an argument of the search class",
    "epochs": "num_epochs of the search class says how often rows are seen",
    "feature_cols": "feature_columns of the search class names them",
    "feature_columns": "they are an argument of the search class",
    "label_cols": "label_columns of the search class names them",
    "label_columns": "they are an argument of the search class",
    "num_proc": "num_workers of the backend says how many",
    "run_id": "the search numbers its trials; result.get_best_model().run_id tells",
    "sample_weight": "sample_weight_col names a column of weights",
    "shuffle": "rows are shuffled in every visit",
    "shuffle_buffer_size": "rows are shuffled in every visit, all of a shard: leave it out",
    "shuffling_buffer_size": "rows are shuffled in every visit, all of a shard: leave it out",
    "store": "it is an argument of the search class",
    "train_steps_per_epoch": "an epoch is all rows",
    "validation": "it is an argument of the search class",
    "validation_steps_per_epoch": "all validation rows are looked at",
    "verbose": "it is an argument of the search class",
}

#: Of estimators of PyTorch models, which others have.
OF_TORCH: Mapping[str, str] = {
    **OF_ESTIMATORS,
    "callbacks": "a scheduler= changes learning rates, a stopper= of the search class ends trials",
    "custom_objects": "estimator_gen_fn is the code of the model, and CerebroModel.load takes it",
    "loss_weights": "give a loss= of your own that weighs its parts",
}

#: Of search classes.
OF_SEARCHES: Mapping[str, str] = {
    "algo": "TPESearch, RandomSearch and GridSearch are classes",
    "batch_size": "it is an argument of the estimator",
    "disk_cache_size_gb": "shards are mapped from where they lie: leave it out",
    "execution": "it is called backend",
    "feature_column": "feature_columns takes a list of names",
    "label_column": "label_columns takes a list of names",
    "max_evals": "num_models says how many",
    "metric": "it is called evaluation_metric",
    "num_models": "a grid tries all, RandomSearch and TPESearch take so many",
    "num_trials": "num_models says how many; a grid tries all",
    "parallelism": "concurrent= says how many models are under way at once",
    "param_grid": "it is called search_space",
    "stack": "estimators are trained one by one: describe the model as a cerebro.Task to stack it",
    "storage": "it is called store",
    "trainer_gen_fn": "it is called estimator_gen_fn",
    "transformation_fn": "it is an argument of the estimator",
}


def refuse(
    who: str, given: Iterable[str], *, instead: Mapping[str, str], known: Iterable[str]
) -> None:
    """Raise for the first argument that is not one.

    >>> refuse("SparkEstimator", ["epochs"], instead=OF_ESTIMATORS, known=["model"])
    Traceback (most recent call last):
    cerebro.errors.UsageError: SparkEstimator takes no epochs: num_epochs of the search class \
says how often rows are seen.
    """
    for name in given:
        if name in instead:
            raise UsageError(f"{who} takes no {name}: {instead[name]}.")
        raise UsageError(unknown(f"argument of {who}", name, known))
