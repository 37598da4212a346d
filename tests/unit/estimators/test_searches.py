"""What users of the search classes see; with PyTorch, in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from cerebro.backend import InlineBackend
from cerebro.data import open_dataset
from cerebro.errors import DataError, UsageError
from cerebro.storage import LocalStore, PrefixStore, open_store
from cerebro.torch import CerebroModel
from cerebro.tune import (
    GridSearch,
    HyperOpt,
    RandomSearch,
    TPESearch,
    hp_choice,
    hp_loguniform,
    hp_qloguniform,
    hp_quniform,
    hp_uniform,
)
from tests.unit.estimators.made import classifier, fragile, of_columns, points, without_metrics

LRS = hp_choice([0.5, 0.1, 0.0])


def grid(folder, generate=classifier, space=None, epochs=1, **options):
    return GridSearch("inline", str(folder), generate, space or {"lr": LRS}, epochs, **options)


def test_a_grid_gives_a_model_and_a_history_for_every_combination(tmp_path):
    result = grid(tmp_path, epochs=2).fit(points())
    models, histories = result.get_all_models(), result.get_all_model_history()
    assert [model.trial_params["lr"] for model in models] == [0.5, 0.1, 0.0]
    assert list(histories) == [model.run_id for model in models]
    assert {len(values) for history in histories.values() for values in history.values()} == {2}
    assert set(histories[0]) == {"train_loss", "train_acc", "val_loss", "val_acc"}
    assert result.get_history() == result.get_best_model_history()
    assert result.get_history() == histories[result.get_best_model().run_id]


def test_more_accuracy_is_better(tmp_path):
    result = grid(tmp_path, epochs=3, evaluation_metric="acc").fit(points())
    found = {m.run_id: max(m.get_history()["val_acc"]) for m in result.get_all_models()}
    assert found[result.get_best_model().run_id] == max(found.values()) > min(found.values())


def test_training_metrics_are_those_of_the_rows_that_were_trained_on(tmp_path):
    table = points()
    result = grid(tmp_path, epochs=1, space={"lr": [0.0]}, validation=None).fit(table)
    told = result.transform(table)["label__output"].argmax(1)
    [trained] = result.get_history()["train_acc"]
    assert trained == pytest.approx((told == table["label"]).mean())


def test_models_can_be_ranked_by_a_metric_of_training(tmp_path):
    result = grid(tmp_path, evaluation_metric="acc", validation=None).fit(points())
    assert result.run.best.metrics["train_acc"] == max(
        history["train_acc"][0] for history in result.get_all_model_history().values()
    )


def test_less_loss_is_better(tmp_path):
    result = grid(tmp_path, epochs=2).fit(points())
    assert result.get_best_model().trial_params["lr"] == 0.5


def test_a_wrong_metric_is_refused_before_anything_is_trained(tmp_path):
    with pytest.raises(UsageError, match=r"unknown evaluation_metric 'auc'. Known: loss, acc"):
        grid(tmp_path, evaluation_metric="auc").fit(points())


def test_estimators_without_metrics_are_ranked_by_their_loss(tmp_path):
    result = grid(tmp_path, without_metrics, {"unused": [1, 2]}).fit(points())
    assert set(result.get_history()) == {"train_loss", "val_loss"}


def test_random_search_draws_every_hyperparameter_by_itself(tmp_path):
    space = {"lr": hp_uniform(0, 1), "other": hp_uniform(0, 1), "third": hp_uniform(0, 1)}
    search = RandomSearch("inline", str(tmp_path), classifier, space, 24, 1, shards=1)
    drawn = [m.trial_params for m in search.fit(points(16)).get_all_models()]
    table = np.array([[params[name] for name in space] for params in drawn])
    correlations = np.corrcoef(table.T)[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < 0.7


def test_another_seed_draws_other_params(tmp_path):
    def drawn(seed):
        space = {"lr": hp_uniform(0, 1)}
        search = RandomSearch("inline", str(tmp_path), classifier, space, 2, 1, seed=seed)
        return [model.trial_params["lr"] for model in search.fit(points()).get_all_models()]

    assert drawn(0) == drawn(0) != drawn(1)


def test_the_same_seed_gives_the_same_weights_in_another_store(tmp_path):
    one, other = (grid(tmp_path / name, seed=5).fit(points()) for name in "ab")
    assert one.run.digest() == other.run.digest()


def test_tpe_stays_within_powers_of_ten_and_keeps_every_history(tmp_path):
    space = {"lr": hp_loguniform(-4, -1), "batch_size": hp_quniform(16, 256, 96)}
    search = TPESearch("inline", str(tmp_path), classifier, space, 12, 1, parallelism=3)
    result = search.fit(points())
    models = result.get_all_models()
    assert len(models) == len(result.get_all_model_history()) == 12
    assert all(1e-4 <= model.trial_params["lr"] <= 1e-1 for model in models)
    assert {model.trial_params["batch_size"] for model in models} <= {96, 192}
    assert min(model.trial_params["lr"] for model in models) < 0.0185


def test_tpe_takes_quantised_powers_of_ten(tmp_path):
    space = {"lr": [0.1], "units": hp_qloguniform(1, 3, 16)}
    search = TPESearch("inline", str(tmp_path), classifier, space, 4, 1)
    drawn = [model.trial_params["units"] for model in search.fit(points()).get_all_models()]
    assert all(16 <= units <= 1000 and units % 16 == 0 for units in drawn)


def test_values_of_a_choice_come_as_they_were_given(tmp_path):
    values = [[64], [64, 32], "none", 3, 0.5, None, True]

    def generate(params):
        assert type(params["value"]) in (list, str, int, float, type(None), bool)
        return classifier({"lr": 0.1})

    space = {"value": hp_choice(values), "batch_size": hp_quniform(2, 8, 2)}
    result = RandomSearch("inline", tmp_path, generate, space, 12, 1).fit(points(32))
    models = result.get_all_models()
    assert len(models) == 12
    assert all(model.trial_params["value"] in values for model in models)
    assert {type(model.trial_params["batch_size"]) for model in models} == {int}


def test_hyperopt_is_the_same_as_tpe():
    assert HyperOpt is TPESearch


def test_the_estimator_decides_the_batch_size(tmp_path):
    space = {"lr": [0.1], "batch_size": [4, 32]}
    small, large = grid(tmp_path, space=space, shards=1).fit(points(64)).get_all_models()
    assert small.get_history() != large.get_history()

    def of_its_own(params):
        return classifier({"lr": params["lr"], "batch_size": params["rows"]})

    space = {"lr": [0.1], "rows": [4, 32]}
    named = grid(tmp_path, of_its_own, space, shards=1).fit(points(64)).get_all_models()
    assert [m.get_history() for m in named] == [small.get_history(), large.get_history()]


def test_tensorboard_files_are_in_the_logs_of_the_store(tmp_path):
    result = grid(tmp_path).fit(points())
    name = Path(result.run.path).name
    found = sorted(path.parent.name for path in (tmp_path / "logs" / name).glob("*/events*"))
    assert found == ["t0000", "t0001", "t0002"]


def test_tensorboard_files_are_in_logdir_if_it_is_given(tmp_path):
    grid(tmp_path / "store", logdir=tmp_path / "mine").fit(points())
    assert len(list((tmp_path / "mine").glob("*/t000?/events*"))) == 3
    assert not (tmp_path / "store" / "logs").exists()


def test_tensorboard_files_of_runs_elsewhere_are_there_or_in_logdir(tmp_path):
    store = PrefixStore("memory://estimators/logged", train_path=tmp_path / "data")
    GridSearch("inline", store, classifier, {"lr": [0.5]}, 1, name="a").fit(points())
    assert len(open_store("memory://estimators/logged/logs/a/t0000").list()) == 1
    GridSearch(
        "inline", store, classifier, {"lr": [0.5]}, 1, name="b", logdir=tmp_path / "mine"
    ).fit(points())
    assert len(list((tmp_path / "mine").glob("b/t0000/events*"))) == 1


def test_without_validation_no_earlier_validation_rows_are_used(tmp_path):
    grid(tmp_path, validation=0.5).fit(points())
    result = grid(tmp_path, validation=None).fit(points())
    assert set(result.get_history()) == {"train_loss", "train_acc"}


def test_a_column_may_say_which_rows_validate(tmp_path):
    table = pd.DataFrame({"a": np.arange(40.0), "label": np.arange(40) % 2})
    table["held_out"] = table["a"] >= 30
    search = grid(
        tmp_path,
        of_columns,
        {"lr": [0.0]},
        feature_columns=["a"],
        validation="held_out",
    )
    result = search.fit(table)
    data = open_dataset(tmp_path / "train_data")
    assert (data.rows("train"), data.rows("val")) == (30, 10)
    assert "held_out" not in data.schema
    assert "val_accuracy" in result.get_history()


def test_fit_again_is_done_at_once_and_gives_the_same(tmp_path, caplog):
    first = grid(tmp_path).fit(points())
    again = grid(tmp_path).fit(points())
    assert caplog.messages == []
    assert again.run.path == first.run.path
    assert again.run.document == first.run.document
    assert again.get_all_model_history() == first.get_all_model_history()


def test_other_data_other_code_or_another_space_is_another_run(tmp_path):
    def other(params):
        return classifier({"lr": params["lr"] * 2})

    runs = [
        grid(tmp_path).fit(points()),
        grid(tmp_path).fit(points(seed=1)),
        grid(tmp_path, other).fit(points()),
        grid(tmp_path, space={"lr": [0.5]}).fit(points()),
        grid(tmp_path, epochs=2).fit(points()),
    ]
    assert len({run.run.path for run in runs}) == len(runs)


def test_prepared_data_are_used_without_a_table(tmp_path):
    first = grid(tmp_path).fit(points())
    again = grid(tmp_path, epochs=2).fit_on_prepared_data()
    assert again.run.document.spec["data_digest"] == first.run.document.spec["data_digest"]


def test_prepared_data_must_have_the_columns(tmp_path):
    grid(tmp_path).fit(points())
    with pytest.raises(DataError, match=r"lack sales: they were prepared with features, label"):
        grid(tmp_path, label_columns=["sales"]).fit_on_prepared_data()


def write_parquet(folder, rows, seed=0):
    folder.mkdir()
    table = points(rows, seed)
    columns = {
        "features": table["features"].tolist(),
        "label": table["label"],
        "extra": ["-"] * rows,
    }
    parquet.write_table(pa.table(columns), folder / "part-0.parquet")


def test_plain_parquet_at_the_paths_of_the_store_is_trained_on(tmp_path):
    write_parquet(tmp_path / "mine", 64)
    write_parquet(tmp_path / "held", 32, seed=1)
    store = LocalStore(tmp_path / "store", train_path=tmp_path / "mine", val_path=tmp_path / "held")
    search = GridSearch("inline", store, classifier, {"lr": LRS}, 1)
    one, other = search.fit_on_parquet(), search.fit_on_prepared_data()
    assert one.run.path == other.run.path
    data = open_dataset(str(one.run.document.spec["data"]))
    assert (data.rows("train"), data.rows("val")) == (64, 32)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["part-0.parquet"]


def test_plain_parquet_anywhere_is_divided_as_validation_says(tmp_path):
    write_parquet(tmp_path / "mine", 64)
    result = grid(tmp_path / "store", validation=0.25).fit_on_parquet(tmp_path / "mine")
    data = open_dataset(str(result.run.document.spec["data"]))
    assert (data.rows("train"), data.rows("val")) == (48, 16)


def test_no_data_in_the_store_is_told(tmp_path):
    with pytest.raises(DataError, match=r"there is nothing: call fit\(df\)"):
        grid(tmp_path).fit_on_prepared_data()


def test_data_stay_on_this_machine_while_runs_may_be_elsewhere(tmp_path):
    with pytest.raises(UsageError, match=r"give the store a train_path of this machine"):
        grid("memory://estimators/a").fit(points())
    store = PrefixStore("memory://estimators/b", train_path=tmp_path)
    result = GridSearch("inline", store, classifier, {"lr": LRS}, 1, verbose=0).fit(points())
    assert len(result.get_all_models()) == 3
    assert result.transform(points())["label__output"].shape == (96, 2)
    result.get_best_model().save("memory://estimators/model")
    loaded = CerebroModel.load("memory://estimators/model", estimator_gen_fn=classifier)
    assert loaded.get_history() == result.get_history()


def test_one_bad_set_of_params_fails_its_trial_alone(tmp_path):
    result = grid(tmp_path, fragile).fit(points())
    assert [str(trial.status) for trial in result.run.trials] == ["finished", "finished", "failed"]
    assert len(result.get_all_models()) == 2
    assert len(result.get_all_model_history()) == 3


def test_a_function_that_never_returns_an_estimator_is_told_at_once(tmp_path):
    with pytest.raises(UsageError, match=r"raised for each of 8 sets.*no such learning rate"):
        grid(tmp_path, fragile, {"lr": [0]}).fit(points())
    with pytest.raises(UsageError, match=r"must return a SparkEstimator.*but returned None"):
        grid(tmp_path, lambda params: None).fit(points())


def test_what_a_run_can_do_a_search_can(tmp_path):
    space = {"lr": hp_uniform(0, 1)}
    search = RandomSearch("inline", str(tmp_path), classifier, space, 6, 4, stopper="halving")
    epochs = [len(h["val_loss"]) for h in search.fit(points()).get_all_model_history().values()]
    assert max(epochs) == 4 > min(epochs)


def test_a_backend_may_be_given_as_an_object_and_used_again(tmp_path):
    search = GridSearch(InlineBackend(), LocalStore(tmp_path), classifier, {"lr": LRS}, 1)
    assert search.fit(points()).run.digest() == search.fit(points()).run.digest()
    assert len(search.fit(points(seed=1)).get_all_models()) == 3


def test_arguments_that_are_not_there_are_named(tmp_path):
    with pytest.raises(UsageError, match=r"GridSearch takes no stack: estimators are trained one"):
        grid(tmp_path, stack=4)
    with pytest.raises(UsageError, match=r"unknown argument .* 'vlidation'.*'validation'"):
        grid(tmp_path, vlidation=0.2)
    with pytest.raises(UsageError, match=r"GridSearch takes no num_models: a grid tries all"):
        grid(tmp_path, num_models=4)
    with pytest.raises(UsageError, match=r"GridSearch takes no parallelism: concurrent= says"):
        grid(tmp_path, parallelism=4)


def test_values_that_are_none_are_refused_at_once(tmp_path):
    with pytest.raises(UsageError, match=r"store must be a LocalStore, .* but got None"):
        GridSearch("inline", None, classifier, {"lr": LRS}, 1)
    with pytest.raises(UsageError, match=r"verbose must be 0, 1 or 2, but got 'yes'"):
        grid(tmp_path, verbose="yes")


@pytest.mark.parametrize("columns", [[], ["a", "a"], [1], None], ids=str)
def test_columns_must_be_different_names(tmp_path, columns):
    with pytest.raises(UsageError, match=r"feature_columns must be a list of different column"):
        grid(tmp_path, feature_columns=columns)


def test_a_column_that_the_table_lacks_is_named(tmp_path):
    with pytest.raises(DataError, match=r"no column 'pixels'. It has: features, label"):
        grid(tmp_path, feature_columns=["pixels"]).fit(points())


def test_what_is_no_table_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"must be a pandas or polars DataFrame"):
        grid(tmp_path).fit([1, 2])
