"""Which backend Keras runs on where nobody, or somebody, has chosen."""

from __future__ import annotations

import json
import os
import sys

import pytest

from cerebro.train.keras.backend import choose_backend


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A process that has not loaded Keras, and a user without a configuration."""
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    installed = {"torch", "jax"}
    monkeypatch.setattr(
        "cerebro.train.keras.backend.find_spec", lambda name: name if name in installed else None
    )
    return installed


def chosen(monkeypatch):
    # So that the variable is put back whatever happens.
    monkeypatch.setenv("KERAS_BACKEND", "")
    choose_backend()
    return os.environ["KERAS_BACKEND"]


def test_it_is_pytorch_where_that_is_installed(fresh, monkeypatch):
    assert chosen(monkeypatch) == "torch"


def test_it_is_the_next_that_is_installed(fresh, monkeypatch):
    fresh.remove("torch")
    assert chosen(monkeypatch) == "jax"


def test_the_variable_of_the_user_stays(fresh, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    choose_backend()
    assert os.environ["KERAS_BACKEND"] == "jax"


@pytest.mark.parametrize(("named", "expected"), [("jax", "jax"), ("tensorflow", "torch")])
def test_the_configuration_counts_if_what_it_names_is_installed(
    fresh, monkeypatch, tmp_path, named, expected
):
    (tmp_path / "keras.json").write_text(json.dumps({"backend": named}))
    assert chosen(monkeypatch) == expected


def test_a_program_that_has_loaded_keras_keeps_its_backend(fresh, monkeypatch):
    monkeypatch.setitem(sys.modules, "keras", object())
    assert chosen(monkeypatch) == ""
