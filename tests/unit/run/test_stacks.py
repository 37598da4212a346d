from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.errors import UsageError
from cerebro.run.stacks import GroupPlan, Setting, check_setting, compose, describe_stacks, step_s
from cerebro.train.visit import Group, Stacking, Survey

#: A step costs 100 us alone; a stack's step costs 100 us and 1 us a member.
CHEAP = {0: 1e-4, 1: 1.01e-4, 1024: 11.24e-4}
LINEAR = {0: 1e-4, 1: 1e-4, 1024: 1024e-4}


def group(count: int = 8, first: int = 0, **changes) -> Group:
    fields = {"step_s": CHEAP, "state_bytes": 100, "step_bytes": 100, **changes}
    return Group(trials=tuple(range(first, first + count)), **fields)


def composed(
    *groups: Group, setting: Setting = "auto", workers=1, steps=1000, memory=10**9, devices=1
):
    survey = Survey(groups=groups, memory_bytes=memory)
    numbers = {trial: steps for one in groups for trial in one.trials}
    return compose(survey, setting, workers=workers, steps=numbers, devices=devices)


def sizes(composition) -> list[int]:
    return [len(trials) for trials, _ in composition.stacks]


def test_trials_that_cost_little_together_become_one_stack():
    assert composed(group(8)).stacks == [(tuple(range(8)), Stacking(compiled=False))]


def test_where_stacking_gains_nothing_trials_stay_alone():
    composition = composed(group(8, step_s=LINEAR))
    assert composition.stacks == []
    assert composition.trials == list(range(8))
    assert composition.obstacles() == {}


@pytest.mark.parametrize(("gain", "stacks"), [(0.04, []), (0.06, [8])])
def test_a_gain_of_five_percent_is_asked_for(gain, stacks):
    table = {0: 1.0, 1: 8.0, 8: 8 * (1 - gain)}
    assert sizes(composed(group(8, step_s=table))) == stacks


def test_every_worker_gets_a_stack():
    assert sizes(composed(group(8), workers=2)) == [4, 4]
    assert sizes(composed(group(9), workers=4)) == [3, 3, 3]


def test_members_are_spread_evenly_and_in_order():
    plan = GroupPlan(trials=(5, 0, 3, 9, 7, 1, 8), members=3, stacks=3)
    assert plan.split() == [(0, 1, 3), (5, 7), (8, 9)]


def test_large_stacks_that_slow_down_are_avoided():
    """Beyond 4 members a step becomes so slow that more stacks win."""
    table = {0: 1.0, 1: 1.0, 4: 1.0, 5: 10.0, 16: 40.0}
    assert sizes(composed(group(16, step_s=table))) == [4, 4, 4, 4]


def test_a_number_forces_stacks_of_so_many_at_most_even_where_they_lose():
    losing = {0: 1.0, 1: 5.0, 64: 640.0}
    assert sizes(composed(group(10, step_s=losing), setting=4)) == [4, 3, 3]
    assert sizes(composed(group(3, step_s=losing), setting=1)) == [1, 1, 1]
    assert sizes(composed(group(3, step_s={}), setting=100)) == [3]


def test_false_stacks_nothing():
    assert composed(group(8), setting=False).stacks == []


def test_an_obstacle_keeps_trials_alone_whatever_is_asked():
    groups = group(2, obstacle="it is a recurrent net"), group(3, 2)
    for setting in ("auto", 4, "probe"):
        composition = composed(*groups, setting=setting)
        assert composition.obstacles() == {"it is a recurrent net": 2}
        assert sizes(composition) == [3]


def test_obstacles_of_one_reason_are_told_together():
    groups = [group(1, n, obstacle="why" if n % 2 else "because") for n in range(5)]
    assert composed(*groups).obstacles() == {"why": 2, "because": 3}


def test_memory_limits_the_members():
    needed = 2 * 100 + 100
    assert sizes(composed(group(8), memory=2 * 3 * needed)) == [3, 3, 2]
    assert sizes(composed(group(8), memory=2 * 3 * needed, setting=8)) == [3, 3, 2]
    alone = composed(group(8), memory=needed, setting=8)
    assert alone.stacks == []
    assert "memory" in next(iter(alone.obstacles()))


def test_workers_on_one_device_share_its_memory():
    needed = 2 * 100 + 100
    for workers, devices, size in [(1, 1, 6), (2, 1, 3), (4, 2, 3), (3, 2, 3), (2, 2, 6)]:
        composition = composed(
            group(48), memory=2 * 6 * needed, setting=48, workers=workers, devices=devices
        )
        assert set(sizes(composition)) == {size}, (workers, devices)


