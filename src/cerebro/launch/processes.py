"""Processes of services: started, recognised and ended."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from cerebro.launch.service import NAMES, command
from cerebro.storage.workspace import LOGS, Service

#: A process that does not end when it is asked to is killed after so long.
GRACE_S = 10.0
#: One that was killed is gone at once, unless its machine is very busy.
_GONE_S = 10.0
#: A service that does not answer after so long has failed.
READY_S = 120.0
#: How long one page may take.
_ANSWER_S = 10.0
_LOOK_S = 0.02
#: The kernel counts hundredths since the machine started; clocks are set meanwhile.
_CLOCK_S = 1.0
#: A page of each service that is refused without the token, and given with it.
_PAGES = {"jupyter": "/api/status", "tensorboard": "/data/environment", "reports": "/"}


def log_path(workspace: Path, name: str) -> Path:
    """Where a service writes what it has to say."""
    return workspace / LOGS / f"{name}.log"


def start_process(
    name: str, workspace: Path, *, port: int, token: str, runs: Path
) -> tuple[Service, subprocess.Popen[bytes]]:
    """Start a service as a process that outlives this one; it need not answer yet."""
    log = log_path(workspace, name)
    with contextlib.suppress(FileNotFoundError):
        log.replace(log.with_suffix(".log.old"))
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    try:
        process = subprocess.Popen(
            command(name, workspace),
            cwd=workspace,
            stdin=subprocess.PIPE,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    try:
        created_s = psutil.Process(process.pid).create_time()
        given = {"port": port, "token": token, "runs": str(runs)}
        if process.stdin is not None:
            # It may have died at once; whoever waits for it to answer finds out.
            with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
                stdin.write(json.dumps(given).encode())
    except BaseException:
        process.kill()
        process.wait()
        raise
    service = Service(name=name, pid=process.pid, created_s=created_s, port=port, token=token)
    return service, process


def find_process(service: Service, workspace: Path) -> psutil.Process | None:
    """The process of a service; None if it has ended, whoever may have its pid by now."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(service.pid)
        is_same = abs(process.create_time() - service.created_s) < _CLOCK_S
        if is_same and is_alive(process) and _name_of(process, workspace) == service.name:
            return process
    return None


def find_strays(workspace: Path) -> list[psutil.Process]:
    """All processes of this user that serve the workspace, known by their command lines."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_own = process.uids().real == os.getuid()
            if is_own and _name_of(process, workspace) is not None and is_alive(process):
                found.append(process)
    return found


def _name_of(process: psutil.Process, workspace: Path) -> str | None:
    """The service that a process is, by its command line."""
    words = process.cmdline()[1:]
    return next((name for name in NAMES if words == command(name, workspace)[1:]), None)


def is_alive(process: psutil.Process) -> bool:
    """Whether a process still does something; one that only waits to be buried does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def end_process(process: psutil.Process, grace_s: float = GRACE_S) -> None:
    """Ask a process to end, then make it; what it started itself goes with it.

    Only its own children, such as kernels of notebooks: what they have started and left behind on
    purpose is not ours.
    """
    children: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        children = process.children()
        process.terminate()
    if not wait_until(lambda: not is_alive(process), grace_s):
        with contextlib.suppress(psutil.NoSuchProcess):
            children += [child for child in process.children() if child not in children]
            process.kill()
        wait_until(lambda: not is_alive(process), _GONE_S)
    for ending, limit_s in ((psutil.Process.terminate, 1.0), (psutil.Process.kill, _GONE_S)):
        for child in filter(is_alive, children):
            with contextlib.suppress(psutil.NoSuchProcess):
                ending(child)
        if wait_until(lambda: not any(map(is_alive, children)), limit_s):
            return


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether the condition came to hold in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def is_listening(service: Service) -> bool:
    """Whether the process of the service itself has the port: another one gets no token to see."""
    with contextlib.suppress(psutil.Error):
        return any(
            found.status == psutil.CONN_LISTEN and found.laddr.port == service.port
            for found in psutil.Process(service.pid).net_connections("tcp")
        )
    return False


def is_answering(service: Service) -> bool:
    """Whether a service gives its page to who has the token, and to nobody else."""
    if not is_listening(service):
        return False
    own = {"Authorization": f"token {service.token}"}
    return _status(service, own) == 200 and _status(service, {}) in (401, 403)


def _status(service: Service, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=_ANSWER_S)
    try:
        connection.request("GET", _PAGES[service.name], headers=headers)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def is_free(port: int) -> bool:
    """Whether a server may listen on a port of the loopback interface."""
    with _bound(port) as found:
        return found is not None


def choose_ports(names: Sequence[str]) -> dict[str, int]:
    """A free port for each, as the kernel picks them."""
    with contextlib.ExitStack() as stack:
        ports: dict[str, int] = {}
        for name in names:
            # All are held until the last one is chosen, so that they differ.
            found = stack.enter_context(_bound(0))
            if found is None:
                raise OSError("the loopback interface has no free port")
            ports[name] = found
        return ports


@contextlib.contextmanager
def _bound(port: int) -> Iterator[int | None]:
    with socket.socket() as probe:
        # As servers do: connections that have just ended do not keep a port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            if port:
                probe.listen()
        except (OSError, OverflowError):
            yield None
            return
        yield probe.getsockname()[1]
