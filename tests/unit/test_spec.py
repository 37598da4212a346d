from __future__ import annotations

import pickle

import pytest

import cerebro
from cerebro import MiniBatchSpec, Task
from cerebro.errors import UsageError
from cerebro.spec import BatchValues
from cerebro.train.identity import describe_task, has_own_state
from cerebro.train.runner import import_task
from cerebro.train.spec.task import SpecTask, as_task


class Plain(MiniBatchSpec):
    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def create_model_components(self, hyperparams):
        return {}

    def train(self, model_object, minibatch, hyperparams, device):
        return {}


class WithBoth(Plain):
    def val_test(self, model_object, minibatch, hyperparams, device):
        return {}

    def valtest(self, model_object, minibatch, hyperparams, device):
        return {}


def test_the_mean_of_batch_values_is_weighted_by_rows():
    values = BatchValues([1.0, 2.0], rows=[6, 2])
    assert values == [1.0, 2.0]
    assert values.mean() == 1.25


def test_the_default_aggregation_is_the_mean_over_rows():
    spec = MiniBatchSpec()
    assert spec.metrics_agg("val", {}, {"loss": BatchValues([1.0, 2.0], [6, 2])}) == {"loss": 1.25}
    assert not spec.has("metrics_agg")


@pytest.mark.parametrize(
    ("method", "count"),
    [
        ("create_model_components", 1),
        ("train", 4),
        ("val_test", 4),
        ("predict", 4),
    ],
)
def test_methods_that_are_not_written_say_so(method, count):
    with pytest.raises(NotImplementedError, match=f"MiniBatchSpec must define {method}"):
        getattr(MiniBatchSpec(), method)(*[None] * count)


def test_what_need_not_be_written_does_nothing():
    MiniBatchSpec().initialize_worker()
    MiniBatchSpec().read_misc("misc")


def test_two_names_of_the_same_method_are_refused():
    with pytest.raises(UsageError, match=r"WithBoth must define val_test or valtest.*Keep one"):
        as_task(WithBoth())


def test_both_names_over_two_classes_are_refused_too():
    class Later(Plain):
        def val_test(self, model_object, minibatch, hyperparams, device):
            return {}

    class Last(Later):
        def valtest(self, model_object, minibatch, hyperparams, device):
            return {}

    assert SpecTask(Later()).val_test == "val_test"
    with pytest.raises(UsageError, match="Keep one"):
        as_task(Last())


@pytest.mark.parametrize("method", ["create_model_components", "train"])
def test_a_spec_must_have_its_two_methods(method):
    cls = type("Half", (Plain,), {method: getattr(MiniBatchSpec, method)})
    with pytest.raises(UsageError, match=f"Half must define {method}"):
        as_task(cls())


def test_a_task_is_a_task_already():
    task = Task()
    assert as_task(task) is task


def test_a_spec_is_named_and_digested_as_what_the_user_wrote():
    name, digest = describe_task(as_task(Plain()))
    assert name == "tests.unit.test_spec:Plain"
    assert digest
    assert describe_task(as_task(Plain()))[1] == digest
    assert describe_task(as_task(Plain(2.0)))[1] != digest
    assert describe_task(as_task(WithVal()))[1] != digest


class WithVal(Plain):
    def val_test(self, model_object, minibatch, hyperparams, device):
        return {}


def test_a_spec_with_values_of_its_own_cannot_be_made_from_its_name():
    assert not has_own_state(as_task(Plain()))
    assert has_own_state(as_task(Plain(2.0)))


def test_a_spec_travels_with_its_attributes():
    task = pickle.loads(pickle.dumps(as_task(Plain(3.0))))
    assert isinstance(task, SpecTask)
    assert task.spec.factor == 3.0


def test_a_spec_may_be_named():
    task = import_task("tests.unit.test_spec:Plain")
    assert isinstance(task, SpecTask)
    assert isinstance(task.spec, Plain)
    with pytest.raises(UsageError, match=r"cerebro\.Task or cerebro\.MiniBatchSpec"):
        import_task("tests.unit.test_spec:BatchValues")


def test_a_spec_needs_a_batch_size_in_the_space(tmp_path):
    cerebro.data.from_arrays(tmp_path / "data", {"x": [[1.0]] * 4, "y": [1.0] * 4}, shards=1)
    exp = cerebro.Experiment(name="run", data=tmp_path / "data", store=tmp_path, backend="inline")
    with pytest.raises(UsageError, match=r"must have a batch_size, but those of Plain have none"):
        exp.run_fit(
            Plain(), {"lr": [0.1]}, num_epochs=1, metric="train_loss", mode="min", batch_size=2
        )
    with pytest.raises(UsageError, match=r"Make one: Plain\(\)"):
        exp.run_fit(Plain, {"batch_size": 2}, num_epochs=1, metric="train_loss", mode="min")
