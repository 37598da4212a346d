from __future__ import annotations

import logging
import threading
import time

import pytest

from cerebro.track.records import Record, WorkerChanged
from cerebro.track.tracker import FanOut


def note(number: int) -> WorkerChanged:
    return WorkerChanged(worker=number, alive=True, cause=None, time_s=0.0)


class Listening:
    def __init__(self) -> None:
        self.seen: list[Record] = []
        self.closed = 0

    def record(self, record: Record) -> None:
        self.seen.append(record)

    def close(self) -> None:
        self.closed += 1


class Raising(Listening):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def record(self, record: Record) -> None:
        super().record(record)
        raise self.error


class Counting(Listening):
    """Says when it has seen so many."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.has_all = threading.Event()

    def record(self, record: Record) -> None:
        super().record(record)
        if len(self.seen) == self.count:
            self.has_all.set()


class Blocking(Listening):
    def __init__(self) -> None:
        super().__init__()
        self.busy = threading.Event()
        self.free = threading.Event()

    def record(self, record: Record) -> None:
        self.busy.set()
        assert self.free.wait(100)
        super().record(record)


def test_records_arrive_in_order_and_close_comes_once() -> None:
    tracker = Listening()
    fan = FanOut([tracker])
    records = [note(n) for n in range(100)]
    for record in records:
        fan.record(record)
    fan.close()
    fan.close()
    assert tracker.seen == records
    assert tracker.closed == 1


def test_a_replayed_history_longer_than_the_queue_arrives_whole() -> None:
    tracker = Listening()
    with FanOut([tracker], limit=10) as fan:
        fan.replay([note(n) for n in range(1000)])
    assert len(tracker.seen) == 1000
    assert fan.problems == []


@pytest.mark.parametrize("error", [ValueError("no"), OSError(28, "No space"), SystemExit(3)])
def test_a_tracker_that_raises_is_dropped_with_one_warning(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound = Raising(error), Listening()
    with caplog.at_level(logging.WARNING), FanOut([broken, sound]) as fan:
        for n in range(50):
            fan.record(note(n))
    assert len(broken.seen) == 1
    assert len(sound.seen) == 50
    assert len(caplog.records) == 1
    assert "Raising failed and was dropped" in caplog.text


def test_a_blocked_tracker_blocks_neither_the_run_nor_the_others() -> None:
    stuck, sound = Blocking(), Counting(900)
    fan = FanOut([stuck, sound], limit=1000)
    try:
        for n in range(900):
            fan.record(note(n))
        assert sound.has_all.wait(30)
        begin = time.monotonic()
        fan.close(timeout=0.2)
        assert time.monotonic() - begin < 20.0
        assert len(sound.seen) == 900
        assert stuck.seen == []
        assert "still busy" in fan.problems[0]
    finally:
        stuck.free.set()
        for thread in threading.enumerate():
            if thread.name.startswith("track-"):
                thread.join(60)


def test_records_for_a_full_queue_are_dropped_and_counted() -> None:
    stuck = Blocking()
    fan = FanOut([stuck], limit=10)
    fan.record(note(0))
    assert stuck.busy.wait(60)
    for n in range(30):
        fan.record(note(n))
    stuck.free.set()
    fan.close()
    assert len(stuck.seen) == 11
    assert fan.problems == ["tracker Blocking fell behind: 20 records were dropped."]


def test_a_tracker_that_fails_to_close_is_reported_once() -> None:
    class Unclosable(Listening):
        def close(self) -> None:
            raise OSError("gone")

    with FanOut([Unclosable()]) as fan:
        fan.record(note(0))
    assert len(fan.problems) == 1


class Holding(Listening):
    def __init__(self) -> None:
        super().__init__()
        self.flushed = threading.Event()

    def flush(self) -> None:
        if self.seen:
            self.flushed.set()


def test_a_tracker_that_holds_back_is_asked_to_write_when_no_records_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cerebro.track.tracker.QUIET_S", 0.01)
    monkeypatch.setattr("cerebro.track.tracker.PAUSE_S", 0.0)
    tracker = Holding()
    fan = FanOut([tracker])
    fan.replay([note(0)])
    assert tracker.flushed.wait(30)
    fan.record(note(1))
    fan.close()
    assert tracker.seen == [note(0), note(1)]
    assert fan.problems == []


def test_a_tracker_that_fails_to_flush_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(Listening):
        def __init__(self) -> None:
            super().__init__()
            self.gone = threading.Event()

        def flush(self) -> None:
            raise OSError(28, "No space")

        def close(self) -> None:
            self.gone.set()

    monkeypatch.setattr("cerebro.track.tracker.QUIET_S", 0.01)
    tracker = Full()
    fan = FanOut([tracker])
    assert tracker.gone.wait(30)
    fan.close()
    assert len(fan.problems) == 1
    assert "Full failed and was dropped" in fan.problems[0]


def test_threads_end_with_close() -> None:
    before = set(threading.enumerate())
    fan = FanOut([Listening(), Listening()])
    assert len(set(threading.enumerate()) - before) == 2
    fan.close()
    # Threads of others may end meanwhile.
    assert set(threading.enumerate()) <= before
