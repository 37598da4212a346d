"""Experiment files of either kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.config.files import find_name

TASK = "name: digits\ntask: tasks.py:Digits\ndata: nowhere\n"
RECIPE = "output_dir: runs/hello\nmodel: {}\ntraining: {}\n"


@pytest.mark.parametrize(
    ("text", "overrides", "name"),
    [
        (TASK, [], "digits"),
        (TASK, ["name=letters"], "letters"),
        (RECIPE, [], "hello"),
        (RECIPE, ["output_dir=runs/two"], "two"),
        ("model: {}\ntraining: {}\n", [], "file"),
        ("name: [digits]\n", [], None),
        ("name: a b\n", [], None),
        ("name: digits\nname: letters\n", [], None),
        ("- digits\n", [], None),
        ("{", [], None),
        (TASK, ["nothing"], None),
        ("model: {}\ntraining: {}\noutput_dir: $NO_SUCH_PLACE/x\n", [], None),
        ("model: {}\ntraining: {}\noutput_dir: 3\n", [], None),
    ],
)
def test_the_name_of_a_run_is_found_whatever_else_is_wrong(
    tmp_path: Path, text: str, overrides: list[str], name: str | None
) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    assert find_name(path, overrides) == name


def test_a_file_that_is_not_there_has_no_name(tmp_path: Path) -> None:
    assert find_name(tmp_path / "file.yaml", []) is None
