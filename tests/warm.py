"""The `cerebro` command in a process of its own that need not import everything first.

An interpreter that has loaded the package is kept, and forks for each command: a second of imports
is paid once and not a hundred times. Each command has its own working directory, environment,
arguments and output, begins as `python -m cerebro` does, and ends as a process does.

    python -m tests.warm FD    (the socket on which requests come)
"""

from __future__ import annotations

import array
import functools
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: What a run of a toy task loads.
MODULES = (
    "cerebro.cli",
    "cerebro.cli.run",
    "cerebro.experiment",
    "cerebro.run.fit",
    "cerebro.results",
    "cerebro.search.stoppers",
    "cerebro.testing.toy",
    "cerebro.backend.local",
)
_MESSAGE_BYTES = 1 << 20


class WarmCommand:
    """Starts the interpreter, and has it run commands."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm", str(theirs.fileno())],
                cwd=ROOT,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def run(
        self,
        arguments: tuple[str, ...],
        folder: Path,
        environment: dict[str, str],
        timeout_s: float,
    ) -> subprocess.CompletedProcess[str]:
        """A command to its end, as `subprocess.run` gives it."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            asked = json.dumps([str(folder), environment, arguments]).encode()
            fds = array.array("i", [out.fileno(), err.fileno()])
            self._socket.settimeout(timeout_s)
            self._socket.sendmsg([asked], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
            try:
                code = int(self._socket.recv(_MESSAGE_BYTES))
            except TimeoutError:
                self._end()
                raise
            told = []
            for file in (out, err):
                file.seek(0)
                told.append(file.read().decode())
        return subprocess.CompletedProcess(["cerebro", *arguments], code, *told)

    def _end(self) -> None:
        """With the command that it waits for; the next one is for another."""
        warm_command.cache_clear()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._socket.close()


@functools.cache
def warm_command() -> WarmCommand:
    """One for all tests of this process; it ends when this process does, with its socket."""
    from tests.integration.project import environment

    return WarmCommand(environment())


def serve(requests: socket.socket) -> list[str] | None:
    """Fork for each request. Returns the arguments in each child, and nothing at the end."""
    while True:
        data, fds, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES, 2)
        if not data:
            return None
        pid = os.fork()
        if pid == 0:
            folder, environment, arguments = json.loads(data)
            requests.close()
            for number, fd in enumerate(fds, start=1):
                os.dup2(fd, number)
                os.close(fd)
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(folder)
            sys.path[0] = folder
            return list(arguments)
        for fd in fds:
            os.close(fd)
        status = os.waitpid(pid, 0)[1]
        requests.send(str(os.waitstatus_to_exitcode(status)).encode())


def main() -> None:
    for name in MODULES:
        __import__(name)
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        arguments = serve(requests)
    if arguments is not None:
        sys.argv[1:] = arguments
        runpy.run_module("cerebro", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
