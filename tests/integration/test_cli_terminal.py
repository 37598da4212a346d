"""The `cerebro` command in a terminal: a live table, then the leaderboard, whatever the width."""

from __future__ import annotations

import re

import pytest

from tests.integration.project import Project, make_project

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9]")
LONG = '  lr: [0.1, 0.01]\n  a_rather_long_name_of_a_param: ["a value that is rather long as well"]'


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = make_project(tmp_path_factory.mktemp("terminal"))
    project.edit("experiment.yaml", "  lr: [0.1, 0.01]", LONG)
    return project


@pytest.fixture(scope="module")
def screen(project: Project) -> str:
    """What a run of 80 columns showed."""
    code, screen = project.terminal("run", "experiment.yaml")
    assert code == 0, screen
    return screen


def rows_of(screen: str) -> list[list[str]]:
    """The leaderboard's lines, split into words."""
    lines = CODES.sub("", screen).splitlines()
    start = max(n for n, line in enumerate(lines) if line.split()[:2] == ["rank", "trial"])
    return [line.split() for line in lines[start : start + 3]]


def test_a_run_keeps_a_live_table(screen):
    shown = CODES.sub("", screen)
    assert shown.startswith("starting 2 workers\n")
    assert "run toy: 2 trials x 2 epochs x 3 shards on 2 workers" in shown
    assert re.search(r"trial +epoch +shard +loss +val_accuracy +worker +params", shown)
    assert re.search(r"visits \d+/16 ", shown)


def test_no_line_is_wider_than_the_terminal_but_paths_and_sentences(screen):
    wide = [line for line in CODES.sub("", screen).splitlines() if len(line) > 80]
    assert all("efficiency" in line or "/" in line for line in wide)


def test_the_cursor_is_visible_in_the_end(screen):
    assert screen.rindex("\x1b[?25h") > screen.rfind("\x1b[?25l")


def test_the_leaderboard_has_rank_trial_and_status_in_80_columns(screen):
    header, first, second = rows_of(screen)
    assert header[:4] == ["rank", "trial", "val_accuracy", "epoch"]
    assert header[-1] == "status"
    assert [first[0], first[-1], second[0]] == ["1", "finished", "2"]
    assert {first[1], second[1]} == {"t0000", "t0001"}


@pytest.mark.parametrize("columns", [40, 60, 200])
@pytest.mark.usefixtures("screen")
def test_results_fit_any_width(project, columns):
    code, screen = project.terminal("results", "runs/toy", columns=columns)
    assert code == 0
    lines = CODES.sub("", screen).splitlines()
    assert [line for line in lines if len(line) > columns] == []
    if columns > 40:
        assert rows_of(screen)[1][:2] == ["1", "t0000"]


@pytest.mark.usefixtures("screen")
def test_the_best_trial_stands_out_unless_no_color_is_set(project):
    assert COLOUR.search(project.terminal("results", "runs/toy")[1])
    assert not COLOUR.search(project.terminal("results", "runs/toy", NO_COLOR="1")[1])


@pytest.mark.usefixtures("screen")
def test_a_terminal_that_knows_ascii_alone_is_no_trouble(project):
    code, screen = project.terminal("results", "runs/toy", PYTHONIOENCODING="ascii")
    assert code == 0
    assert screen.isascii()
    assert "rather long" in screen


@pytest.mark.usefixtures("screen")
def test_a_dumb_terminal_gets_plain_lines(project):
    code, screen = project.terminal("run", "experiment.yaml", "name=dumb", TERM="dumb")
    assert code == 0
    assert not CODES.search(screen)
    assert "run dumb: 2 trials" in screen


@pytest.mark.usefixtures("screen")
def test_output_sent_to_a_file_has_the_result_and_the_terminal_the_progress(project):
    path = project.folder / "out.txt"
    with path.open("w") as file:
        code, screen = project.terminal("run", "experiment.yaml", "name=sent", into=file)
    assert code == 0
    assert re.search(r"visits \d+/16 ", CODES.sub("", screen))
    assert path.read_text().startswith("rank  trial  val_accuracy")
    assert not CODES.search(path.read_text())
