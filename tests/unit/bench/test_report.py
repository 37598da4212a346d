"""The report: one page that needs nothing else, pictures and tables."""

from __future__ import annotations

import csv
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cerebro.bench.cases import gather
from cerebro.bench.chart import BarChart, Frame, LineChart, Series, axis_of, lay_out, style_of
from cerebro.bench.figures import draw
from cerebro.bench.measurement import PARTS, NodeUse
from cerebro.bench.png import line_png
from cerebro.bench.report import write_report
from cerebro.bench.svg import bar_svg, line_svg
from cerebro.bench.sweep import Rule, Setting, Sweep
from tests.unit.bench.made import ABOUT, failed, measured

SETTINGS = [
    Setting(batch=64, checkpoint=False),
    Setting(batch=64, checkpoint=True),
    Setting(nodes=2, batch=64, checkpoint=False),
    Setting(nodes=2, batch=64, checkpoint=False, rule=Rule.RANK),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    runs = [measured(setting, 10.0 + 3 * setting.nodes, communication=0.2) for setting in SETTINGS]
    lost = failed(Setting(nodes=3, batch=64), "node 1 ended with 2: <no> route")
    assert write_report(folder, [*runs, lost], ABOUT) == []
    return folder


class Page(HTMLParser):
    """Fails on tags that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.titles: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.titles.append(data)


def test_the_page_is_whole_and_loads_nothing(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.titles == [
        "In words",
        "Completion times",
        "Nodes and processes at a fixed batch in all",
        "Nodes and processes at a fixed batch for each process",
        "Where the training time goes",
        "The effect of saving states",
        "Convergence",
        "Processors and memory, by node",
        "Files",
    ]
    assert not re.search(r"https?://|<script|<img|<link|@import", text)
    assert "&lt;no&gt; route" in text
    assert "Abacus &lt;mk. 1&gt;" in text
    assert "Simulated nodes." in text
    assert f"tensorboard --logdir {folder / 'runs'}" in text
    assert "val_accuracy against rows seen: batch 64 in all</figcaption>" in text
    assert "the first epochs lie on each other" in text
    assert "2 nodes took 1.23x as long as 1 node at the same global batch (64)" in text
    assert "a visit is one pass over one shard of the data" in text
    assert "<b>threads</b>: of each process" in text


def test_times_are_compared_where_settings_have_the_same_batch(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    sections = [part for part in text.split("<section>") if "time against the first" in part]
    titles = [re.findall("<h2>(.*?)</h2>", part)[0] for part in sections]
    assert titles == [
        "Nodes and processes at a fixed batch in all",
        "Nodes and processes at a fixed batch for each process",
    ]


def test_the_times_of_saving_have_those_of_completion_beside_them(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "<td>1 node, batch 64</td><td>18</td><td>18</td><td>13</td><td>13</td>" in text


def test_legends_are_inside_their_charts() -> None:
    bars = ((f"3 nodes x 2 processes, batch 256 in all, {'not ' * 5}saved", (1.0,) * len(PARTS)),)
    drawn = bar_svg(BarChart(name="s", title="t", x_label="ms", parts=PARTS, bars=bars), 760.0)
    (at,) = re.findall(r'<text x="([0-9.]+)"[^>]*>other<', drawn)
    assert float(at) + 7 * len("other") <= 760
    series = tuple(Series(f"a rather long label {n}", (0.0, 1.0), (0.0, 1.0)) for n in range(8))
    chart = LineChart(name="c", title="t", x_label="x", y_label="y", series=series)
    drawn = line_svg(chart)
    (height,) = re.findall(r'viewBox="0 0 [0-9.]+ ([0-9.]+)"', drawn)
    assert max(float(y) for y in re.findall(r'<text x="[0-9.]+" y="([0-9.]+)"', drawn)) + 4 < float(
        height
    )


def test_every_picture_of_the_page_is_a_file_too(folder: Path) -> None:
    names = {path.name for path in (folder / "png").iterdir()}
    assert {
        "split.png",
        "convergence-time-b64-global.png",
        "convergence-rows-b64-rank.png",
    } <= names
    for setting in SETTINGS:
        assert {f"{setting.key}-cpu.png", f"{setting.key}-memory.png"} <= names
    for name in names:
        with Image.open(folder / "png" / name) as picture:
            assert picture.width > 500
            assert len(picture.convert("L").getcolors() or []) > 1


def test_the_curves_of_all_nodes_and_gpus_are_shown() -> None:
    run = measured(Setting(nodes=10, batch=64))
    cards = {f"gpu/{card}/util": ((0.0, 1.0), (50.0, 60.0)) for card in range(2)}
    nodes = tuple(replace(use, series={**use.series, **cards}) for use in run.nodes)
    ((_, charts),) = draw(gather([replace(run, nodes=nodes)])).usage
    shown = {
        what: [series.label for chart in charts if what in chart.name for series in chart.series]
        for what in ("cpu", "memory", "gpu")
    }
    names = [f"node {number}" for number in range(10)]
    assert shown == {
        "cpu": names,
        "memory": names,
        "gpu": [f"{name} {card}" for name in names for card in cards],
    }
    assert all(len(chart.series) <= 8 for chart in charts)
    assert len({chart.name for chart in charts}) == len(charts) == 2 + 2 + 3
    assert charts[1].title == "CPU: 10 nodes, batch 64 in all, 2 of 2"


def test_each_chart_of_convergence_overlays_what_is_compared() -> None:
    sweep = Sweep(nodes=(1, 2, 3), procs=(1, 2), batches=(32, 256), checkpoint=True)
    charts = draw(gather([measured(setting) for setting in sweep.settings()])).convergence
    lines = {chart.title: [series.label for series in chart.series] for chart in charts}
    assert len(lines) == len(charts) == 2 * (2 * 2 + 1)
    assert lines["val_accuracy against rows seen: batch 32 in all"] == [
        *("1 node", "1 node x 2 processes", "2 nodes"),
        *("3 nodes", "2 nodes x 2 processes", "3 nodes x 2 processes"),
    ]
    assert "val_accuracy against time: batch 256 for each process" in lines
    batches = lines["val_accuracy against time: batch sizes, 1 node"]
    assert batches == ["batch 32", "batch 256"]


@pytest.mark.parametrize(
    "settings",
    [
        [Setting()],
        [Setting(changes=(("lr", value),)) for value in ("0.1", "1")],
        [Setting(nodes=n, batch=64) for n in range(1, 21)],
    ],
)
def test_no_curve_is_left_out_and_none_is_lost_in_a_crowd(settings: list[Setting]) -> None:
    charts = draw(gather([measured(setting) for setting in settings])).convergence
    by_rows = [chart for chart in charts if "against rows" in chart.title]
    assert len({series.label for chart in by_rows for series in chart.series}) == len(settings)
    assert all(len(chart.series) <= 8 for chart in charts)
    assert len({chart.name for chart in charts}) == len(charts)


def test_time_begins_at_zero_though_a_node_was_early() -> None:
    early = NodeUse("node 0", {"memory/tree_rss": ((-0.4, 0.6, 9.0), (1e6, 2e6, 3e6))})
    run = replace(measured(SETTINGS[0]), nodes=(early,))
    ((_, (chart,)),) = draw(gather([run])).usage
    assert lay_out(chart, Frame()).x.low == 0


def test_every_curve_is_in_a_table(folder: Path) -> None:
    tables = {
        path.stem: list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
        for path in (folder / "csv").iterdir()
    }
    assert [row["status"] for row in tables["times"]] == ["done"] * 4 + ["failed"]
    assert tables["times"][2]["global_batch"] == "64"
    assert tables["times"][3]["global_batch"] == "128"
    assert len(tables["convergence"]) == 4 * 3
    assert {row["what"] for row in tables["resources"]} >= {"cpu/tree", "memory/tree_rss"}
    assert len(tables["split"]) == 4


def test_without_pillow_all_but_the_pictures_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    (problem,) = write_report(tmp_path, [measured(SETTINGS[0])], ABOUT)
    assert "pip install 'cerebro[images]'" in problem
    assert (tmp_path / "report.html").exists()


def test_a_report_of_failures_alone_can_be_read(tmp_path: Path) -> None:
    write_report(tmp_path, [failed(SETTINGS[0], "no memory")], ABOUT)
    assert "no memory" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_lines_differ_without_colour() -> None:
    styles = [style_of(number) for number in range(12)]
    assert len({(style.dash, style.marker) for style in styles}) == 12


@given(st.lists(st.floats(-1e12, 1e12), min_size=1), st.booleans())
def test_an_axis_holds_all_its_values(values: list[float], from_zero: bool) -> None:
    axis = axis_of(values, from_zero=from_zero)
    slack = 1e-8 * (axis.high - axis.low)
    assert axis.low - slack <= min(values)
    assert max(values) <= axis.high + slack
    assert 2 <= len(axis.ticks) <= 12


def test_a_flat_line_is_in_the_middle_of_an_axis_that_stays_near_it() -> None:
    for values in ([0.68, 0.68], [0.68, 0.68000001]):
        axis = axis_of(values, from_zero=False)
        assert 0.6 < axis.low < 0.68 < axis.high < 0.75


def test_what_happened_late_is_written_inside_the_chart() -> None:
    series = (Series("a", (0.0, 10.0), (1.0, 2.0)),)
    marks = ((1.0, "early"), (9.9, "late"))
    chart = LineChart(name="c", title="t", x_label="x", y_label="y", series=series, marks=marks)
    drawn = line_svg(chart)
    assert 'text-anchor="start">early' in drawn
    # Above the plot, where no curve is.
    frame = Frame().headed(len(marks))
    rows = [
        float(y) for y in re.findall(r'y="([0-9.]+)" text-anchor="[a-z]+">(?:early|late)', drawn)
    ]
    assert len(set(rows)) == 2
    assert max(rows) <= frame.top
    assert 'text-anchor="end">late' in drawn


def test_what_happened_again_is_a_fainter_line_without_words() -> None:
    series = (Series("a", (0.0, 10.0), (1.0, 2.0)),)
    chart = LineChart(
        name="c", title="t", x_label="x", y_label="y", series=series, faint=(2.0, 4.0, 11.0)
    )
    drawn, without = line_svg(chart), line_svg(replace(chart, faint=()))
    # What is past the end of the axis is left out.
    assert drawn.count('stroke="#aaa"') == 2
    assert drawn.count("<text") == without.count("<text")


def test_pictures_have_the_fainter_lines_too(tmp_path: Path) -> None:
    series = (Series("a", (0.0, 10.0), (1.0, 2.0)),)
    chart = LineChart(name="c", title="t", x_label="x", y_label="y", series=series)
    paths = [tmp_path / "with.png", tmp_path / "without.png"]
    line_png(replace(chart, faint=(2.0, 4.0)), paths[0])
    line_png(chart, paths[1])
    assert paths[0].read_bytes() != paths[1].read_bytes()


def test_a_chart_leaves_out_what_is_not_finite_and_survives_one_point(tmp_path: Path) -> None:
    nan = float("nan")
    series = (Series("a", (0.0, 1.0), (nan, 5.0)), Series("b", (), ()))
    chart = LineChart(name="c", title="t", x_label="x", y_label="y", series=series)
    assert "nan" not in line_svg(chart)
    line_png(chart, tmp_path / "c.png")
    assert (tmp_path / "c.png").stat().st_size > 0


def test_long_series_keep_their_peaks() -> None:
    ys = tuple(100.0 if x == 4567 else 1.0 for x in range(10_000))
    chart = LineChart(
        name="c",
        title="t",
        x_label="x",
        y_label="y",
        series=(Series("a", tuple(map(float, range(10_000))), ys),),
    )

    frame = Frame()
    (line,) = lay_out(chart, frame).lines
    assert len(line) <= 700
    assert min(y for _, y in line) == pytest.approx(frame.top)
