from __future__ import annotations

from dataclasses import dataclass

import pytest

from cerebro.backend.limits import Limits
from cerebro.backend.watch import Pace, Watch
from cerebro.errors import UsageError

LIMITS = Limits(heartbeat_s=60, stall_s=600)


@dataclass
class Signs:
    """A worker that beats and counts when told to."""

    beat_s: float = 0.0
    moved_s: float = 0.0
    batches: int = 0

    def beat(self, now: float, batches: int | None = None) -> None:
        self.beat_s = now
        if batches is not None:
            self.moved_s, self.batches = now, batches


@pytest.fixture
def signs() -> Signs:
    return Signs()


@pytest.fixture
def pace() -> Pace:
    return Pace()


@pytest.fixture
def watch(signs, pace) -> Watch:
    watch = Watch(signs, LIMITS, pace)
    watch.begin(1000.0)
    return watch


def follow(watch: Watch, signs: Signs, *, until: float, beats: bool) -> tuple[str, float] | None:
    """Look whenever a look is due; what was found, and when."""
    now = watch.due
    while now <= until:
        if beats:
            signs.beat(now)
        found = watch.look(now)
        if found:
            return found, now
        assert watch.due > now
        now = watch.due
    return None


def test_a_worker_without_a_heartbeat_is_found_when_the_limit_is_up(watch, signs):
    assert follow(watch, signs, until=9e9, beats=False) == ("hung: no heartbeat for 60 s", 1060.0)


def test_a_worker_without_a_batch_is_found_when_the_limit_is_up(watch, signs):
    found = follow(watch, signs, until=9e9, beats=True)
    assert found is not None
    assert found[0] == "hung: no batch for 600 s"
    assert 1600.0 <= found[1] <= 1660.0


def test_the_time_counts_from_the_last_batch(watch, signs):
    signs.beat(1500.0, batches=7)
    found = follow(watch, signs, until=9e9, beats=True)
    # Six batches in 500 s: twenty of them may take longer than the limit.
    assert found is not None
    assert found[0] == f"hung: no batch for {20 * 500 / 6:g} s"


def test_what_was_before_the_call_does_not_count(watch, signs, pace):
    signs.beat(1000.0, batches=100)
    watch.begin(1500.0)
    assert watch.due == 1554.0
    assert follow(watch, signs, until=9e9, beats=False) == ("hung: no heartbeat for 60 s", 1560.0)


def test_batches_that_take_long_get_their_time(watch, signs, pace):
    pace.add(100.0)
    found = follow(watch, signs, until=9e9, beats=True)
    assert found is not None
    assert found[0] == "hung: no batch for 2000 s"


def test_one_slow_visit_does_not_set_the_pace(watch, signs, pace):
    for seconds in (1.0, 1.0, 1e6):
        pace.add(seconds)
    found = follow(watch, signs, until=9e9, beats=True)
    assert found is not None
    assert found[0] == "hung: no batch for 600 s"


def test_a_worker_that_goes_on_is_left_alone(watch, signs):
    now = 1000.0
    for batch in range(500):
        now = watch.due
        signs.beat(now, batches=batch)
        assert watch.look(now) is None


def test_the_pace_is_learned_from_visits(watch, signs, pace):
    signs.beat(1010.0, batches=5)
    watch.end(1020.0)
    assert pace.batch_s == 4.0


def test_a_visit_without_batches_teaches_nothing(watch, pace):
    watch.end(1020.0)
    assert pace.batch_s == 0.0


def test_a_machine_that_was_asleep_does_not_cost_a_worker_its_life(watch, signs):
    # Nobody has run for an hour, neither the worker nor this process.
    assert watch.look(4600.0) is None
    signs.beat(4600.5, batches=1)
    assert watch.look(watch.due) is None
    assert follow(watch, signs, until=4650.0, beats=False) is None


def test_the_environment_sets_the_limits(monkeypatch):
    monkeypatch.setenv("CEREBRO_HEARTBEAT_S", "5")
    monkeypatch.setenv("CEREBRO_STALL_S", "0.5")
    monkeypatch.setenv("CEREBRO_START_S", "")
    assert Limits.from_environment() == Limits(heartbeat_s=5, stall_s=0.5)


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan"])
def test_a_limit_must_be_a_number_above_zero(monkeypatch, text):
    monkeypatch.setenv("CEREBRO_STALL_S", text)
    with pytest.raises(UsageError, match="CEREBRO_STALL_S must be a number of seconds above 0"):
        Limits.from_environment()