def test_a_group_whose_steps_cost_nothing_leaves_the_workers_to_the_others():
    for setting in ("auto", "probe", 4):
        composition = composed(group(8), group(2, 8, step_s={}), workers=2, setting=setting)
        assert composition.trials == list(range(10))


@pytest.mark.parametrize(("steps", "compiled"), [(10, False), (10**6, True)])
def test_compiling_must_pay_for_itself(steps, compiled):
    fast = {size: seconds / 2 for size, seconds in CHEAP.items() if size}
    one = group(8, compile_s=1.0, compiled_step_s=fast)
    assert composed(one, steps=steps).groups[0].compiled is compiled


def test_two_sizes_are_compiled_twice():
    fast = {size: seconds / 2 for size, seconds in CHEAP.items() if size}
    # One second is gained; of 9 trials one stack is larger than the other.
    odd, even = (group(count, compile_s=0.7, compiled_step_s=fast) for count in (9, 10))
    options = {"workers": 2, "setting": 5, "steps": int(1.0 / (step_s(CHEAP, 5) / 2))}
    assert not composed(odd, **options).groups[0].compiled
    assert composed(even, **options).groups[0].compiled


def test_groups_share_the_workers():
    """Each of two equal groups has one of two workers, so it is one stack."""
    assert sizes(composed(group(8), group(8, 8), workers=2)) == [8, 8]


def test_the_record_places_all_trials_and_starts_units_at_different_shards():
    composition = composed(group(4, obstacle="no"), group(4, 4), workers=4)
    record = composition.record(units=0, shards=3)
    assert record["trials"] == list(range(8))
    assert record["stacks"] == [
        {"trials": [4, 5], "start": 4 % 3, "stack": {"compiled": False}},
        {"trials": [6, 7], "start": 5 % 3, "stack": {"compiled": False}},
    ]
    assert composition.record(units=1, shards=3)["stacks"][0]["start"] == 5 % 3


def test_what_was_decided_can_be_read():
    composition = composed(group(1, obstacle="no"), group(4, 1), setting=2)
    assert composition.to_json() == {
        "setting": 2,
        "groups": [
            {"trials": 1, "members": 0, "stacks": 0, "compiled": False, "obstacle": "no"},
            {"trials": 4, "members": 2, "stacks": 2, "compiled": False, "obstacle": None},
        ],
    }
    assert composition.describe() == "5 trials: 4 in 2 stacks of 2, 1 alone"


@pytest.mark.parametrize(
    ("found", "trials", "text"),
    [
        ([256] * 4, 1024, "1024 trials in 4 stacks of 256"),
        ([3], 3, "3 trials in 1 stack of 3"),
        ([], 3, "3 trials, none in a stack"),
        ([2, 3], 8, "8 trials: 5 in 2 stacks of 2 to 3, 3 alone"),
    ],
)
def test_stacks_are_told_to_people(found, trials, text):
    assert describe_stacks(found, trials) == text


@pytest.mark.parametrize("value", ["auto", "probe", False, 1, 4])
def test_settings(value):
    assert check_setting(value) == value


@pytest.mark.parametrize("value", [True, 0, -1, "yes", 1.5, None, []])
def test_no_settings(value):
    with pytest.raises(UsageError, match="stack must be auto, probe, false or a number"):
        check_setting(value)


def test_seconds_between_and_beyond_entries():
    table = {0: 9.0, 2: 2.0, 4: 6.0}
    assert [step_s(table, n) for n in (0, 1, 2, 3, 4, 5)] == [9.0, 0.0, 2.0, 4.0, 6.0, 8.0]
    assert step_s({2: 4.0}, 8) == 16.0
    assert step_s({}, 3) == math.inf


@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    workers=st.integers(1, 5),
    setting=st.sampled_from(["auto", "probe", 1, 3, 100, False]),
    slope=st.floats(0, 2),
    memory=st.integers(0, 10_000),
)
def test_every_trial_is_placed_once_and_no_stack_is_too_large(
    counts, workers, setting, slope, memory
):
    groups, first = [], 0
    for count in counts:
        groups.append(group(count, first, step_s={0: 1.0, 1: 1.0, 100: 1 + 99 * slope}))
        first += count
    composition = composed(*groups, setting=setting, workers=workers, memory=memory)
    assert composition.trials == list(range(first))
    stacked = [trial for trials, _ in composition.stacks for trial in trials]
    assert len(set(stacked)) == len(stacked)
    for trials, _ in composition.stacks:
        assert workers * len(trials) * 300 <= memory / 2
        if isinstance(setting, int):
            assert len(trials) <= setting
    firsts = [trials[0] for trials, _ in composition.stacks]
    assert firsts == sorted(firsts)
    assert composition == composed(*groups, setting=setting, workers=workers, memory=memory)
