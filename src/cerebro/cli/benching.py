"""`cerebro bench`: settings one after the other, a table meanwhile, and the report."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from cerebro.bench.cases import gather
from cerebro.bench.conduct import Bench, check_hosts
from cerebro.bench.measurement import Measurement
from cerebro.bench.nodes import are_simulated
from cerebro.bench.report import write_report
from cerebro.bench.subject import open_subject
from cerebro.bench.sweep import Rule, Setting, Sweep, parse_counts, parse_sweep
from cerebro.bench.tables import times_table
from cerebro.bench.words import sentences
from cerebro.cli.located import located
from cerebro.cli.table import format_columns
from cerebro.config.files import load_file
from cerebro.config.recipe import RecipeExperiment
from cerebro.config.schema import ExperimentConfig
from cerebro.errors import RunInterrupted, UsageError
from cerebro.search.allowance import allowance_of
from cerebro.track.text import clean, show_count, show_seconds

_RULES = {"both": tuple(Rule), "global": (Rule.GLOBAL,), "rank": (Rule.RANK,)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the command line says."""

    path: Path
    overrides: tuple[str, ...]
    sweep: tuple[str, ...]
    nodes: str
    procs: str
    batch: str
    is_saved: bool
    repeats: int
    interval_s: float
    hosts: tuple[str, ...]
    out: Path | None


def run_bench(request: Request) -> int:
    """Carry a benchmark to its end; gives the exit code: 1 if a setting failed."""
    bench, settings = plan(request)
    missing = [setting for setting in settings if not bench.is_done(setting)]
    _check(bench, missing)
    about = bench.describe(settings)
    board = _Board(bench, settings)
    if len(missing) < len(settings):
        _tell(f"{len(settings) - len(missing)} of {len(settings)} settings are there already.")
    signal.signal(signal.SIGTERM, _stop)
    try:
        with board.shown():
            for setting in missing:
                board.begin(setting)
                bench.run(setting, board.refresh)
                board.end(setting)
    except KeyboardInterrupt:
        raise RunInterrupted(
            f"stopped; settings that are through are kept in {bench.out}, and the same command "
            "goes on with the others."
        ) from None
    measurements = bench.measure(settings)
    problems = write_report(bench.out, measurements, about)
    _conclude(bench, measurements, int(about["machine"]["cores"]), problems)
    return 0 if all(m.is_done for m in measurements) else 1


def plan(request: Request) -> tuple[Bench, list[Setting]]:
    """What will be run, and where it goes."""
    if request.batch not in _RULES:
        raise UsageError(f"--batch must be both, global or rank, but got {request.batch!r:.40}.")
    subject = open_subject(request.path, request.overrides)
    batches, others = parse_sweep(request.sweep)
    sweep = Sweep(
        nodes=parse_counts(request.nodes, "--nodes"),
        procs=parse_counts(request.procs, "--procs"),
        batches=batches or (() if subject.batch is None else (subject.batch,)),
        rules=_RULES[request.batch],
        others=tuple(others),
        checkpoint=request.is_saved,
        repeats=request.repeats,
    )
    check_hosts(request.hosts, sweep.nodes)
    settings = sweep.settings()
    subject = subject.compared(settings)
    out = request.out if request.out is not None else Path(f"bench-{request.path.stem}")
    bench = Bench(
        subject=subject, out=out.absolute(), hosts=request.hosts, interval_s=request.interval_s
    )
    return bench, settings


def _check(bench: Bench, settings: Sequence[Setting]) -> None:
    """Tell what is wrong with a setting before the first one runs; data are prepared once."""
    path = bench.subject.path
    found: list[tuple[ExperimentConfig, list[str]]] = []
    for setting in settings:
        overrides = bench.subject.overrides(setting, bench.place(setting).run)
        config = load_file(path, overrides)
        with located(config, path, overrides):
            allowance_of(config.goal).check_nodes(setting.nodes, "--nodes")
        found.append((config, overrides))
    for config, overrides in found:
        if isinstance(config, RecipeExperiment) and not bench.hosts:
            with located(config, path, overrides):
                config.prepare(_tell)


@dataclass(slots=True)
class _Board:
    """Which settings are through, which is on, which wait."""

    bench: Bench
    settings: Sequence[Setting]
    _now: Setting | None = None
    _since: float = 0.0
    _live: Live | None = None
    _found: dict[str, Measurement] = field(default_factory=dict)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        self._found = {m.setting.key: m for m in self.bench.measure(self.settings)}
        if not sys.stderr.isatty():
            yield
            return
        console = Console(stderr=True)
        with Live(self._table(), console=console, auto_refresh=False) as self._live:
            yield
        self._live = None

    def begin(self, setting: Setting) -> None:
        self._now, self._since = setting, time.monotonic()
        if self._live is None:
            number = self.settings.index(setting) + 1
            _tell(f"{number}/{len(self.settings)} {setting.label}{_repeat(setting)} ...")
        self.refresh()

    def refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._table(), refresh=True)

    def end(self, setting: Setting) -> None:
        self._now = None
        (measured,) = self.bench.measure([setting])
        self._found[setting.key] = measured
        if self._live is None:
            _tell("    " + ", ".join(filter(None, _cells(measured))))
        self.refresh()

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for name in ("setting", "", "completion", "training", "rows/s", "result"):
            table.add_column(name, justify="left" if name in ("setting", "") else "right")
        for setting in self.settings:
            label = setting.label + _repeat(setting)
            measured = self._found.get(setting.key)
            if setting == self._now:
                passed = show_seconds(time.monotonic() - self._since)
                table.add_row(label, f"running, {passed}")
            elif measured is None:
                table.add_row(label, "waits", style="dim")
            else:
                table.add_row(label, *_cells(measured))
        return table


def _cells(m: Measurement) -> list[str]:
    if not m.is_done:
        return [f"failed: {clean(m.error, 160)}", "", "", "", ""]
    value = f"{clean(m.metric, 30)} {m.best:.4g}"
    return [
        "done",
        f"{m.completion_s:.1f} s",
        f"{m.training_s:.2f} s training",
        f"{m.samples_per_s:,.0f} rows/s",
        value,
    ]


def _repeat(setting: Setting) -> str:
    return f" (repeat {setting.repeat + 1})" if setting.repeat else ""


def _conclude(
    bench: Bench, measurements: Sequence[Measurement], cores: int, problems: Sequence[str]
) -> None:
    cases = gather(measurements)
    is_simulated = are_simulated(bench.hosts)
    print(format_columns(times_table(cases)))
    print()
    for sentence in sentences(cases, cores=cores, is_simulated=is_simulated):
        print(f"- {clean(sentence, 900)}")
    print()
    for problem in problems:
        print(f"note: {problem}")
    for label, name in (("report", "report.html"), ("tables", "csv"), ("pictures", "png")):
        print(f"{label + ':':10}{bench.out / name}")
    failed = sum(not m.is_done for m in measurements)
    if failed:
        print(f"{show_count(failed, 'setting')} failed; the same command tries again.")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _stop(number: int, frame: FrameType | None) -> None:
    """Batch systems end us so; what runs is ended like after Ctrl-C."""
    raise KeyboardInterrupt
