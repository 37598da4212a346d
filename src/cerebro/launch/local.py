"""Services as processes of this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from cerebro.errors import RunLockedError, UsageError
from cerebro.launch.launcher import Endpoint, Overview
from cerebro.launch.processes import (
    GRACE_S,
    READY_S,
    choose_ports,
    end_process,
    find_process,
    find_strays,
    is_answering,
    is_free,
    log_path,
    start_process,
    wait_until,
)
from cerebro.launch.service import NAMES, OPTIONAL
from cerebro.launch.template import offer_template
from cerebro.storage import DirectoryStore
from cerebro.storage.lock import RunLock
from cerebro.storage.workspace import (
    LOCK,
    SERVICES,
    SETTINGS,
    Service,
    Services,
    Settings,
    find_workspace,
    forget_services,
    make_private,
    read_services,
    read_settings,
    write_services,
    write_settings,
)

#: How often a service gets another port when somebody was faster.
ATTEMPTS = 3


def is_installed(package: str) -> bool:
    """Whether a package can be imported; it is not."""
    return importlib.util.find_spec(package) is not None


class LocalLauncher:
    """Starts each service as a process that outlives the command, and ends just those.

    A service is known by its pid, the time its process began and its command line, so that a pid
    which another process has by now is left alone. `services.json` is written after every start,
    and whatever it fails to tell is found by command line.
    """

    def __init__(
        self, workspace: Path, *, has_package: Callable[[str], bool] = is_installed
    ) -> None:
        self.workspace = Path(os.path.realpath(workspace.expanduser()))
        self._has_package = has_package
        self._notes: list[str] = []
        # Kept, for what was started here is to be waited for here.
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *, workers: int | None = None, runs: str | None = None) -> Overview:
        """Start what is not running; services that fail to start are told, the others stay."""
        if not self.workspace.is_dir():
            raise UsageError(f"a workspace must be a directory, but {self.workspace} is none.")
        make_private(self.workspace)
        with self._locked():
            settings = self._settings(workers, runs)
            running = {service.name: service for service in self._survey()}
            self._end_strays(running.values())
            wanted = [name for name in NAMES if name not in running and self._is_there(name)]
            failed = self._bring_up(wanted, running, settings) if wanted else []
            if "jupyter" in wanted and (template := offer_template(self.workspace)) is not None:
                self._notes.append(f"{template.name} is a template to begin with")
            return self._overview(running.values(), failed)

    def url(self) -> Overview:
        """What is running; what has ended by itself is told and forgotten."""
        if find_workspace(self.workspace) != self.workspace:
            return self._overview(())
        with self._locked():
            return self._overview(self._survey())

    def stop(self) -> Overview:
        """End what is running, by pid and start time; nothing else is touched."""
        if find_workspace(self.workspace) != self.workspace:
            return self._overview(())
        with self._locked():
            for service in self._survey():
                self._end(service)
                self._notes.append(f"{service.name} ended")
            self._end_strays(())
            forget_services(self.workspace)
            return self._overview(())

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._notes.clear()
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(RunLock(DirectoryStore(self.workspace), LOCK))
            except RunLockedError:
                raise RunLockedError(
                    f"the services of {self.workspace} are being started or ended by another "
                    "command. Wait until it is done."
                ) from None
            yield

    def _settings(self, workers: int | None, runs: str | None) -> Settings:
        try:
            settings = read_settings(self.workspace)
        except UsageError:
            self._notes.append(f"{SETTINGS} was damaged; what it said is forgotten")
            settings = Settings()
        if workers is not None:
            settings = replace(settings, workers=workers)
        if runs is not None:
            settings = replace(settings, runs=runs)
        write_settings(self.workspace, settings)
        return settings

    def _survey(self) -> list[Service]:
        """The services that run; what the file tells of others is told and forgotten."""
        try:
            known = read_services(self.workspace)
        except UsageError:
            self._notes.append(f"{SERVICES} was damaged; it is written anew")
            known = None
            forget_services(self.workspace)
        if known is None:
            return []
        if known.host != socket.gethostname():
            raise UsageError(
                f"the services of {self.workspace} were started on {known.host}: use this command "
                f"there. If that machine is gone, remove {self.workspace / SERVICES}."
            )
        alive = [each for each in known.services if find_process(each, self.workspace) is not None]
        for service in known.services:
            if service not in alive:
                log = log_path(self.workspace, service.name)
                self._notes.append(f"{service.name} had ended by itself; its last words: {log}")
        if len(alive) < len(known.services):
            self._remember(alive)
        return alive

    def _end_strays(self, known: Iterable[Service]) -> None:
        """End what serves this workspace and is not in the file: nobody has its token."""
        pids = {service.pid for service in known}
        for process in find_strays(self.workspace):
            if process.pid not in pids:
                end_process(process)
                self._notes.append(f"ended process {process.pid}, which nothing told of")

    def _is_there(self, name: str) -> bool:
        if name not in OPTIONAL or self._has_package(OPTIONAL[name][1]):
            return True
        self._notes.append(f"{name} is not installed: pip install 'cerebro[notebook]'")
        return False

    def _bring_up(
        self, wanted: list[str], running: dict[str, Service], settings: Settings
    ) -> list[str]:
        """Start services side by side; those that do not come up are named."""
        ports = self._ports(wanted, settings.ports)
        runs = self.workspace / settings.runs
        try:
            for name in wanted:
                running[name] = self._spawn(name, ports[name], runs, running)
            failed = [name for name in wanted if not self._comes_up(name, running, runs)]
        except BaseException:
            for name in wanted:
                if name in running:
                    self._end(running.pop(name))
            self._remember(running.values())
            raise
        ports = {**settings.ports, **{name: each.port for name, each in running.items()}}
        write_settings(self.workspace, replace(settings, ports=ports))
        return failed

    def _ports(self, names: list[str], remembered: Mapping[str, int]) -> dict[str, int]:
        ports = choose_ports(names)
        for name in names:
            before = remembered.get(name)
            if before is not None and before not in ports.values() and is_free(before):
                ports[name] = before
            elif before is not None:
                self._notes.append(f"{name} had port {before}, which is taken now")
        return ports

    def _spawn(self, name: str, port: int, runs: Path, running: Mapping[str, Service]) -> Service:
        service, process = start_process(
            name, self.workspace, port=port, token=secrets.token_urlsafe(32), runs=runs
        )
        self._children[process.pid] = process
        self._remember([*(each for each in running.values() if each.name != name), service])
        return service

    def _comes_up(self, name: str, running: dict[str, Service], runs: Path) -> bool:
        """Wait until a service answers; where its port was taken meanwhile, it gets another."""
        for attempt in range(ATTEMPTS):
            if attempt:
                port = choose_ports([name])[name]
                running[name] = self._spawn(name, port, runs, running)
            service = running[name]
            if self._answers(service):
                return True
            self._end(service)
            del running[name]
            self._remember(running.values())
            if is_free(service.port):
                break
            self._notes.append(f"port {service.port} of {name} was taken meanwhile")
        self._notes.append(f"{name} did not come up: see {log_path(self.workspace, name)}")
        return False

    def _answers(self, service: Service) -> bool:
        """Whether it comes to answer before it ends and before patience does."""
        answers = False

        def is_decided() -> bool:
            nonlocal answers
            answers = is_answering(service)
            return answers or find_process(service, self.workspace) is None

        wait_until(is_decided, READY_S)
        return answers

    def _end(self, service: Service) -> None:
        process = find_process(service, self.workspace)
        if process is not None:
            end_process(process)
        child = self._children.pop(service.pid, None)
        if child is not None:
            child.wait(GRACE_S)

    def _remember(self, services: Iterable[Service]) -> None:
        host = socket.gethostname()
        write_services(self.workspace, Services(host=host, services=tuple(services)))

    def _overview(self, services: Iterable[Service], failed: Iterable[str] = ()) -> Overview:
        self._children = {
            pid: child for pid, child in self._children.items() if child.poll() is None
        }
        shown = sorted(services, key=lambda service: NAMES.index(service.name))
        return Overview(
            workspace=self.workspace,
            host=socket.gethostname(),
            endpoints=tuple(Endpoint(name=s.name, port=s.port, url=s.url) for s in shown),
            notes=tuple(self._notes),
            failed=tuple(failed),
        )
