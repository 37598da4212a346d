"""How many workers train a trial of a recipe together."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cerebro.config.files import load_file, show_file
from cerebro.run.parallel import Mode
from tests.unit.config.recipes import RECIPE, load, refused


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("value", [2, "host"])
def test_they_are_given_at_the_top_as_in_a_file_with_a_task(value: object) -> None:
    asked = load(f"{RECIPE}parallel: hybrid\nworkers_per_trial: {value}\n").to_request().parallel
    assert (asked.mode, asked.workers_per_trial) == (Mode.HYBRID, value)


def test_or_on_the_command_line() -> None:
    assert load(RECIPE, "workers_per_trial=4").to_request().parallel.workers_per_trial == 4
    assert load().to_request().parallel.workers_per_trial is None
    text = f"{RECIPE}workers_per_trial: 2\n"
    assert load(text, "workers_per_trial=null").workers_per_trial is None


def test_a_word_for_parallel_is_its_mode_and_may_have_keys_beside_it() -> None:
    asked = load(f"{RECIPE}parallel: ddp\n", "parallel.check_every=7").to_request().parallel
    assert (asked.mode, asked.check_every) == (Mode.DDP, 7)


def test_they_are_shown_and_what_is_shown_can_be_run_again() -> None:
    found = load(RECIPE, "workers_per_trial=2")
    shown = show_file(found, "recipe.yaml", ["workers_per_trial=2"])
    assert yaml.safe_load(shown)["workers_per_trial"] == 2
    Path("shown.yaml").write_text(shown)
    assert load_file("shown.yaml").workers_per_trial == 2


def test_given_twice_they_are_refused() -> None:
    text = f"{RECIPE}parallel: {{mode: hybrid, workers_per_trial: 2}}\nworkers_per_trial: 2\n"
    assert refused(text) == "recipe.yaml:20: workers_per_trial is given twice: keep one."


@pytest.mark.parametrize("value", ["0", "two", "1.5", "true", "[2]"])
def test_other_values_are_refused(value: str) -> None:
    message = refused(RECIPE, f"workers_per_trial={value}")
    assert message.startswith(f"override 'workers_per_trial={value}': `workers_per_trial`: ")
    assert 'workers_per_trial must be a number of at least 1 or "host"' in message
