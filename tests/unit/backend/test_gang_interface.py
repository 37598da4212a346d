"""At which of its addresses a machine is reached."""

from __future__ import annotations

import psutil
import pytest

from cerebro.backend.gang.interface import address_towards, own_address


def test_a_machine_is_reached_over_the_interface_that_its_users_name(monkeypatch):
    (loopback,) = (
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(found.address == "127.0.0.1" for found in addresses)
    )
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", f"{loopback},eth0")
    assert own_address("192.0.2.1") == "127.0.0.1"


@pytest.mark.parametrize("chosen", ["", "none-such"])
def test_a_machine_is_reached_as_the_system_says_else(monkeypatch, chosen):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", chosen)
    assert own_address("127.0.0.1") == address_towards("127.0.0.1") == "127.0.0.1"
