"""`cerebro data`: data sets by name, found, fetched and prepared."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cerebro.data.named.fetching import Progress
    from cerebro.types import Json

Name = Annotated[str, typer.Argument(metavar="NAME", help="mnist, cifar10, …", show_default=False)]


def list_() -> None:
    """The data sets that are known, where their files were found, and what is prepared."""
    from cerebro.cli.table import format_columns
    from cerebro.data.named import DATASETS
    from cerebro.data.named.finding import is_found
    from cerebro.data.named.preparing import prepared_paths

    rows = [["name", "rows", "found", "prepared", ""]]
    for name, data in sorted(DATASETS.items()):
        count = "any" if data.rows is None else f"{data.rows[0]:,} + {data.rows[1]:,}"
        found = is_found(data)
        place = "-" if found is None else found.folder or "made when prepared"
        made = prepared_paths(data)
        rows.append([name, count, place, str(len(made)) if made else "-", data.about])
    print(format_columns(rows))


def get(
    name: Name,
    into: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="The folder for data sets; default $CEREBRO_DATA or ~/.cerebro/data.",
            show_default=False,
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="URL",
            help="Another address with the same files; default where they are published.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Fetch the files of a data set, once; what is there is checked and kept."""
    from cerebro.data.named import fetching, lookup

    with _progress() as progress:
        folder = fetching.get(lookup(name), into, base, progress=progress, say=_say)
    print(f"{name} is in {folder}")


def prepare(
    name: Name,
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Its options, such as shards=4, n_train=1000 or input_shape=[64,64,3].",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Where its files are; default $CEREBRO_DATA, ./data, ~/.cerebro/data.",
            show_default=False,
        ),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="The folder for prepared data sets; default prepared in $CEREBRO_DATA or "
            "~/.cerebro/data.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Cut a data set into shards, once, and print where they are."""
    from cerebro.data.named import preparing

    given = _parse(options or [])
    print(preparing.prepare(name, source, into, say=_say, **given))


def group(reported: Callable[[Callable[..., None]], Callable[..., None]]) -> typer.Typer:
    """The commands as one of `cerebro`; `reported` turns their errors into exit codes."""
    made = typer.Typer(
        help="Data sets by name: what is there, fetch one, prepare one.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    commands: dict[str, Callable[..., None]] = {"list": list_, "get": get, "prepare": prepare}
    for name, command in commands.items():
        made.command(name)(reported(command))
    return made


def _parse(words: list[str]) -> dict[str, Json]:
    from cerebro.config.yaml import parse_yaml
    from cerebro.errors import UsageError

    given: dict[str, Json] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"an option is written KEY=VALUE, such as shards=4, but got {word!r}.")
        where = f"option {word!r}"
        text = value.encode("utf-8", "surrogateescape")
        given[key] = parse_yaml(text, where, numbered=False).tree
    return given


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """A bar for each file on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda name, done, total: None
        return
    from rich import progress
    from rich.console import Console

    bars = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    tasks: dict[str, progress.TaskID] = {}

    def show(name: str, done: int, total: int | None) -> None:
        if name not in tasks:
            tasks[name] = bars.add_task(os.path.basename(name), total=total)
        bars.update(tasks[name], completed=done, total=total)

    with bars:
        yield show
