"""Where progress is shown: in a notebook, on a terminal, as lines, or nowhere."""

from __future__ import annotations

import sys
from collections.abc import Callable

from cerebro.track.bar import Bar
from cerebro.track.console import console_tracker
from cerebro.track.files import FileTracker
from cerebro.track.notebook import find_publisher, notebook_tracker
from cerebro.track.tensorboard import TensorBoardTracker
from cerebro.track.tracker import Tracker


def trackers_for(root: str, progress: bool | None, logs: str | None = None) -> list[Tracker]:
    """Who records a run in the directory `root`, and who shows it.

    Args:
        logs: The directory of TensorBoard's files; default one below `root`.
    """
    found: list[Tracker] = [FileTracker(root), TensorBoardTracker(root, logs=logs)]
    if is_shown(progress):
        found.append(notebook_tracker() or console_tracker())
    return found


def is_shown(progress: bool | None) -> bool:
    """Whether people watch: by default on a terminal, and in a notebook."""
    if progress is None:
        return find_publisher() is not None or sys.stderr.isatty()
    return progress


def bar_for(
    progress: bool | None, unit: str = "rows"
) -> Callable[[int, Callable[[], int]], Bar] | None:
    """What makes a bar for bulk work, given how much there is and who counts; None: show nothing.

    By default it is shown on a terminal, and in a notebook, where it stands below the cell.
    """
    if not is_shown(progress):
        return None
    if find_publisher() is not None:
        return lambda total, done: Bar(total, done, unit=unit, file=sys.stdout, is_live=True)
    return lambda total, done: Bar(total, done, unit=unit)
