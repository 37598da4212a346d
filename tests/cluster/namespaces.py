"""Machines for tests: network namespaces on one switch, each with an address and a name of its own.

Made and removed by root only. What runs in one sees the files of this machine, but only its own
network: `ip netns exec` also gives it the names of the others in /etc/hosts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.processes import wait_for

_NETNS = Path("/etc/netns")


@dataclass(frozen=True)
class Machine:
    """One namespace: reached by name or address from the others."""

    name: str
    namespace: str
    address: str
    #: The namespace of the switch, and where this one is plugged in.
    switch: str
    port: str

    def command(self, *words: str) -> list[str]:
        """The command that runs a command there."""
        return ["ip", "netns", "exec", self.namespace, *words]

    def cut(self) -> None:
        """Pull its cable: what is sent from here or there gets lost."""
        _ip("-n", self.switch, "link", "set", self.port, "down")

    def mend(self) -> None:
        """Plug it in again."""
        _ip("-n", self.switch, "link", "set", self.port, "up")

    def end_all(self) -> None:
        """SIGKILL what still runs there."""
        _end_all_in(self.namespace)


def why_not() -> str | None:
    """Why there can be no namespaces here; None if there can."""
    if os.geteuid() != 0:
        return "network namespaces are made by root"
    return None if shutil.which("ip") else "needs `ip` (Debian: iproute2)"


@contextlib.contextmanager
def machines(names: Sequence[str], network: str = "10.77.0") -> Iterator[list[Machine]]:
    """Machines that reach each other and nothing else; gone in the end, with all in them."""
    tag = f"cb{os.getpid()}"
    switch = f"{tag}-switch"
    found = [
        Machine(name, f"{tag}-{name}", f"{network}.{number}", switch, f"port{number}")
        for number, name in enumerate(names, start=1)
    ]
    hosts = "127.0.0.1 localhost\n" + "".join(f"{each.address} {each.name}\n" for each in found)
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for machine in found:
            _plug(machine)
            folder = _NETNS / machine.namespace
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(hosts)
        yield found
    finally:
        for namespace in (*(machine.namespace for machine in found), switch):
            _end_all_in(namespace)
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
            shutil.rmtree(_NETNS / namespace, ignore_errors=True)
        with contextlib.suppress(OSError):
            _NETNS.rmdir()


def _plug(machine: Machine) -> None:
    """Connect a machine to the switch."""
    inside, namespace = f"{machine.name}-eth"[-15:], machine.namespace
    _ip("netns", "add", namespace)
    _ip(
        *("link", "add", inside, "netns", namespace, "type", "veth"),
        *("peer", "name", machine.port, "netns", machine.switch),
    )
    _ip("-n", namespace, "addr", "add", f"{machine.address}/24", "dev", inside)
    for name in ("lo", inside):
        _ip("-n", namespace, "link", "set", name, "up")
    _ip("-n", machine.switch, "link", "set", machine.port, "master", "br0", "up")


def _end_all_in(namespace: str) -> None:
    """SIGKILL what still runs in a namespace of ours, until nothing does."""
    wait_for(lambda: not _killed_in(namespace), f"nothing runs in {namespace}")


def _killed_in(namespace: str) -> list[str]:
    """What was there to be killed; it may have started something meanwhile."""
    listed = subprocess.run(
        ["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False
    )
    found = listed.stdout.split()
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), 9)
    return found


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
