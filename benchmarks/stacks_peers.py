"""Many processes on one card, each with its own loop; with and without CUDA's MPS."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from benchmarks.peers import Peer
from benchmarks.stacks_work import Eager, make_shard

_CONTROL = "nvidia-cuda-mps-control"
#: How long processes may take to get ready, and to train.
_WAIT_S = 90.0


class EagerCommands:
    """The plain loop in a process of its own."""

    def begin(self, net: str, file: Path | None, device: str, precision: str, trial: int) -> None:
        shard = make_shard(net, file)
        self._loop = Eager(net, shard, device, precision=precision, trial=trial)
        self._loop.visit()

    def train(self, visits: int) -> list[float]:
        """The losses of the last of so many visits."""
        for _ in range(visits):
            self._loop.visit()
        return list(self._loop.losses)


class Crowd:
    """Processes started together; any number of them works at a time."""

    def __init__(self, size: int) -> None:
        self._peers = [Peer(EagerCommands) for _ in range(size)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for peer in self._peers:
            peer.connection.close()
        for peer in self._peers:
            peer._process.join(_WAIT_S)
            peer._process.kill()

    def begin(self, net: str, file: Path | None, device: str, precision: str) -> None:
        for trial, peer in enumerate(self._peers):
            peer.send("begin", net, file, device, precision, trial)
        for peer in self._peers:
            _receive(peer)

    def train(self, size: int, visits: int) -> float:
        """Seconds until so many processes have done so many visits each."""
        began = time.perf_counter()
        for peer in self._peers[:size]:
            peer.send("train", visits)
        for peer in self._peers[:size]:
            _receive(peer)
        return time.perf_counter() - began


def _receive(peer: Peer) -> None:
    if not peer.connection.poll(_WAIT_S):
        raise TimeoutError(f"a process did not answer within {_WAIT_S:.0f} s")
    peer.receive()


@contextmanager
def multi_process_service() -> Iterator[str | None]:
    """Processes started inside share the card by MPS; gives the reason if there is none."""
    if shutil.which(_CONTROL) is None:
        yield f"{_CONTROL} is not installed"
        return
    with tempfile.TemporaryDirectory(prefix="cerebro-mps-") as folder:
        own = {
            f"CUDA_MPS_{kind}_DIRECTORY": os.path.join(folder, kind.lower())
            for kind in ("PIPE", "LOG")
        }
        for path in own.values():
            os.mkdir(path)
        before = {name: os.environ.get(name) for name in own}
        os.environ.update(own)
        try:
            started = subprocess.run([_CONTROL, "-d"], capture_output=True, text=True, timeout=20)
            said = (started.stdout + started.stderr).strip().splitlines()
            yield f"it did not start: {said[-1:]}" if started.returncode else None
        finally:
            _quit()
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def servers() -> list[str]:
    """Process ids of the daemon's servers: none, if nobody uses it."""
    return _tell("get_server_list").split()


def _quit() -> None:
    """End the daemon that was started in our folder."""
    _tell("quit")


def _tell(command: str) -> str:
    try:
        done = subprocess.run(
            [_CONTROL], input=f"{command}\n", capture_output=True, text=True, timeout=20
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip()
