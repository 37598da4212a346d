"""Commands and their options."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from cerebro import __version__
from cerebro.cli import bench, data, launch, models, nodes, recipe_options, services
from cerebro.cli.ending import forsake_stderr, have_streams, reported

app = typer.Typer(
    name="cerebro",
    help="Model selection by hopping: cut the data once, let the models travel.",
    add_completion=False,
    no_args_is_help=True,
    # Plain help is the same in a pipe, and does not load rich.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ExperimentFile = Annotated[
    Path,
    typer.Argument(metavar="EXPERIMENT", help="The experiment file (YAML).", show_default=False),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY.SUB=VALUE",
        help="Changes to the file, such as epochs=3 or space.lr=0.1.",
        show_default=False,
    ),
]
RunDirectory = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's directory or URL.", show_default=False)
]


Trial = Annotated[str, typer.Argument(metavar="TRIAL", help="t0007 or 7.", show_default=False)]
OptionalTrial = Annotated[
    str | None, typer.Argument(metavar="TRIAL", help="t0007 or 7.", show_default=False)
]
Assignments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME=VALUE", help="Params, such as lr=0.1 or width=64.", show_default=False
    ),
]
Wait = Annotated[
    float,
    typer.Option(
        "--wait", metavar="SECONDS", min=0, help="How long to wait for the run's answer; 0: not."
    ),
]
#: As in `cerebro.steering`, which is not imported for `--help`.
WAIT_S = 10.0


def main() -> None:
    """The console script."""
    have_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal or pipe that knows no "…" gets "\u2026" instead of a traceback.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    finally:
        forsake_stderr()


@reported()
def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"cerebro {__version__}")
        raise typer.Exit


@app.callback()
def cerebro(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Model selection by hopping: cut the data once, let the models travel."""


@app.command(
    epilog="Exit codes: 0 done, 1 failed, 2 wrong request, 75 state saved, safe to restart (disk "
    "full, SIGTERM), 130 stopped by Ctrl-C, state saved."
)
@reported()
def run(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Move a run of this name aside and start anew.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Resume although something changed that changes results; recorded."
        ),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if any trial failed.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print no progress, only the result.")
    ] = False,
    machines: nodes.Nodes = None,
    num_proc: nodes.Procs = None,
    nr: nodes.Node = None,
    master: nodes.Master = None,
    patience: nodes.Patience = None,
    optimizer: recipe_options.Optimizer = None,
    batch_size: recipe_options.BatchSize = None,
    n_epochs: recipe_options.Epochs = None,
    dropout: recipe_options.Dropout = None,
    verbose: recipe_options.Verbose = False,
    show_config: recipe_options.ShowConfig = False,
    interactive: recipe_options.Interactive = False,
) -> None:
    """Train every configuration and rank them. Running it again resumes where it stopped."""
    from cerebro.cli.run import run_experiment

    spot = nodes.find_nodes(machines, num_proc, nr, master, patience)
    wish = recipe_options.RecipeWish(
        optimizer, batch_size, n_epochs, dropout, verbose, show_config, interactive, machines
    )
    how = {"fresh": fresh, "force": force, "strict": strict, "quiet": quiet}
    code = run_experiment(experiment, overrides or [], wish, **how, spot=spot)
    raise typer.Exit(code)


@app.command()
@reported()
def status(run: RunDirectory) -> None:
    """How far a run is, its best trial, who works on it; or, by its number, a job of SLURM."""
    from cerebro.cli.status import show_status

    if run.isdigit() and not Path(run).exists():
        launch.show_job(int(run))
    else:
        show_status(run)


@app.command()
@reported()
def results(
    run: RunDirectory,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON array.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values.")] = False,
    trial: Annotated[
        str | None,
        typer.Option(
            metavar="T", help="One trial, epoch by epoch: t0007 or 7.", show_default=False
        ),
    ] = None,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="Only the Pareto front, with several metrics.")
    ] = False,
) -> None:
    """The leaderboard of a run, or the epochs of one trial."""
    from cerebro.cli.results import Format, show_results, show_trial
    from cerebro.errors import UsageError

    if as_json and as_csv:
        raise UsageError("the result is written once: give --json or --csv, not both.")
    if trial is not None and pareto:
        raise UsageError("a front has many trials: give --trial or --pareto, not both.")
    form = Format.JSON if as_json else Format.CSV if as_csv else Format.TABLE
    if trial is None:
        show_results(run, form, is_pareto=pareto)
    else:
        show_trial(run, trial, form)


