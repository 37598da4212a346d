"""When what was computed once may be used again: only if nothing that decides it has changed."""

from __future__ import annotations

import functools
import importlib
import re
import subprocess
import sys
import threading
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from cerebro.etl_spec import ETLSpec
from cerebro.spec import MiniBatchSpec
from cerebro.task import Task
from cerebro.train.identity import exact_digest
from cerebro.train.spec.task import SpecTask


class Spec(ETLSpec):
    def __init__(self, held=None):
        self.held = held


class Sealed:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Scaled:
    def __init__(self, scale):
        self.scale = scale


def network(weight):
    made = nn.Linear(1, 1)
    nn.init.constant_(made.weight, weight)
    nn.init.zeros_(made.bias)
    return made


VALUES = {
    "array": lambda n: np.full(3, n),
    "array of objects": lambda n: np.array([n, "a"], object),
    "dates": lambda n: np.array([f"2020-01-0{n}"], "datetime64[D]"),
    "tensor": lambda n: torch.full((3,), n),
    "half": lambda n: torch.full((3,), n, dtype=torch.bfloat16),
    "module": network,
    "object": lambda n: [Scaled({"a": np.full(2, n)})],
    "slots": Sealed,
    "path": lambda n: Path(f"file{n}"),
    "pattern": lambda n: re.compile(f"a{n}"),
    "date": lambda n: date(2020, 1, n),
    "set": lambda n: {n, "a", "b"},
    "partial": lambda n: functools.partial(max, n),
    "closure": lambda n: lambda: n,
    "generator": np.random.default_rng,
    "dict": lambda n: {"a": [n, (1.0, None)]},
}


@pytest.mark.parametrize("name", VALUES)
def test_what_attributes_hold_counts(name):
    make = VALUES[name]
    assert len(exact_digest(Spec(make(1)))) == 64
    assert exact_digest(Spec(make(1))) == exact_digest(Spec(make(1)))
    assert exact_digest(Spec(make(1))) != exact_digest(Spec(make(2)))


def test_what_cannot_be_known_is_never_the_same():
    assert exact_digest(Spec(threading.Lock())) == ""


def test_what_holds_itself_has_a_digest():
    spec = Spec([1])
    spec.held.append(spec)
    assert len(exact_digest(spec)) == 64


def test_tasks_and_specs_of_minibatches_have_one():
    class Mine(Task):
        pass

    class Batches(MiniBatchSpec):
        def create_model_components(self, hyperparams):
            return {}

        def train(self, model_object, minibatch, hyperparams, device):
            return {}

    assert exact_digest(Mine()) == exact_digest(Mine()) != ""
    assert exact_digest(SpecTask(Batches())) == exact_digest(Batches()) != ""


def test_closures_of_methods_count():
    def make(factor):
        class Made(ETLSpec):
            def row_prep(self, row, mode, object_dir):
                return row["a"] * factor, None

        return Made()

    assert exact_digest(make(2)) == exact_digest(make(2))
    assert exact_digest(make(2)) != exact_digest(make(3))


FACTOR, TABLE, LOCK = 1.0, {"a": np.zeros(2)}, threading.Lock()


@functools.lru_cache
def scaled(value):
    return value * FACTOR


class UsesGlobals(ETLSpec):
    @torch.no_grad()
    def row_prep(self, row, mode, object_dir):
        return scaled(row["a"]) + TABLE["a"], row.LOCK


def test_globals_that_functions_use_count(monkeypatch):
    before = exact_digest(UsesGlobals())
    assert len(before) == 64
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 2.0)
    after = exact_digest(UsesGlobals())
    monkeypatch.setitem(TABLE, "a", np.ones(2))
    assert len({before, after, exact_digest(UsesGlobals())}) == 3


MAIN = """
from cerebro import ETLSpec
from cerebro.train.identity import exact_digest
import helpers, parts.one
class Mine(ETLSpec):
    def row_prep(self, row, mode, object_dir):
        import later
        return helpers.prep(row) + parts.one.two.number() + later.FACTOR, None
if __name__ == "__main__":
    print(exact_digest(Mine()))
"""
FILES = {
    "main.py": MAIN,
    "helpers.py": "import deep\ndef prep(row): return deep.VALUE",
    "deep.py": "VALUE = 1",
    "later.py": "FACTOR = 1",
    "unused.py": "FACTOR = 1",
    "parts/__init__.py": "",
    "parts/one.py": "from . import two",
    "parts/two.py": "def number(): return 1",
}


def test_modules_beside_the_script_count(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    def digest(seed="1"):
        env = {"PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, str(tmp_path / "main.py")]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        return done.stdout.strip()

    before = digest()
    assert len(before) == 64
    (tmp_path / "unused.py").write_text("FACTOR = 2")
    assert digest(seed="2") == before
    for name in ("deep.py", "later.py", "parts/two.py"):
        (tmp_path / name).write_text(FILES[name].replace("1", "2"))
        assert digest() != before
        (tmp_path / name).write_text(FILES[name])


def test_a_number_that_is_set_in_another_module_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "exact_settings.py").write_text("SCALE = 1")
    (tmp_path / "exact_spec.py").write_text(
        "import exact_settings\nfrom cerebro import ETLSpec\nclass Mine(ETLSpec):\n"
        "    def row_prep(self, row, mode, object_dir): return exact_settings.SCALE, None\n"
    )
    spec = importlib.import_module("exact_spec").Mine()
    before = exact_digest(spec)
    sys.modules["exact_settings"].SCALE = 2
    assert exact_digest(spec) != before
    for name in ("exact_settings", "exact_spec"):
        del sys.modules[name]
