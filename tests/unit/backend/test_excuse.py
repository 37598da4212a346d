"""Processes that fail before they meet the others."""

from __future__ import annotations

import concurrent.futures
import logging
import socket
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cerebro.backend.gang import muster
from cerebro.backend.gang.excuse import excused
from cerebro.backend.gang.muster import mustered
from cerebro.backend.gang.outcome import exit_code_of
from cerebro.backend.gang.rendezvous import Kind, Rendezvous, read_flags, split_address
from cerebro.backend.gang.seek import find_muster
from cerebro.errors import DataError, DiskFullError, WorkerError
from tests.ports import free_port
from tests.processes import wait_for

#: Of ours, of the system, of a task.
ERRORS = [DataError("no data here."), OSError("no data here."), ValueError("no data here.")]


@pytest.fixture
def spots() -> list[Rendezvous]:
    """The places of two processes that SLURM has started."""
    address = f"127.0.0.1:{free_port()}"
    flags = [read_flags(nodes=2, procs=1, node=n, master=address) for n in range(2)]
    return [replace(spot, kind=Kind.SLURM) for spot in flags]


def fail(spot: Rendezvous, error: Exception) -> None:
    with excused(spot, "cifar"):
        raise error


@pytest.mark.parametrize("error", ERRORS)
def test_rank_0_hears_why_another_does_not_come(spots: list[Rendezvous], error: Exception) -> None:
    told = excuse_of_rank_1(spots, error)
    assert f"rank 1 cannot take part: {heard(error)}" in told


@pytest.mark.parametrize("letter", ["é", "\N{SNOWMAN}", "\N{GRINNING FACE}", "\udce9", "\x1b", '"'])
def test_what_to_do_at_the_end_of_a_long_message_is_heard(
    spots: list[Rendezvous], letter: str
) -> None:
    told = excuse_of_rank_1(spots, DataError(f"{letter * 900}: run `cerebro data get`."))
    assert told.endswith("run `cerebro data get`.")


def test_of_a_message_without_end_the_beginning_is_heard(spots: list[Rendezvous]) -> None:
    told = excuse_of_rank_1(spots, DataError("no data " + "\N{GRINNING FACE}" * 100_000))
    assert "rank 1 cannot take part: no data" in told


def heard(error: Exception) -> str:
    """What is raised for programmers comes with its name."""
    return f"ValueError: {error}" if isinstance(error, ValueError) else str(error)


def excuse_of_rank_1(spots: list[Rendezvous], error: Exception) -> str:
    """What rank 0 hears first."""
    failures: list[WorkerError] = []
    with mustered(spots[0], "cifar") as place:
        place.on_failure = failures.append
        with pytest.raises(type(error)):
            fail(spots[1], error)
        wait_for(lambda: failures, "the failure")
    return str(failures[0])


def follow(spot: Rendezvous, there: threading.Event | None = None) -> dict[str, Any]:
    """How the run ends, as a process without rank 0 hears it."""
    with find_muster(spot, "cifar", lambda: None) as post:
        if there is not None:
            there.set()
        while True:
            if (word := post.hear(60.0)) is not None:
                return word


@pytest.mark.parametrize("error", ERRORS)
def test_the_others_hear_that_rank_0_does_not_come(
    spots: list[Rendezvous], error: Exception
) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow, spots[1])
        with pytest.raises(type(error)):
            fail(spots[0], error)
        assert following.result() == {"done": exit_code_of(error), "word": heard(error)}


def test_who_comes_a_little_later_hears_that_the_disk_of_rank_0_is_full(
    spots: list[Rendezvous], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its code is that of a run which was asked to stop, but nobody has asked the others."""
    ahead_s = 0.0
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        following: list[concurrent.futures.Future[dict[str, Any]]] = []

        def sleep(seconds: float) -> None:
            nonlocal ahead_s
            ahead_s += 1.0
            if ahead_s == 2.0:
                following.append(pool.submit(follow, spots[1]))
            time.sleep(seconds)

        clock = SimpleNamespace(monotonic=lambda: min(ahead_s, 2.0), sleep=sleep)
        monkeypatch.setattr(muster, "time", clock)
        with pytest.raises(DiskFullError):
            fail(spots[0], DiskFullError("no space left."))
        (heard,) = [each.result() for each in following]
    assert heard == {"done": 75, "word": "no space left."}


def test_what_ends_a_run_of_which_all_hear_is_not_told_again(
    spots: list[Rendezvous], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cerebro.gang")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow, spots[1])
        with (
            pytest.raises(OSError, match="no room"),
            excused(spots[0], "cifar"),
            mustered(spots[0], "cifar"),
        ):
            raise OSError("no room")
        assert following.result()["done"] == 1
    assert "telling the other processes" not in caplog.text


def train_and_fail(spot: Rendezvous) -> None:
    with excused(spot, "cifar"):
        with mustered(spot, "cifar"):
            pass
        raise DataError("the result cannot be read.")


def test_what_fails_after_the_run_has_ended_is_not_told(
    spots: list[Rendezvous], caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody is there any more who could hear it."""
    caplog.set_level(logging.INFO, "cerebro.gang")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow, spots[1])
        with pytest.raises(DataError):
            train_and_fail(spots[0])
        assert following.result()["done"] == 0
    assert "telling the other processes" not in caplog.text


def test_the_others_hear_of_what_fails_before_the_next_run_of_a_script(
    spots: list[Rendezvous],
) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow, spots[1])
        with pytest.raises(DataError):
            train_and_fail(spots[0])
        assert following.result()["done"] == 0
    assert excuse_of_rank_1(spots, DataError("no rows.")).endswith("no rows.")
    # Rank 1 has met the others before, too.
    assert excuse_of_rank_1(spots, DataError("no rows.")).endswith("no rows.")


@pytest.mark.parametrize("signalled", [SystemExit(75), KeyboardInterrupt()], ids=repr)
def test_a_signal_to_stop_while_the_last_one_is_waited_for_does_not_change_how_it_ends(
    signalled: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch system would put a job back into its queue that can never run."""
    address = f"127.0.0.1:{free_port()}"
    flags = [read_flags(nodes=3, procs=1, node=n, master=address) for n in range(2)]
    spots = [replace(spot, kind=Kind.SLURM) for spot in flags]
    there = threading.Event()

    def sleep(seconds: float) -> None:
        """As a handler of signals does that comes in between, once one of two is there."""
        if there.is_set():
            raise signalled
        time.sleep(seconds)

    monkeypatch.setattr(muster, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow, spots[1], there)
        with pytest.raises(DataError):
            fail(spots[0], DataError("no data here."))
        assert following.result() == {"done": 2, "word": "no data here."}


def fail_after_meeting(spot: Rendezvous) -> None:
    with excused(spot, "cifar"):
        spot.met.set()
        raise DataError("no")


def test_what_is_known_or_was_started_by_people_is_not_told(spots: list[Rendezvous]) -> None:
    by_people = replace(spots[1], kind=Kind.FLAGS, met=threading.Event())
    with socket.create_server(split_address(spots[0].address)) as listener:
        with pytest.raises(DataError):
            fail_after_meeting(spots[1])
        with pytest.raises(DataError):
            fail(by_people, DataError("no"))
        listener.setblocking(False)
        # Nobody has looked for rank 0.
        with pytest.raises(BlockingIOError):
            listener.accept()
