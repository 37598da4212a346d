from __future__ import annotations

import psutil
import pytest

from cerebro.backend.base import StateRef
from cerebro.run.states import States, half_of_memory
from cerebro.storage.checkpoint import CheckpointRef


def state(key: int, size: int = 10) -> StateRef:
    return StateRef(key, size, {})


def saved(trial: int, visits: int = 1) -> CheckpointRef:
    return CheckpointRef(
        unit=trial, visits=visits, name="v000001-a0", sha256="0" * 64, bytes=10, parent=None
    )


class Memory:
    """What a backend holds: released states are gone, and cannot be released twice."""

    def __init__(self) -> None:
        self.released: list[int] = []

    def release(self, state: StateRef) -> None:
        assert state.key not in self.released
        self.released.append(state.key)


@pytest.fixture
def memory():
    return Memory()


def test_a_new_trial_starts_from_nothing(memory):
    assert States(memory.release).source(0) is None


def test_a_restored_trial_starts_from_its_checkpoint(memory):
    states = States(memory.release)
    states.restore(0, saved(0))
    assert states.source(0) == saved(0)


def test_the_last_state_is_the_source_and_the_one_before_is_released(memory):
    states = States(memory.release)
    states.replace(0, state(1))
    states.replace(0, state(2))
    assert states.source(0) == state(2)
    assert memory.released == [1]


def test_a_state_lives_until_its_last_reader_is_through(memory):
    states = States(memory.release)
    first = state(1)
    states.replace(0, first)
    states.hold(first)
    states.hold(first)
    states.replace(0, state(2))
    states.drop(first)
    assert memory.released == []
    states.drop(first)
    assert memory.released == [1]


def test_a_checkpoint_as_a_source_takes_no_memory(memory):
    states = States(memory.release)
    for source in (saved(0), None):
        states.hold(source)
        states.drop(source)
    assert memory.released == []


def test_a_trial_that_is_over_gives_its_state_back(memory):
    states = States(memory.release)
    states.replace(0, state(1))
    states.forget(0)
    states.forget(0)
    assert memory.released == [1]


def test_durable_states_beyond_the_limit_are_left_to_their_checkpoints(memory):
    states = States(memory.release, limit_bytes=20)
    for trial in range(3):
        states.replace(trial, state(trial))
        states.saved(trial, state(trial), saved(trial))
    # Equal to its reference is not enough: only the very state that was saved is durable.
    assert memory.released == []
    current = [state(10 + trial) for trial in range(3)]
    for trial in range(2):
        states.replace(trial, current[trial])
        states.saved(trial, current[trial], saved(trial, 2))
    assert memory.released == [0, 10, 1]
    assert states.source(0) == saved(0, 2)
    assert states.source(1) == current[1]


def test_the_longest_untouched_goes_first_and_no_more_than_needed(memory):
    states = States(memory.release, limit_bytes=30)
    refs = [state(trial) for trial in range(3)]
    for trial, ref in enumerate(refs):
        states.replace(trial, ref)
        states.saved(trial, ref, saved(trial))
    assert memory.released == []
    states.replace(3, state(3))
    assert memory.released == [0]
    assert [states.source(trial) for trial in range(4)] == [saved(0), *refs[1:], state(3)]


def test_a_state_that_is_not_durable_stays_whatever_the_limit(memory):
    states = States(memory.release, limit_bytes=0)
    states.replace(0, state(0))
    states.replace(1, state(1))
    assert memory.released == []
    assert states.source(0) == state(0)


def test_a_state_that_somebody_reads_is_not_evicted(memory):
    states = States(memory.release, limit_bytes=0)
    ref = state(0)
    states.replace(0, ref)
    states.hold(ref)
    states.saved(0, ref, saved(0))
    assert memory.released == []
    states.replace(1, state(1))
    assert memory.released == []
    states.drop(ref)
    states.replace(1, state(2))
    assert memory.released == [1, 0]
    assert states.source(0) == saved(0)


def test_an_older_checkpoint_does_not_make_the_current_state_durable(memory):
    states = States(memory.release, limit_bytes=0)
    first, second = state(1), state(2)
    states.replace(0, first)
    states.hold(first)
    states.replace(0, second)
    states.saved(0, first, saved(0))
    states.drop(first)
    assert memory.released == [1]
    assert states.source(0) == second


def test_the_limit_is_half_of_the_machine_unless_told():
    total = psutil.virtual_memory().total
    assert 0.4 * total < half_of_memory() <= 0.51 * total


def test_a_lost_state_that_is_durable_is_had_from_its_checkpoint(memory):
    states = States(memory.release)
    current = state(1)
    states.replace(0, current)
    states.saved(0, current, saved(0))
    assert states.lose(0)
    assert states.source(0) == saved(0)
    assert memory.released == [1]


def test_one_that_is_not_stays_until_its_unit_has_gone_back(memory):
    states = States(memory.release)
    states.replace(0, state(1))
    assert not states.lose(0)
    assert memory.released == []


def test_one_that_was_handed_over_is_durable(memory):
    states = States(memory.release)
    current = state(1)
    states.replace(0, current)
    states.saved(0, current, saved(0))
    assert states.hand_over(0)
    assert states.lose(0)
    assert states.source(0) == saved(0)
