"""`python -m cerebro.track.monitor`: samples a process, or a command that it starts itself."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cerebro.storage import layout
from cerebro.track.monitor.monitor import SINKS
from cerebro.track.monitor.recorder import Recorder
from cerebro.track.monitor.sampler import Sampler
from cerebro.track.monitor.sinks import TENSORBOARD_S, CsvSink, Sink, TensorBoardSink

#: How long a command may take to end when it is asked to.
_STOP_S = 30.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Sample until it is over; the exit code is that of the command."""
    options = _parser().parse_args(arguments)
    if options.pid is not None:
        # Terminals and batch systems mean what is sampled: it ends, and we after it.
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        _record(options, options.pid, _Ending(options.pid, sys.stdin.fileno()).wait, is_told=True)
        return 0
    if not options.command:
        raise SystemExit("either --pid or a command after -- is needed.")
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    """Start the command and sample it; `command.json` says how long it took and how it ended."""
    stdin = subprocess.DEVNULL if options.lifeline else None
    began, started = time.time(), time.perf_counter()
    process = subprocess.Popen(options.command, stdin=stdin)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: process.send_signal(number))
    ending = _Ending(process.pid, sys.stdin.fileno() if options.lifeline else None)
    try:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            _record(options, process.pid, ending.wait, is_told=False)
    finally:
        code = _end(process)
    told = {"began": began, "seconds": time.perf_counter() - started, "code": code}
    Path(options.to).mkdir(parents=True, exist_ok=True)
    Path(options.to, "command.json").write_text(json.dumps(told) + "\n", encoding="utf-8")
    return code if code >= 0 else 128 - code


def _end(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a command that has ended, or that nobody looks at or wants any more."""
    if process.poll() is None:
        process.terminate()
    try:
        return process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _record(
    options: argparse.Namespace, pid: int, wait: Callable[[float], bool], *, is_told: bool
) -> None:
    sampler = Sampler(pid, host=options.host)
    recorder = Recorder(sampler, _sinks(options), interval_s=options.interval)
    if is_told:
        recorder.tick()
        print("sampling", flush=True)
    recorder.run(wait)


def _sinks(options: argparse.Namespace) -> list[Sink]:
    directory = Path(options.to)
    found: list[Sink] = []
    for sink in options.sink or SINKS[:1]:
        if sink == "csv":
            found.append(CsvSink(directory / options.file))
        else:
            folder = directory / layout.TENSORBOARD / "profiler"
            found.append(TensorBoardSink(folder, every_s=options.tensorboard_every))
    return found


class _Ending:
    """Waits for a process to end, or for the other end of a pipe to be closed."""

    def __init__(self, pid: int, lifeline: int | None) -> None:
        self._poll = select.poll()
        self._poll.register(os.pidfd_open(pid), select.POLLIN)
        if lifeline is not None:
            self._poll.register(lifeline, select.POLLHUP | select.POLLIN)

    def wait(self, timeout_s: float) -> bool:
        return bool(self._poll.poll(1000 * timeout_s))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cerebro.track.monitor", description=__doc__)
    parser.add_argument("--to", metavar="DIR", default=".", help="where resources.csv goes")
    parser.add_argument("--file", metavar="NAME", default=layout.RESOURCES)
    parser.add_argument("--interval", metavar="SECONDS", type=float, default=1.0)
    parser.add_argument("--host", metavar="NAME", help="what this machine is called")
    parser.add_argument("--sink", choices=SINKS, action="append", help="default csv")
    parser.add_argument("--tensorboard-every", metavar="SECONDS", type=float, default=TENSORBOARD_S)
    parser.add_argument("--pid", metavar="PID", type=int, help="sample this one and its children")
    parser.add_argument("--lifeline", action="store_true", help="end when standard input does")
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="after --: start and sample")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