@app.command()
@reported()
def plan(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Train a few visits for real to tell what they cost."),
    ] = False,
    search: Annotated[
        bool,
        typer.Option("--search", help="Play the search through on a simulated clock."),
    ] = False,
) -> None:
    """What a run would do: trials, visits, bytes, time. Leaves nothing behind."""
    from cerebro.cli.plan import show_plan

    show_plan(experiment, overrides or [], is_measured=measure, is_simulated=search)


@app.command(short_help="End a trial, or the whole run, for good.")
@reported()
def stop(run: RunDirectory, trial: OptionalTrial = None, wait: Wait = WAIT_S) -> None:
    """End a trial, or without TRIAL the run: all that are not through are stopped, for good."""
    from cerebro.cli import steer

    steer.stop(run, trial, wait_s=wait)


@app.command()
@reported()
def pause(run: RunDirectory, trial: Trial, wait: Wait = WAIT_S) -> None:
    """Let a trial wait, from its next visit on."""
    from cerebro.cli import steer

    steer.pause(run, trial, wait_s=wait)


@app.command()
@reported()
def unpause(run: RunDirectory, trial: Trial, wait: Wait = WAIT_S) -> None:
    """Let a paused trial go on."""
    from cerebro.cli import steer

    steer.unpause(run, trial, wait_s=wait)


@app.command()
@reported()
def clone(
    run: RunDirectory,
    trial: Trial,
    params: Assignments = None,
    cold: Annotated[
        bool, typer.Option("--cold", help="Begin anew, not with the state of the trial.")
    ] = False,
    wait: Wait = WAIT_S,
) -> None:
    """Start a new trial that is TRIAL with other params, and goes on with its state."""
    from cerebro.cli import steer

    steer.clone(run, trial, params or [], is_warm=not cold, wait_s=wait)


@app.command()
@reported()
def extend(
    run: RunDirectory,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[TRIAL] epochs=N", help="How many are to be behind it.", show_default=False
        ),
    ],
    wait: Wait = WAIT_S,
) -> None:
    """Train a trial longer, or without TRIAL all that are finished."""
    from cerebro.cli import steer

    steer.extend(run, words, wait_s=wait)


@app.command()
@reported()
def add(run: RunDirectory, params: Assignments = None, wait: Wait = WAIT_S) -> None:
    """Start a new trial with these params."""
    from cerebro.cli import steer

    steer.add(run, params or [], wait_s=wait)


@app.command(short_help="Pack files, tables or archives into shards with an index.")
@reported()
def shard(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A folder of class folders with pictures, a folder of files, a CSV or Parquet "
            "file, or archives: a file, folder, URL, glob, {000..122}, @000123 or .shards index.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path, typer.Argument(metavar="OUTPUT_DIR", help="Where to.", show_default=False)
    ],
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What the shards' names begin with; default OUTPUT_DIR."),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--as", metavar="KIND", help="images, files, table or archives; else seen."),
    ] = None,
    objects: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the files are that the cells of a table name."),
    ] = None,
    max_count: Annotated[
        int, typer.Option(metavar="N", min=1, help="The most samples in a shard.")
    ] = 100_000,
    max_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="The most bytes in a shard, such as 500MB.")
    ] = "1GB",
    shuffle: Annotated[
        int | None,
        typer.Option(metavar="SEED", min=0, help="Put the samples in a random order first."),
    ] = None,
    gzip: Annotated[bool, typer.Option("--gzip", help="Write .tgz.")] = False,
) -> None:
    """Pack files, tables or archives into tar shards that WebDataset reads, with an index."""
    from cerebro.cli import shard as sharding

    sharding.shard(
        sharding.Request(
            source=source,
            output=str(output),
            name=name,
            kind=None if kind is None else sharding.parse_kind(kind),
            objects=None if objects is None else str(objects),
            max_count=max_count,
            max_bytes=sharding.parse_size(max_bytes),
            seed=shuffle,
            compress=gzip,
        )
    )


@app.command(short_help="Versions, devices and what is missing; or verify a run.")
@reported()
def doctor(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="A run's place, to verify it.", show_default=False),
    ] = None,
) -> None:
    """Versions, devices and what is missing; with RUN, verify its journal and checkpoints."""
    from cerebro.cli.doctor import show_health

    raise typer.Exit(show_health(run))


for command in (*bench.COMMANDS, *models.COMMANDS, *services.COMMANDS):
    app.command()(reported()(command))

launching = typer.Typer(
    help="Hand an experiment to a batch system.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(launching, name="launch")
for order in launch.COMMANDS:
    launching.command()(reported()(order))

app.add_typer(data.group(reported()), name="data")
