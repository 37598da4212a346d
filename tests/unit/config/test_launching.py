"""The `launch` section: what is wrong with it is told by whoever reads the file, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.config.files import load_file
from cerebro.errors import ConfigError
from tests.unit.config.recipes import RECIPE

TASK = """\
name: digits
task: package.tasks:Digits
data: data
epochs: 5
batch_size: 32
metric: val_accuracy
mode: max
space: {lr: [0.1]}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()


def refused(text: str, *overrides: str) -> str:
    Path("file.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_file("file.yaml", overrides)
    return str(caught.value)


WRONG = [
    ("nodse", "3", "unknown key of launch 'nodse'. Known: kind, job_name, time, "),
    ("nodes", "many", "`launch.nodes` must be a whole number, but got 'many'."),
    ("kind", "pbs", "`launch.kind` must be one of slurm, k8s, rayjob, raycluster, job, but got 'p"),
]


@pytest.mark.parametrize("text", [TASK, RECIPE], ids=["task", "recipe"])
@pytest.mark.parametrize(("key", "value", "message"), WRONG, ids=str)
def test_a_wrong_section_is_refused_with_its_line_or_override(text, key, value, message):
    override = f"launch.{key}={value}"
    assert refused(text, override).startswith(f"override {override!r}: {message}")
    lines = text.count("\n")
    written = f"{text}launch:\n  qos: regular\n  {key}: {value}\n"
    assert refused(written).startswith(f"file.yaml:{lines + 3}: {message}")


@pytest.mark.parametrize("text", [TASK, RECIPE], ids=["task", "recipe"])
def test_the_key_that_was_meant_is_not_blamed_for_the_wrong_one(text):
    lines = text.count("\n")
    written = f"{text}launch:\n  nodes: 8\n"
    assert refused(f"{written}  nodse: 2\n").startswith(f"file.yaml:{lines + 3}: unknown key")
    assert refused(written, "launch.nodse=2").startswith("override 'launch.nodse=2': unknown key")


def test_what_was_meant_is_told_and_the_keys_are_those_of_the_kind():
    assert refused(RECIPE, "launch.nodse=3").endswith("Did you mean 'nodes'?")
    told = refused(RECIPE, "launch={kind: job, time: 60}")
    assert "unknown key of launch 'time'. Known: kind, name, image, " in told


@pytest.mark.parametrize("text", [TASK, RECIPE], ids=["task", "recipe"])
@pytest.mark.parametrize(
    "section", ["{nodes: 8, time: 60}", "{kind: rayjob, image: a, secrets: [s3]}", "{}"]
)
def test_a_section_for_either_system_is_read(text, section):
    Path("file.yaml").write_text(text)
    config = load_file("file.yaml", [f"launch={section}"])
    assert config.launch.get("time") in (60, None)
