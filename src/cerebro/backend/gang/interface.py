"""Addresses of this machine, as ranks on others see them."""

from __future__ import annotations

import contextlib
import ipaddress
import socket

import psutil

from cerebro.errors import UsageError
from cerebro.train.gang.place import chosen_interface

#: Of a network for documentation: nothing is sent, but the system says what it would send from.
_ELSEWHERE = "192.0.2.1"


def resolve(host: str) -> str:
    """The address of a host.

    >>> resolve("127.0.0.1")
    '127.0.0.1'
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(
            f"the machine of rank 0 must be known by name, but {host!r} is not "
            f"({error.strerror}). Give its address instead (--master, or MASTER_ADDR)."
        ) from None
    return str(found[0][4][0])


def listening_address(host: str) -> str:
    """What a server for a host's name binds to on that host; "" is every interface.

    Many systems give their own name an address that nobody else reaches.
    """
    address = resolve(host)
    own = _own_addresses()
    if address in own and not _is_loopback(address):
        return address
    if _is_loopback(address):
        return address if _is_meant(host) else ""
    raise UsageError(
        f"rank 0 must run on the machine that the others look for, {host}, but {address} is no "
        f"address of this one ({', '.join(sorted(own))}). Start node 0 there, or give an address "
        "of this machine (--master, or MASTER_ADDR)."
    )


def address_towards(host: str) -> str:
    """The address of this machine that a host sees, or all others if the host is this machine.

    >>> address_towards("127.0.0.1")
    '127.0.0.1'
    """
    try:
        address = _source_address(resolve(host))
    except OSError as error:
        raise UsageError(
            f"the machine of rank 0 must be reachable, but there is no way to {host} from here "
            f"({error.strerror})."
        ) from None
    if _is_loopback(address) and not _is_meant(host):
        with contextlib.suppress(OSError):
            return _source_address(_ELSEWHERE)
    return address


def own_address(host: str) -> str:
    """What `address_towards` says, or that of the interface which users have chosen."""
    for found in psutil.net_if_addrs().get(chosen_interface(), []):
        if found.family == socket.AF_INET:
            return str(found.address)
    return address_towards(host)


def _source_address(address: str) -> str:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])


def _is_meant(host: str) -> bool:
    """Whether who gave a host's name wants this machine alone."""
    return host == "localhost" or _is_loopback(host.strip("[]"))


def _own_addresses() -> set[str]:
    entries = (entry for entries in psutil.net_if_addrs().values() for entry in entries)
    families = (socket.AF_INET, socket.AF_INET6)
    return {entry.address.partition("%")[0] for entry in entries if entry.family in families}


def _is_loopback(address: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False
