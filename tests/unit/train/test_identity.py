"""What is remembered of a task: its code, its helpers and its arguments."""

from __future__ import annotations

import functools
import importlib
import operator
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from cerebro.task import Task
from cerebro.train.identity import describe_task, digest_function, has_own_state

BASE = "class Base(Task):\n    rate = 1"
SOURCE = """
import identity_base
HELPER = 1
def helper(): return HELPER
class Mine(identity_base.Base):
    def __init__(self, scale=1, **more):
        self.scale = scale
        vars(self).update(more)
"""


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Writes the two modules with a text replaced, imports them and describes a task."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def build(old="", new="", **given):
        base = f"from cerebro.task import Task\n{BASE}\n"
        (tmp_path / "identity_base.py").write_text(base.replace(old, new) if old else base)
        (tmp_path / "identity_mine.py").write_text(SOURCE.replace(old, new) if old else SOURCE)
        for name in ("identity_base", "identity_mine"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module("identity_mine").Mine(**given)

    yield build
    for name in ("identity_base", "identity_mine"):
        sys.modules.pop(name, None)


def digest(task):
    return describe_task(task)[1]


def test_the_same_task_has_the_same_digest(make):
    assert digest(make(scale=2, names=["a"])) == digest(make(scale=2, names=["a"]))


@pytest.mark.parametrize(
    ("old", "new"),
    [("self.scale = scale", "self.scale = -scale"), ("HELPER = 1", "HELPER = 2"),
     ("rate = 1", "rate = 2")],
    ids=["its own code", "a helper in its file", "a base class in another file"],
)  # fmt: skip
def test_changed_code_changes_the_digest(make, old, new):
    before = digest(make())
    assert digest(make(old, new)) != before


@pytest.mark.parametrize(
    "given",
    [{"scale": 100}, {"scale": 1.0}, {"scale": "1"}, {"scale": [1]}, {"scale": (1,)},
     {"other": None}, {"scale": {"a": 1}}, {"scale": np.zeros(1)}, {"scale": len}],
    ids=str,
)  # fmt: skip
def test_other_arguments_change_the_digest(make, given):
    assert digest(make(**given)) != digest(make())


def test_the_order_of_keys_and_sets_does_not_matter(make):
    one = make(names={"b", "a", "c"}, table={"x": 1, "y": 2})
    other = make(table={"y": 2, "x": 1}, names={"c", "b", "a"})
    assert digest(one) == digest(other)


def test_a_task_that_holds_itself_has_a_digest(make):
    task = make()
    task.loop = [task]
    task.loop.append(task.loop)
    assert len(digest(task)) == 64
    assert has_own_state(task)


def test_a_digest_is_the_same_in_another_process():
    code = """
        from cerebro.testing.toy import ToyTask
        from cerebro.train.identity import describe_task
        task = ToyTask()
        task.names, task.object, task.kind = {"a", "b", "c"}, object(), dict
        print(describe_task(task)[1])
    """
    found = {
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


SCRIPT = """
from cerebro.task import Task
from cerebro.train.identity import describe_task
class Mine(Task): pass
print(describe_task(Mine())[1])
Mine.__qualname__ = "Foreign"
print(describe_task(Mine())[1])
"""


def test_a_class_of_another_main_module_has_no_digest(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script)]
    output = subprocess.run(command, capture_output=True, text=True, check=True)
    first, second = output.stdout.split("\n")[:2]
    assert len(first) == 64
    assert second == ""


TYPED = """
FACTOR = {factor}
def helper(x):
    return x * {helper}
class Mine(Task):
    size = 3
    def loss(self, model, batch, params):
        return helper(FACTOR) + {loss}
"""


def typed_digest(factor=1, helper=2, loss=3):
    """The digest of a task whose code is in no file."""
    code = TYPED.format(factor=factor, helper=helper, loss=loss)
    program = (
        "from cerebro.task import Task; from cerebro.train.identity import describe_task; "
        f"exec({code!r}); print(describe_task(Mine())[1])"
    )
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_code_that_is_in_no_file_has_a_digest_too():
    same = typed_digest()
    assert len(same.strip()) == 64
    assert typed_digest() == same
    others = {typed_digest(factor=9), typed_digest(helper=9), typed_digest(loss=9)}
    assert len(others | {same}) == 4


class Plain(Task):
    pass


class Scaled(Task):
    def __init__(self, scale=1, values=None):
        self.scale = scale
        self.values = [1.0, {"a": np.zeros(2)}] if values is None else values


class Box:
    def __init__(self, content):
        self.content = content


class Boxed(Task):
    def __init__(self, content=1):
        self.box = Box(content)


class Sealed(Task):
    def __init__(self):
        self.lock = object()


class Demanding(Task):
    def __init__(self, size):
        self.size = size


@pytest.mark.parametrize(
    "task",
    [Plain(), Scaled(), Scaled(scale=1), Boxed()],
    ids=["plain", "defaults", "the default given", "object"],
)
def test_a_task_made_without_arguments_has_no_state_of_its_own(task):
    assert not has_own_state(task)


@pytest.mark.parametrize(
    "task",
    [
        Scaled(2),
        Scaled(values=[1.0, {"a": np.ones(2)}]),
        Scaled(values=lambda: 1),
        Boxed(2),
        Boxed(torch.zeros(1)),
        Sealed(),
        Demanding(3),
    ],
    ids=["number", "array", "function", "object", "tensor", "cannot be told", "no default"],
)
def test_a_task_with_other_values_has(task):
    assert has_own_state(task)


def test_a_value_set_afterwards_counts_too():
    task = Plain()
    task.depth = 3
    assert has_own_state(task)


class Times:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return self.factor * x

    def twice(self, x):
        return 2 * self.factor * x


def scale(factor, x):
    return factor * x


@pytest.mark.parametrize(
    "make",
    [lambda n: functools.partial(scale, n), Times, lambda n: Times(n).twice],
    ids=["partial", "object", "method"],
)
def test_what_can_be_called_is_known_by_its_code_and_what_it_holds(make):
    assert digest_function(make(1)) == digest_function(make(1)) != digest_function(make(2))


def test_a_class_of_another_language_can_be_called():
    assert digest_function(operator.itemgetter(1))
