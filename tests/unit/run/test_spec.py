from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import replace

import pytest

from cerebro.errors import ResumeMismatchError, RunCorruptError
from cerebro.run.spec import (
    Checkpointing,
    describe,
    environment,
    environment_changes,
    read_document,
    refuse_changes,
    spec_changes,
)
from cerebro.storage import DirectoryStore
from cerebro.types import Mode
from tests.experiments import toy_spec


@pytest.fixture
def store(folder):
    store = DirectoryStore(folder / "run")
    yield store
    store.close()


@pytest.fixture
def written(store, spec):
    document = describe(spec, "module:Class", "0" * 64, {"toy": "1"})
    document.write(store)
    return document


def test_a_document_comes_back(store, written):
    found = read_document(store)
    assert found is not None
    assert found == written
    assert found.spec["metric"] == "val_loss"
    assert found.created.endswith("+00:00")


def test_a_store_without_a_run_has_no_document(store):
    assert read_document(store) is None


def test_the_file_is_json_for_people(store, written):
    text = store.read("run.json").decode()
    assert text.endswith("}\n")
    assert json.loads(text)["format"] == 1
    assert "\n" in text.strip()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"3", b"null", b"{}", b'{"name": "x"}', b"[" * 100_000, b"\xff"]
)
def test_something_else_called_run_json_is_refused(store, content):
    store.write("run.json", content)
    with pytest.raises(RunCorruptError, match=r"run\.json must describe a run, but does not"):
        read_document(store)


def test_a_changed_value_is_noticed(store, written):
    text = store.read("run.json")
    assert b'"epochs": 2' in text
    store.write("run.json", text.replace(b'"epochs": 2', b'"epochs": 3'))
    with pytest.raises(RunCorruptError, match=r"is damaged: its digest must be .* Restore it"):
        read_document(store)


def test_a_format_of_another_version_is_refused(store, written, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("cerebro.run.spec.FORMAT", 2)
        written.write(store)
    with pytest.raises(RunCorruptError, match="must have format 1, but has 2: another version"):
        read_document(store)


@pytest.mark.parametrize("change", [{"colour": "red"}, {"task": None}])
def test_a_document_with_other_fields_is_refused_whatever_its_digest(store, written, change):
    body = {**json.loads(store.read("run.json")), **change}
    body = {key: value for key, value in body.items() if key != "digest" and value is not None}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    body["digest"] = hashlib.sha256(text.encode()).hexdigest()
    store.write("run.json", json.dumps(body).encode())
    with pytest.raises(RunCorruptError, match=r"must have the fields .*: it is another file"):
        read_document(store)


def test_a_document_of_a_version_without_stacks_is_one_of_a_run_without(store, spec, written):
    body = json.loads(store.read("run.json"))
    del body["digest"], body["stacks"], body["spec"]["stack"], body["spec"]["same_order"]
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    body["digest"] = hashlib.sha256(text.encode()).hexdigest()
    store.write("run.json", json.dumps(body).encode())
    found = read_document(store)
    assert found is not None
    assert found == written
    assert spec_changes(found.spec, spec) == {}
    assert spec_changes(found.spec, replace(spec, stack="auto")) == {"stack": (False, "auto")}


def test_the_environment_names_what_decides_the_last_bits():
    found = environment({"torch": "2.9"}, "cuda")
    assert (found["torch"], found["device"]) == ("2.9", "cuda")
    assert found["python"] == platform.python_version()
    assert {"numpy", "cerebro"} <= found.keys()


def test_other_versions_of_python_and_of_ourselves_are_no_change():
    old = {"python": "3.11.0", "cerebro": "0.0.1", "numpy": "1", "torch": "2.6", "device": "cpu"}
    new = {"python": "3.13.0", "cerebro": "9.9.9", "numpy": "1", "torch": "2.7", "device": "cuda"}
    assert environment_changes(old, new) == {"torch": ("2.6", "2.7"), "device": ("cpu", "cuda")}


def test_the_same_spec_is_no_change_after_json(spec):
    assert spec_changes(json.loads(json.dumps(spec.to_json())), spec) == {}


@pytest.mark.parametrize(
    "free", [{"data": "/elsewhere"}, {"checkpoint": Checkpointing.OFF}, {"name": "other"}]
)
def test_what_does_not_decide_results_may_change(spec, free):
    assert spec_changes(spec.to_json(), replace(spec, **free)) == {}


@pytest.mark.parametrize(
    ("change", "old", "new"),
    [
        ({"seed": 7}, 0, 7),
        ({"epochs": 3}, 2, 3),
        ({"batch_size": None}, 16, None),
        ({"metric": "train_loss"}, "val_loss", "train_loss"),
        ({"mode": Mode.MAX}, "min", "max"),
        ({"threads_per_worker": 2}, 1, 2),
        ({"search": "random"}, "grid", "random"),
        ({"num_trials": 4}, None, 4),
        ({"train_shards": 8}, 2, 8),
        ({"data_digest": "f" * 64}, None, "f" * 64),
    ],
)
def test_what_decides_results_is_a_change(spec, change, old, new):
    (name,) = change
    before = spec.to_json()
    found = spec_changes(before, replace(spec, **change))
    assert found == {name: (before[name] if old is None else old, new)}


def test_a_space_in_another_order_is_the_same_space_of_a_grid(data):
    """JSON objects have no order; trials that exist are taken from the journal anyway."""
    one = toy_spec(data, {"lr": [0.1], "momentum": [0.5]})
    two = toy_spec(data, {"momentum": [0.5], "lr": [0.1]})
    assert spec_changes(one.to_json(), two) == {}


def test_changes_are_refused_with_old_new_and_the_ways_out():
    changes = {"seed": (0, 7), "space": ({"lr": [1] * 500}, {})}
    with pytest.raises(ResumeMismatchError) as caught:
        refuse_changes(changes, "file:///runs/a")
    text = str(caught.value)
    assert "of file:///runs/a seed was 0 and is 7; space was " in text
    for way_out in ("another name", "fresh=True", "force=True"):
        assert way_out in text
    assert len(text) < 700
    assert "\n" not in text


def test_no_changes_are_fine():
    refuse_changes({}, "anywhere")
