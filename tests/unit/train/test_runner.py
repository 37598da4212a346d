from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from cerebro.data import from_arrays, open_dataset
from cerebro.errors import DataError, MissingDependencyError, UnknownParamError, UsageError
from cerebro.task import ParamDict, Task
from cerebro.testing.toy import ToyFramework, ToyTask
from cerebro.train.runner import VisitRunner, describe_task, import_task, make_framework
from cerebro.train.visit import VisitCall
from cerebro.types import Split

TASK_FILE = """
from cerebro.testing.toy import ToyTask

class Mine(ToyTask):
    pass

class Demanding(ToyTask):
    def __init__(self, size):
        super().__init__()

other = 3
"""


@pytest.fixture(autouse=True)
def own_imports(monkeypatch):
    """Imports of a test are forgotten after it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("cerebro_task_", "broken_")):
            del sys.modules[name]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tasks.py"
    path.write_text(TASK_FILE)
    return path


@pytest.fixture
def data(tmp_path):
    x = np.random.default_rng(0).normal(size=(30, 2)).astype("f4")
    arrays = {"x": x, "y": (x[:, 0] > 0).astype(np.int64)}
    from_arrays(tmp_path / "data", arrays, shards=2, validation=0.2)
    return str(tmp_path / "data")


def make_call(**changes):
    fields = {
        "unit": 0, "trials": (0,), "params": ({"lr": 0.1},), "seed": 0, "epoch": 0, "step": 0,
        "steps": 2, "split": Split.TRAIN, "shard": 0, "attempt": 0, "batch_size": 8,
    }  # fmt: skip
    return VisitCall(**{**fields, **changes})


def allocate(size):
    return memoryview(bytearray(size))


# Tasks by name


def test_data_that_were_replaced_are_refused(data):
    digest = open_dataset(data).digest
    assert VisitRunner(ToyTask(), data, data_digest=digest).dataset.digest == digest
    with pytest.raises(DataError, match="was replaced"):
        VisitRunner(ToyTask(), data, data_digest="0" * 64)


def test_a_task_is_imported_from_a_module():
    assert isinstance(import_task("cerebro.testing.toy:ToyTask"), ToyTask)


def test_a_task_is_imported_from_a_file(file):
    assert type(import_task(f"{file}:Mine")).__name__ == "Mine"


def test_a_file_may_import_its_neighbours(file):
    (file.parent / "broken_not_neighbour.py").write_text("VALUE = 1")
    file.write_text(f"import broken_not_neighbour\n{TASK_FILE}")
    assert isinstance(import_task(f"{file}:Mine"), ToyTask)


def test_two_files_of_one_name_are_two_modules(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "task.py").write_text(f"{TASK_FILE}\nclass In_{folder}(Mine): pass")
    first = import_task(f"{tmp_path}/a/task.py:In_a")
    second = import_task(f"{tmp_path}/b/task.py:In_b")
    assert describe_task(first) != describe_task(second)
    assert "a/task.py:In_a" in describe_task(first)[0]


@pytest.mark.parametrize("reference", ["", "Mine", ":Mine", "module:"])
def test_a_task_that_is_not_named_as_module_and_class_is_refused(reference):
    with pytest.raises(UsageError, match="must be named as module:Class"):
        import_task(reference)


def test_a_module_that_is_not_there_is_named():
    with pytest.raises(UsageError, match=r"'no_such_module:Mine' cannot be imported: ModuleNot"):
        import_task("no_such_module:Mine")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"no .*nowhere\.py"):
        import_task(f"{tmp_path}/nowhere.py:Mine")


@pytest.mark.parametrize(
    ("content", "error"), [("1 / 0", "ZeroDivisionError"), ("def (", "SyntaxError")]
)
def test_a_file_that_fails_says_how(tmp_path, content, error):
    (tmp_path / "broken_task.py").write_text(content)
    with pytest.raises(UsageError, match=f"cannot be imported: {error}"):
        import_task(f"{tmp_path}/broken_task.py:Mine")


def test_a_class_that_is_not_there_is_named(file):
    with pytest.raises(UsageError, match=r"must name a subclass of cerebro.Task.*has no Nothing"):
        import_task(f"{file}:Nothing")


@pytest.mark.parametrize("name", ["other", "__doc__"])
def test_what_is_no_task_is_refused(file, name):
    with pytest.raises(UsageError, match=r"must name a subclass of cerebro\.Task"):
        import_task(f"{file}:{name}")


def test_a_class_that_is_no_task_is_refused():
    with pytest.raises(UsageError, match=r"must name a subclass of cerebro\.Task"):
        import_task("pathlib:Path")


def test_a_task_that_needs_arguments_is_refused(file):
    with pytest.raises(UsageError, match=r"without arguments.*size"):
        import_task(f"{file}:Demanding")


# Tasks described


def test_a_task_of_a_module_is_described_by_its_reference():
    name, digest = describe_task(ToyTask())
    assert name == "cerebro.testing.toy:ToyTask"
    assert len(digest) == 64


def test_a_task_of_a_file_can_be_imported_again_in_a_new_process(file):
    name, _ = describe_task(import_task(f"{file}:Mine"))
    code = f"from cerebro.train.runner import import_task; print(type(import_task({name!r})))"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/"
    )
    assert "Mine" in output.stdout


def test_a_changed_class_has_another_digest(file):
    before = describe_task(import_task(f"{file}:Mine"))
    file.write_text(TASK_FILE.replace("    pass", "    extra = 1"))
    os.utime(file, (1, 1))
    assert describe_task(import_task(f"{file}:Mine"))[1] != before[1]


def test_a_class_without_source_is_told_by_its_code():
    made = type("Made", (Task,), {"__module__": "nowhere"})
    assert len(describe_task(made())[1]) == 64


# Frameworks


def test_a_framework_is_found_by_reference():
    assert isinstance(make_framework(ToyTask(), device="cpu", threads=1), ToyFramework)


def framework_of(reference: str) -> Task:
    return type("T", (Task,), {"framework": reference})()


def test_an_unknown_framework_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match=r"unknown framework 'torhc'\. Known: keras, spec, torch"):
        make_framework(framework_of("torhc"), device="cpu", threads=1)


@pytest.mark.parametrize("reference", ["no_such_module:Framework", "pathlib:NoSuchClass"])
def test_a_framework_that_cannot_be_imported_is_a_missing_dependency(reference):
    with pytest.raises(MissingDependencyError, match=f"'{reference}' cannot be imported"):
        make_framework(framework_of(reference), device="cpu", threads=1)


# Visits


def test_a_dataset_that_is_not_there_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match="there is no dataset at"):
        VisitRunner(ToyTask(), str(tmp_path))


def test_a_training_visit_gives_a_state_and_an_evaluation_none(data):
    runner = VisitRunner(ToyTask(), data)
    state, _ = runner.run(make_call(), None, allocate)
    after, report = runner.run(make_call(split=Split.VAL), state, allocate)
    assert state is not None
    assert after is None
    assert report.rows == 6
    runner.close()


def test_an_evaluation_without_a_state_is_refused(data):
    with pytest.raises(UsageError, match="must have a state"):
        VisitRunner(ToyTask(), data).run(make_call(split=Split.VAL), None, allocate)


def test_a_probe_also_names_the_metrics(data):
    runner = VisitRunner(ToyTask(), data)
    reports = [runner.run(make_call(probe=probe), None, allocate)[1] for probe in (True, False)]
    assert [report.metric_names for report in reports] == [("loss", "accuracy"), ()]


def test_a_probe_does_not_change_what_is_trained(data):
    runner = VisitRunner(ToyTask(), data)
    states = [runner.run(make_call(probe=probe), None, allocate)[0] for probe in (True, False)]
    assert bytes(states[0].buffer) == bytes(states[1].buffer)


def test_a_missing_param_is_named(data):
    with pytest.raises(UnknownParamError, match=r"params\['lr'\].*has: rate"):
        VisitRunner(ToyTask(), data).run(make_call(params=({"rate": 0.1},)), None, allocate)


def test_many_shards_do_not_use_up_file_descriptors(tmp_path):
    rows = {"x": np.zeros((200, 1), "f4"), "y": np.zeros(200, np.int64)}
    from_arrays(tmp_path / "many", rows, shards=200)
    runner = VisitRunner(ToyTask(), str(tmp_path / "many"))
    before = len(os.listdir("/proc/self/fd"))
    for shard in range(200):
        runner.run(make_call(shard=shard), None, allocate)
    assert len(os.listdir("/proc/self/fd")) - before <= 130


def test_visits_are_counted_from_the_first():
    assert make_call(epoch=2, step=1, steps=3).visits == 8


def test_params_without_anything_say_none():
    with pytest.raises(UnknownParamError, match="the trial has: none"):
        ParamDict()["lr"]


def test_every_known_framework_says_how_to_install_it():
    from cerebro.train.runner import FRAMEWORKS

    assert all("pip install" in hint for _, hint in FRAMEWORKS.values())
