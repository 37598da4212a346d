"""What a workspace remembers in its `.cerebro` directory: settings, and the services it has.

::

    <workspace>/.cerebro/workspace.json   workers, runs and ports, kept from start to start
                        /services.json    pid, port and token of each service; mode 0600
                        /logs/…           what the services said
                        /lock

The directory is its owner's alone (mode 0700): whoever reads it can use the services.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from cerebro.errors import UsageError

FOLDER = ".cerebro"
SETTINGS = f"{FOLDER}/workspace.json"
SERVICES = f"{FOLDER}/services.json"
LOGS = f"{FOLDER}/logs"
LOCK = f"{FOLDER}/lock"

FORMAT = 1
#: What a browser asks a service for first.
_FRONT_PAGES = {"jupyter": "/lab"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A process that serves pages on a port of this machine to whoever has the token."""

    name: str
    pid: int
    #: When the process began, in seconds since 1970: with the pid, who it is.
    created_s: float
    port: int
    token: str = field(repr=False)

    @property
    def url(self) -> str:
        """Opens it in a browser; holds the token.

        >>> Service(name="jupyter", pid=1, created_s=0.0, port=8888, token="abc").url
        'http://127.0.0.1:8888/lab?token=abc'
        """
        path = _FRONT_PAGES.get(self.name, "/")
        return f"http://127.0.0.1:{self.port}{path}?token={self.token}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services of a workspace, and the host they run on."""

    host: str
    services: tuple[Service, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is kept from start to start; ``runs`` may be relative to the workspace."""

    workers: int | None = None
    runs: str = "runs"
    ports: Mapping[str, int] = field(default_factory=dict)


def find_workspace(start: str | os.PathLike[str] = ".") -> Path | None:
    """The nearest directory from `start` upwards that is a workspace of this user.

    >>> import tempfile
    >>> find_workspace(tempfile.mkdtemp()) is None
    True
    """
    try:
        first = Path(os.path.abspath(start))
    except OSError:  # somebody removed the directory that this process is in
        return None
    return next((place for place in (first, *first.parents) if _is_private(place / FOLDER)), None)


def make_private(workspace: Path) -> None:
    """Make the `.cerebro` directory, or see that it is this user's alone.

    Raises:
        UsageError: it is a link, a file or somebody else's.
    """
    folder = workspace / FOLDER
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not _is_private(folder):
        raise UsageError(f"{folder} must be a directory of your own, but is not: remove it.")
    folder.chmod(0o700)
    (workspace / LOGS).mkdir(mode=0o700, exist_ok=True)


def read_settings(workspace: Path) -> Settings:
    """The settings, or those of a new workspace.

    Raises:
        UsageError: the file is not as it was written.
    """
    found = _read(workspace / SETTINGS)
    if found is None:
        return Settings()
    workers, runs, ports = found.get("workers"), found.get("runs"), found.get("ports")
    is_count = workers is None or (type(workers) is int and workers >= 1)
    if is_count and isinstance(runs, str) and runs and _are_ports(ports):
        return Settings(workers=workers, runs=runs, ports=ports or {})
    raise UsageError(f"{workspace / SETTINGS} is not as it was written: remove it.")


def write_settings(workspace: Path, settings: Settings) -> None:
    """Replace the settings."""
    _write(workspace / SETTINGS, asdict(settings))


def read_services(workspace: Path) -> Services | None:
    """What was started for a workspace and not ended since, as far as is known.

    Raises:
        UsageError: the file is not as it was written.
    """
    path = workspace / SERVICES
    found = _read(path)
    if found is None:
        return None
    try:
        services = tuple(_service(item) for item in found["services"])
        return Services(host=str(found["host"]), services=services)
    except (KeyError, TypeError, ValueError):
        raise UsageError(f"{path} is not as it was written: remove it.") from None


def write_services(workspace: Path, services: Services) -> None:
    """Replace what is known of the services; nothing is kept of none."""
    if services.services:
        _write(workspace / SERVICES, asdict(services))
    else:
        forget_services(workspace)


def forget_services(workspace: Path) -> None:
    """Remove the file that tells of services."""
    (workspace / SERVICES).unlink(missing_ok=True)


def _service(item: Mapping[str, Any]) -> Service:
    kinds = {"name": str, "pid": int, "created_s": float, "port": int, "token": str}
    names: Sequence[str] = [each.name for each in fields(Service)]
    if any(type(item[name]) is not kinds[name] for name in names) or item["pid"] < 2:
        raise ValueError("not a service")
    return Service(**{name: item[name] for name in names})


def _are_ports(value: object) -> bool:
    return value is None or (
        isinstance(value, dict) and all(type(port) is int for port in value.values())
    )


def _is_private(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise UsageError(f"{path} is not as it was written: remove it.")
    return found


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Written whole or not at all, and never readable by others."""
    text = json.dumps({"format": FORMAT, **content}, indent=1) + "\n"
    temp = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temp.unlink(missing_ok=True)
    descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temp, path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
