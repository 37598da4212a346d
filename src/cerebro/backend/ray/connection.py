"""How the driver comes to Ray: what it was asked for, how it connects, and what it sends along."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cerebro.backend.ray.environment import travelling
from cerebro.errors import (
    CerebroError,
    MissingDependencyError,
    RunInterrupted,
    UsageError,
    WorkerError,
)

#: What Ray has names of its own for.
NAMED = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_START_ATTEMPTS = 3
_QUIET: Mapping[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}


def load_ray() -> Any:
    """The package, without which there is no backend."""
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError(
            f"RayBackend needs Ray ({error}). Install it with `pip install 'cerebro[ray]'`."
        ) from error
    return ray


def find_address(given: str | None) -> str | None:
    """Where Ray is; None for one that is started on this machine.

    >>> find_address("10.0.0.7:6379")
    '10.0.0.7:6379'
    """
    return given or os.environ.get("RAY_ADDRESS") or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a backend was asked for, checked."""

    address: str | None
    #: Resource -> how much of it each worker gets; none if it was not said.
    resources: Mapping[str, float]
    runtime_env: Mapping[str, Any] | None
    placement_group: Any
    #: A file of packages that nodes install.
    requirements: str | None = None


def check_address(ray: Any, wanted: str | None) -> None:
    """Refuse to use a connection of this process to another cluster than the one that is wanted."""
    if wanted is None or wanted == "auto":
        return
    found = connected_to(ray)
    if _resolved(ray, wanted) != _resolved(ray, found):
        raise UsageError(
            f"a process has one connection to Ray: it must be to {wanted}, the address of the "
            f"backend, but ray.init has connected this process to {found}. Call ray.shutdown() "
            "first, or leave the address out to use that cluster."
        )


def connected_to(ray: Any) -> str:
    """The address of the cluster that this process is connected to."""
    client = far_connection()
    if client is not None:
        return f"ray://{client.get_context().client_worker._conn_str}"
    return str(ray.get_runtime_context().gcs_address)


def far_connection() -> Any:
    """That of a driver which is on no node of its cluster; None for one that is."""
    # To import it changes the environment; who is connected has done so.
    module: Any = sys.modules.get("ray.util.client")
    return module.ray if module is not None and module.ray.is_connected() else None


def _resolved(ray: Any, address: str) -> tuple[str, str, str]:
    """How, where and at which port; names and loopback addresses as nodes know each other."""
    scheme, _, place = address.rpartition("://")
    host, _, port = place.rpartition(":")
    host = host.strip("[]") or place
    with contextlib.suppress(OSError):
        host = str(socket.getaddrinfo(host, None)[0][4][0])
    if host == "::1" or host.startswith("127."):
        host = str(ray.util.get_node_ip_address())
    return scheme, host, port


class Connection:
    """That of this process to Ray, as long as nobody closes it.

    Args:
        before: The environment as it was before.
    """

    def __init__(self, ray: Any, before: Mapping[str, str]) -> None:
        self._ray = ray
        self._undo = {
            name: before.get(name)
            for name, value in os.environ.items()
            if before.get(name) != value
        }

    def close(self) -> None:
        """Disconnect; what was started for it ends."""
        # References in cycles, too, must be gone before there is another connection.
        gc.collect()
        with _own_signals():
            self._ray.shutdown()
        for name, value in self._undo.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def connect(ray: Any, wish: Wish, workers: int, threads: int) -> Connection:
    """Connect to a cluster, or start Ray on this machine with room for so many workers."""
    before = dict(os.environ)
    address = find_address(wish.address)
    try:
        with _own_signals():
            if address is None:
                _start(ray, {**_own_machine(wish, workers, threads), **_given(wish)})
            else:
                _join(ray, wish, address)
    except BaseException as error:
        # Half of a connection is of no use.
        Connection(ray, before).close()
        if isinstance(error, SystemExit) and error.code == signal.SIGTERM:
            # While it starts, Ray makes this of the signal.
            raise _stopped() from None
        if isinstance(error, CerebroError) or not isinstance(error, Exception):
            raise
        raise WorkerError(_told(error, address)) from error
    return Connection(ray, before)


def _told(error: BaseException, address: str | None) -> str:
    """What went wrong; about tokens Ray says nothing but in the causes of its errors."""
    got = f"got {type(error).__name__}: {error}"
    if address is None:
        return f"Ray must start on this machine, but {got}"
    cause: BaseException | None = error
    while cause is not None:
        if "InvalidAuthToken" in str(cause) or type(cause).__name__ == "AuthenticationError":
            return (
                f"Ray must answer at {address}, but asks for a token that this process does not "
                "have. Set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH, or RAY_AUTH_TOKEN, as on "
                "the machines of the cluster."
            )
        cause = cause.__cause__ or cause.__context__
    return (
        f"Ray must answer at {address}, but {got}. See there with `ray status` whether it runs, "
        "and whether this machine reaches that address."
    )


def _start(ray: Any, options: Mapping[str, Any], attempts: int = _START_ATTEMPTS) -> None:
    """Ray gives up on processes of its own that take long to start, as on a busy machine."""
    try:
        ray.init(**options, **_QUIET)
    except CerebroError:
        # Somebody has stopped the run.
        raise
    except Exception:
        ray.shutdown()
        if attempts <= 1:
            raise
        _start(ray, options, attempts - 1)


def _join(ray: Any, wish: Wish, address: str) -> None:
    """Connect to a cluster; where it has other machines, with what they need to run our code."""
    if wish.runtime_env is None and "://" not in address:
        ray.init(address=address, **_QUIET)
        if is_one_machine(ray):
            return
        ray.shutdown()
    with travelling(wish.runtime_env, wish.requirements) as runtime_env:
        ray.init(address=address, runtime_env=runtime_env, **_QUIET)


def is_one_machine(ray: Any) -> bool:
    """Whether all workers find the driver's own files; later ones may not."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    addresses = {node["NodeManagerAddress"] for node in nodes}
    own = ray.util.get_node_ip_address()
    return addresses == {own} and any(node["Resources"].get("CPU") for node in nodes)


def _stopped() -> RunInterrupted:
    error = RunInterrupted("stopped while Ray started; the same command begins again.")
    # Safe to restart, as for any run that SIGTERM stops.
    error.exit_code = 75
    return error


def _given(wish: Wish) -> dict[str, Any]:
    return {} if wish.runtime_env is None else {"runtime_env": dict(wish.runtime_env)}


def _own_machine(wish: Wish, workers: int, threads: int) -> dict[str, Any]:
    given = wish.resources or {"CPU": float(threads)}
    needs = {name: amount * workers for name, amount in given.items()}
    cores = max(_cores(), math.ceil(needs.pop("CPU", 0)))
    custom = {name: amount for name, amount in needs.items() if name not in NAMED}
    return {
        "address": "local",
        "num_cpus": cores,
        "resources": custom or None,
        "include_dashboard": False,
    }


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray ends the process at SIGTERM; what was to happen then is put back in place."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
