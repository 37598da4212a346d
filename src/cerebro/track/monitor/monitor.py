"""The monitor as a process of its own, for as long as something runs."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Sequence

from cerebro.errors import UsageError

logger = logging.getLogger("cerebro.track")

#: Where samples can go.
SINKS = ("csv", "tensorboard")
_STOP_S = 5.0


class Monitor:
    """Samples this process and all that it starts, from `with` to its end.

    Writes `resources.csv` into a directory, and scalars below its `tensorboard`, as asked. It is a
    process of its own that ends with this one, whatever becomes of this one. One that cannot be
    started, or dies, is told of in a warning: what it looks at goes on.

    Args:
        directory: Where `resources.csv` goes.
        interval_s: Seconds between two samples.
        sinks: `csv`, `tensorboard`, or both.
        host: What this machine is called in the samples; default its name.
        pid: The process to look at, with its children; default this one.
        file: The name of the CSV file.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Monitor(folder, interval_s=0.1):
    ...         total = sum(range(1000))
    ...     Path(folder, "resources.csv").read_text().splitlines()[0]
    'time,host,what,value'
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        interval_s: float = 1.0,
        sinks: Sequence[str] = ("csv",),
        host: str | None = None,
        pid: int | None = None,
        file: str = "resources.csv",
    ) -> None:
        self._command = [
            *monitor_command(directory, interval_s=interval_s, sinks=sinks, host=host, file=file),
            *("--pid", str(os.getpid() if pid is None else pid)),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Monitor:
        try:
            self._process = subprocess.Popen(
                self._command,
                # It ends when the other end of this pipe does: at `__exit__`, or with us.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            # It has taken its first sample.
            if self._process.stdout is not None:
                self._process.stdout.readline()
        except OSError as error:
            logger.warning("nothing is sampled: the monitor cannot be started: %s", error)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            code = process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if code:
            logger.warning("the monitor ended with %d; samples may be missing.", code)


def monitor_command(
    directory: str | os.PathLike[str],
    *,
    interval_s: float,
    sinks: Sequence[str] = ("csv",),
    host: str | None = None,
    file: str = "resources.csv",
) -> list[str]:
    """The monitor's command line, without what it is to look at: `--pid N` or `-- COMMAND`.

    >>> monitor_command("out", interval_s=2.0, host="a")[3:]
    ['--to', 'out', '--file', 'resources.csv', '--interval', '2.0', '--sink', 'csv', '--host', 'a']
    """
    unknown = [sink for sink in sinks if sink not in SINKS]
    if unknown:
        raise UsageError(f"unknown sink {unknown[0]!r} of a monitor. Known: {', '.join(SINKS)}.")
    if not interval_s > 0:
        raise UsageError(f"`interval > 0` must hold for a monitor, but got {interval_s}.")
    named = [] if host is None else ["--host", host]
    chosen = [word for sink in sinks for word in ("--sink", sink)]
    return [
        *(sys.executable, "-m", "cerebro.track.monitor"),
        *("--to", os.fspath(directory), "--file", file, "--interval", str(interval_s)),
        *chosen,
        *named,
    ]
