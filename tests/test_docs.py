"""Everything the documentation shows runs: docstring examples, and the code blocks of every page.

A page becomes one script: its `python` blocks share a namespace, and the `cerebro ...` lines of its
`bash` blocks run in between, all in an empty directory. A block after `<!-- file: NAME -->` is
written to that file instead. Line numbers in a traceback are those of the page.
"""

from __future__ import annotations

import doctest
import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

#: Run by tests/cluster, which has what they need.
ELSEWHERE = {ROOT / "docs" / "cluster.md", ROOT / "docs" / "spark.md"}

FENCE = re.compile(r"^```(\w*)\s*$")
FILE_MARK = re.compile(r"^<!-- file: ([\w.-]+) -->$")


class Block(NamedTuple):
    """A fenced code block of a page."""

    language: str
    line: int
    text: str
    file: str | None


def blocks_of(page: str) -> list[Block]:
    found: list[Block] = []
    language, start, file, lines = "", 0, None, list[str]()
    for number, line in enumerate(page.splitlines(), start=1):
        fence = FENCE.match(line)
        if start and line == "```":
            found.append(Block(language, start, "\n".join(lines), file))
            start, file, lines = 0, None, []
        elif start:
            lines.append(line)
        elif fence:
            language, start = fence[1], number + 1
        elif line.strip():
            mark = FILE_MARK.match(line)
            file = mark[1] if mark else None
    return found


def script_of(page: str) -> str:
    """The page as a script, each statement on the line it has in the page."""
    lines = [""] * (len(page.splitlines()) + 1)
    for block in blocks_of(page):
        for number, line in enumerate(block.text.splitlines(), start=block.line - 1):
            if block.file is None and block.language == "python":
                lines[number] = line
            elif block.file is None and block.language == "bash" and line.startswith("cerebro "):
                command = shlex.split(line, comments=True)
                lines[number] = f"__import__('subprocess').run({command!r}, check=True)"
    return "\n".join(lines)


def page_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def pages_with_code() -> list[Path]:
    return [
        path
        for path in PAGES
        if path not in ELSEWHERE and script_of(path.read_text(encoding="utf-8")).strip()
    ]


def modules_with_examples() -> list[str]:
    return [
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(SOURCE.rglob("*.py"))
        if ">>> " in path.read_text(encoding="utf-8")
    ]


@pytest.mark.parametrize("name", modules_with_examples())
def test_docstring_examples_run(name, tmp_path, monkeypatch, capsys):
    module = importlib.import_module(name)
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0, capsys.readouterr().out
    assert result.attempted > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", pages_with_code(), ids=page_name)
def test_code_blocks_run(path, tmp_path):
    page = path.read_text(encoding="utf-8")
    script = script_of(page)
    for block in blocks_of(page):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text + "\n", encoding="utf-8")
    (tmp_path / "page.py").write_text(script, encoding="utf-8")
    path_variable = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path_variable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_api_page_is_up_to_date():
    done = subprocess.run([sys.executable, ROOT / "docs" / "generate.py", "--check"], check=False)
    assert done.returncode == 0, "docs/api.md differs from the docstrings: run `make docs`"


def test_a_page_becomes_a_script_with_its_own_line_numbers():
    page = "text\n```python\nx = 1\n```\n```bash\ncerebro run a.yaml  # why\nmake demo\n```\n"
    script = script_of(page).splitlines()
    assert script[2] == "x = 1"
    assert script[5] == "__import__('subprocess').run(['cerebro', 'run', 'a.yaml'], check=True)"
    assert script[6] == ""


def test_a_block_with_a_file_mark_is_written_not_run():
    page = "<!-- file: a.py -->\n```python\nx = 1\n```\n```python\ny = 2\n```\n"
    assert [block.file for block in blocks_of(page)] == ["a.py", None]
    assert "x = 1" not in script_of(page)


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_relative_links_lead_to_files(path):
    # In code brackets mean something else.
    prose = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    links = re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", prose)
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_every_test_file_that_the_guarantees_name_exists():
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", page))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_error_is_on_the_api_page():
    errors = importlib.import_module("cerebro.errors")
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    classes = [name for name, value in vars(errors).items() if isinstance(value, type)]
    assert [name for name in classes if f"cerebro.errors.{name}" not in page] == []


def test_methods_and_attributes_are_on_the_api_page_in_full():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert "  - `keep_top`: At the end keep the checkpoints of so many best configurations" in page
    for name in ("framework", "amp", "clip_grad_norm", "scheduler_step"):
        assert re.search(rf"^- `{name}: [^`]+`: \S", page, re.MULTILINE), name
    assert "cerebro.results.TrialResult(" in page
    assert "cerebro.results.Leaderboard(" in page


def table_of(title: str) -> set[str]:
    """What stands in the first columns of the tables of a section of the experiment file's page."""
    page = (ROOT / "docs" / "experiment-file.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    cells = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell) or [cell]}


def test_every_key_and_domain_of_an_experiment_file_is_documented():
    schema = importlib.import_module("cerebro.config.schema")
    domain = importlib.import_module("cerebro.search.domain")
    names = {*schema.ExperimentConfig.model_fields, *domain.DOMAINS}
    assert table_of("Keys") - {"key", "domain"} == names


def test_every_command_and_flag_is_documented():
    app = importlib.import_module("cerebro.cli.app").app
    group = importlib.import_module("typer").main.get_command(app)
    commands = [group, *group.commands.values()]
    flags = {flag for c in commands for param in c.params for flag in param.opts if "-" in flag}
    told = table_of("Commands")
    assert {text.split()[0] for text in told if text.startswith("-")} == {*flags, "--help", "-h"}
    assert {text.split()[1] for text in told if text.startswith("cerebro ")} == set(group.commands)


def test_every_exit_code_is_documented():
    errors = importlib.import_module("cerebro.errors")
    codes = {v.exit_code for v in vars(errors).values() if hasattr(v, "exit_code")}
    assert table_of("Exit codes") - {"code"} == {str(code) for code in {0, *codes}}
