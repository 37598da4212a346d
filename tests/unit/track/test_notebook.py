from __future__ import annotations

import math
import os
import sys
import types
import xml.etree.ElementTree as ET
from array import array
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path

import pytest

from cerebro.results import Leaderboard
from cerebro.storage import DirectoryStore
from cerebro.storage.workspace import Service, Services, make_private, write_services
from cerebro.testing.tracker_contract import Shape, TrackerContract, small_run
from cerebro.track.notebook import NotebookTracker, find_publisher, notebook_tracker
from cerebro.track.notebook_html import board_html, chart_svg, leaderboard_html
from cerebro.track.notebook_link import tensorboard_link
from cerebro.track.ranking import Criteria, TrialRow, rank
from cerebro.track.records import EpochFinished, RunStarted, TrialAdded, TrialFinished, VisitStarted
from cerebro.track.tracker import FanOut, Tracker
from cerebro.types import Mode, TrialStatus

CELL: ContextVar[str] = ContextVar("cell", default="none")
STARTED = RunStarted(
    run="digits",
    workers=2,
    trials=2,
    epochs=3,
    train_shards=2,
    val_shards=1,
    metric="val_accuracy",
    mode=Mode.MAX,
)


class Screen:
    """What a kernel would show: the messages, and from which cell they came."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bool]] = []
        self.cells: set[str] = set()
        self.shown: dict[str, dict[str, str]] = {}

    def publish(self, data, *, transient, update):
        display = transient["display_id"]
        assert update == (display in self.shown)
        self.messages.append((display, update))
        self.cells.add(CELL.get())
        self.shown[display] = dict(data)

    @property
    def page(self) -> str:
        (data,) = self.shown.values()
        return data["text/html"]


class TestNotebookTracker(TrackerContract):
    def make(self, directory: Path) -> Tracker:
        return NotebookTracker(Screen())


def show(*records) -> Screen:
    screen = Screen()
    tracker = NotebookTracker(screen)
    for record in records:
        tracker.record(record)
    tracker.close()
    return screen


def epochs(trial: int, *values: float) -> list[EpochFinished]:
    return [
        EpochFinished(trial=trial, epoch=n, metrics={"val_accuracy": v}, seconds=1.0)
        for n, v in enumerate(values)
    ]


def test_a_run_is_one_display_that_is_replaced():
    screen = show(*small_run())
    (display,) = screen.shown
    assert screen.messages[0] == (display, False)
    assert set(screen.messages[1:]) == {(display, True)}


def test_many_records_are_few_updates():
    screen = show(*small_run(shape=Shape(trials=200)))
    assert len(screen.messages) < 10


def test_what_is_shown_belongs_to_the_cell_that_started_the_run():
    CELL.set("third")
    screen = Screen()
    with FanOut([NotebookTracker(screen)]) as fan:
        CELL.set("fourth")
        fan.record(STARTED)
    assert screen.cells == {"third"}


def test_it_shows_workers_curves_and_ranks_while_the_run_goes_on():
    visit = VisitStarted(trials=(1,), epoch=1, step=0, phase="train", shard=1, worker=0, time_s=1.0)
    screen = show(
        STARTED,
        TrialAdded(trial=0, params={"lr": 0.1}),
        TrialAdded(trial=1, params={"lr": 0.2}),
        *epochs(0, 0.5, 0.6),
        *epochs(1, 0.4, 0.8),
        visit,
    )
    page = screen.page
    assert "worker 0: t0001 epoch 2 shard 1" in page
    assert page.count("<polyline") == 2
    assert page.index("<td>t0001</td>") < page.index("<td>t0000</td>")
    assert "visits 12/18" in page


def test_at_the_end_it_shows_the_leaderboard_and_no_bar():
    page = show(*small_run()).page
    assert 'class="bar"' not in page
    assert "efficiency" in page


def test_failures_are_named():
    failed = TrialFinished(trial=0, status=TrialStatus.FAILED, error="<no> luck")
    page = show(STARTED, TrialAdded(trial=0, params={}), failed).page
    assert "t0000 failed: &lt;no&gt; luck" in page


def test_without_a_run_nothing_is_shown():
    assert show().messages == []


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "\"><img src=x onerror='1'>", "\x1b"]
)
def test_nothing_that_users_named_becomes_markup(text):
    metrics = {text: 1.0, "val_accuracy": 0.5}
    screen = show(
        replace(STARTED, run=text, metric=text),
        TrialAdded(trial=0, params={text: text}),
        EpochFinished(trial=0, epoch=0, metrics=metrics, seconds=1.0),
        EpochFinished(trial=0, epoch=1, metrics=metrics, seconds=1.0),
        TrialFinished(trial=0, status=TrialStatus.FAILED, error=text),
    )
    assert "<script" not in screen.page
    assert "<img" not in screen.page
    assert "\x1b" not in screen.page


CURVES = [
    {0: [(1, 0.1), (2, 0.2), (3, 0.15)], 1: [(1, 0.3), (2, 0.1)]},
    {0: [(1, math.nan), (2, 0.2), (3, math.inf), (4, 0.3)]},
    {0: [(1, 0.5), (2, 0.5)]},
    {0: [(1, -1.7e308), (2, 1.7e308)]},
    {0: [(n, float(n)) for n in range(1, 10_001)]},
]


@pytest.mark.parametrize("lines", CURVES)
def test_a_picture_of_curves_is_valid_and_within_its_frame(lines):
    root = ET.fromstring(chart_svg("loss", lines, best=0))  # noqa: S314 (our own text)
    shapes = root.findall("polyline")
    assert len(shapes) == len(lines)
    for shape in shapes:
        points = [tuple(map(float, pair.split(","))) for pair in shape.attrib["points"].split()]
        assert 2 <= len(points) <= 202
        assert all(46 <= x <= 340 and 17 <= y <= 135 for x, y in points)


@pytest.mark.parametrize("lines", [{}, {0: []}, {0: [(1, math.nan)]}])
def test_without_a_point_there_is_no_picture(lines):
    assert chart_svg("loss", lines) == ""


@pytest.mark.parametrize(
    "lines",
    [{0: [(1, 0.1)]}, {0: [(1, math.nan), (2, 0.1)]}, {0: [(1, 0.1)], 1: [(1, 0.3), (2, 0.1)]}],
)
def test_a_single_point_is_a_dot(lines):
    root = ET.fromstring(chart_svg("loss", lines))  # noqa: S314 (our own text)
    (dot,) = root.findall("circle")
    assert 46 <= float(dot.attrib["cx"]) <= 340
    assert 17 <= float(dot.attrib["cy"]) <= 135


def test_the_first_epoch_is_shown():
    added = TrialAdded(trial=0, params={"lr": 0.1})
    assert show(STARTED, added, *epochs(0, 0.5)).page.count("<circle") == 1


def test_the_page_stays_small_with_many_trials_and_epochs():
    records = [
        replace(STARTED, trials=1000, epochs=500),
        *(TrialAdded(trial=n, params={"lr": n / 7}) for n in range(1000)),
    ]
    screen = Screen()
    tracker = NotebookTracker(screen)
    for record in records:
        tracker.record(record)
    curves = {n: {"val_accuracy": array("d", [0.1] * 500)} for n in range(1000)}
    assert len(board_html(tracker._board, curves)) < 60_000


def test_a_long_leaderboard_is_cut():
    rows = [TrialRow(trial=n, params={}, metric=n / 100) for n in range(50)]
    page = leaderboard_html(rank(rows, Criteria(metric="val_loss", mode=Mode.MIN)))
    assert page.count("<tr") == 13
    assert "… and 38 more" in page


@pytest.fixture
def ipython(monkeypatch):
    """Pretends that this process is a session of IPython."""
    module = types.ModuleType("IPython")
    monkeypatch.setitem(sys.modules, "IPython", module)

    def become(shell: object) -> None:
        module.get_ipython = lambda: shell

    return become


def test_in_a_kernel_the_view_is_used(ipython):
    screen = Screen()
    ipython(types.SimpleNamespace(kernel=object(), display_pub=screen))
    assert find_publisher() is screen
    assert isinstance(notebook_tracker(), NotebookTracker)


@pytest.mark.parametrize("shell", [None, types.SimpleNamespace(display_pub=None)])
def test_elsewhere_it_is_not(ipython, shell):
    ipython(shell)
    assert notebook_tracker() is None


def test_a_leaderboard_shows_itself():
    rows = [TrialRow(trial=0, params={"lr": 0.1}, metric=0.5)]
    board = Leaderboard(rank(rows, Criteria(metric="val_loss", mode=Mode.MIN)))
    assert "<td>t0000</td>" in board._repr_html_()


def test_without_services_the_link_says_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tensorboard_link(DirectoryStore(tmp_path / "it's <runs>"))
    assert "cerebro start" in page
    assert "<runs>" not in page
    assert "href" not in page


@pytest.mark.parametrize(("pid", "is_linked"), [(None, True), (2**22 + 1, False)])
def test_a_dead_tensorboard_gets_no_link(tmp_path, monkeypatch, pid, is_linked):
    monkeypatch.chdir(tmp_path)
    make_private(tmp_path)
    service = Service(
        name="tensorboard", pid=pid or os.getpid(), created_s=1.0, port=6006, token="t0ken"
    )
    write_services(tmp_path, Services(host="here", services=(service,)))
    page = tensorboard_link(DirectoryStore(tmp_path / "runs" / "digits"))
    assert ('href="http://127.0.0.1:6006/?token=t0ken"' in page) == is_linked


def test_runs_outside_of_the_workspace_get_the_link_of_this_one(tmp_path, monkeypatch):
    workspace = tmp_path / "work"
    workspace.mkdir()
    monkeypatch.chdir(workspace)
    make_private(workspace)
    service = Service(name="tensorboard", pid=os.getpid(), created_s=1.0, port=6006, token="x")
    write_services(workspace, Services(host="here", services=(service,)))
    assert "http://127.0.0.1:6006" in tensorboard_link(DirectoryStore(tmp_path / "scratch"))


def test_damaged_files_of_a_workspace_give_no_link(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_private(tmp_path)
    (tmp_path / ".cerebro" / "services.json").write_text("{")
    assert "href" not in tensorboard_link(DirectoryStore(tmp_path / "runs"))
