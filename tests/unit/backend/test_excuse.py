"""Processes that fail before they meet the others."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from typing import Any

import pytest

from cerebro.backend.gang.excuse import excused
from cerebro.backend.gang.muster import mustered
from cerebro.backend.gang.rendezvous import Kind, Rendezvous, read_flags, split_address
from cerebro.backend.gang.seek import find_muster
from cerebro.errors import CerebroError, DataError, WorkerError
from tests.ports import free_port
from tests.processes import wait_for


@pytest.fixture
def spots() -> list[Rendezvous]:
    """The places of two processes that SLURM has started."""
    address = f"127.0.0.1:{free_port()}"
    flags = [read_flags(nodes=2, procs=1, node=n, master=address) for n in range(2)]
    return [replace(spot, kind=Kind.SLURM) for spot in flags]


def fail(spot: Rendezvous, error: CerebroError) -> None:
    with excused(spot, "cifar"):
        raise error


def test_rank_0_hears_why_another_does_not_come(spots: list[Rendezvous]) -> None:
    failures: list[WorkerError] = []
    with mustered(spots[0], "cifar") as muster:
        muster.on_failure = failures.append
        with pytest.raises(DataError):
            fail(spots[1], DataError("no data here."))
        wait_for(lambda: failures, "the failure")
    assert "rank 1 cannot take part: no data here." in str(failures[0])


def test_the_others_hear_that_rank_0_does_not_come(spots: list[Rendezvous]) -> None:
    words: list[dict[str, Any]] = []

    def follow() -> None:
        with find_muster(spots[1], "cifar", lambda: None) as post:
            while not words:
                words.extend(filter(None, [post.hear(60.0)]))

    other = threading.Thread(target=follow)
    other.start()
    with pytest.raises(DataError):
        fail(spots[0], DataError("no data here."))
    other.join()
    assert words == [{"done": DataError.exit_code, "word": "no data here."}]


def test_what_is_known_or_was_started_by_people_is_not_told(spots: list[Rendezvous]) -> None:
    known = DataError("no data here.")
    known.is_told = True
    with socket.create_server(split_address(spots[0].address)) as listener:
        for spot, error in (
            (spots[1], known),
            (replace(spots[1], kind=Kind.FLAGS), DataError("no")),
        ):
            with pytest.raises(DataError):
                fail(spot, error)
        listener.setblocking(False)
        # Nobody has looked for rank 0.
        with pytest.raises(BlockingIOError):
            listener.accept()
