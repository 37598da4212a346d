from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from cerebro.launch.processes import (
    choose_ports,
    end_process,
    find_process,
    find_strays,
    is_alive,
    is_free,
    is_listening,
)
from cerebro.launch.service import command
from cerebro.storage.workspace import Service

STUBBORN = """\
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print("ready", flush=True)
time.sleep(600)
"""
WAITING = "print('ready', flush=True); input()"


@pytest.fixture
def start():
    """Starts Python processes that are dead in the end."""
    started = []

    def start(code: str, *words: str) -> psutil.Process:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return psutil.Process(process.pid)

    yield start
    for process in started:
        process.kill()
        process.communicate()


def as_service(process: psutil.Process, name: str = "reports") -> Service:
    created_s = process.create_time()
    return Service(name=name, pid=process.pid, created_s=created_s, port=1, token="")


def test_one_that_ignores_the_request_is_killed_and_its_children_with_it(start):
    process = start(STUBBORN)
    (child,) = process.children()
    end_process(process, grace_s=0.1)
    assert not is_alive(process)
    assert not is_alive(child)


def test_one_that_has_ended_meanwhile_is_no_error(start):
    process = start(WAITING)
    process.kill()
    process.wait()
    end_process(process)


def test_a_pid_that_another_process_has_by_now_is_not_the_service(start, tmp_path):
    service = as_service(start(WAITING))
    assert find_process(service, tmp_path) is None
    assert find_process(replace(service, created_s=service.created_s - 60), tmp_path) is None


def test_a_process_that_only_names_the_service_is_no_stray(start, tmp_path):
    start(WAITING, *command("reports", tmp_path)[1:])
    assert find_strays(tmp_path) == []


def test_ports_that_are_chosen_together_differ_and_are_free():
    ports = choose_ports(["a", "b", "c", "d"])
    assert len(set(ports.values())) == 4
    assert all(map(is_free, ports.values()))


def test_a_port_that_has_a_listener_is_not_free():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not is_free(server.getsockname()[1])


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_cannot_be_is_not_free(port):
    assert not is_free(port)


def test_a_listener_of_another_process_is_not_taken_for_the_service(start):
    service = as_service(start(WAITING))
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not is_listening(replace(service, port=server.getsockname()[1]))
