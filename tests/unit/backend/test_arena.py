from __future__ import annotations

import mmap
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.backend.arena import Arena, Mapping

PAGE = mmap.ALLOCATIONGRANULARITY


@pytest.fixture
def arena():
    arena = Arena()
    yield arena
    arena.close()


@pytest.mark.parametrize(
    ("size", "pages"), [(0, 1), (1, 1), (PAGE, 1), (PAGE + 1, 2), (10 * PAGE, 10)]
)
def test_a_slot_has_whole_pages(arena, size, pages):
    slot = arena.allocate(size)
    assert slot.capacity == pages * PAGE
    assert slot.start % PAGE == 0
    assert len(arena.view(slot)) == slot.capacity


def test_what_is_written_through_one_mapping_is_read_through_another(arena):
    slots = [arena.allocate(100) for _ in range(3)]
    for number, slot in enumerate(slots):
        arena.view(slot)[:3] = bytes([number]) * 3
    other = Mapping(arena.fd)
    assert [bytes(other.view(slot)[:3]) for slot in slots] == [b"\0\0\0", b"\1\1\1", b"\2\2\2"]


def test_a_slot_is_mapped_once(arena):
    slot = arena.allocate(1)
    assert arena.view(slot) is arena.view(slot)


def test_a_freed_slot_is_used_again_for_its_size(arena):
    slot = arena.allocate(2 * PAGE)
    arena.free(slot)
    assert arena.allocate(PAGE) != slot
    assert arena.allocate(2 * PAGE - 5) == slot


def test_the_file_does_not_grow_when_slots_are_used_again(arena):
    for _ in range(50):
        arena.free(arena.allocate(100 << 20))
    before = os.fstat(arena.fd).st_size
    arena.free(arena.allocate(100 << 20))
    assert os.fstat(arena.fd).st_size == before


def test_many_slots_cost_few_file_descriptors(arena):
    before = len(os.listdir("/proc/self/fd"))
    other = Mapping(arena.fd)
    for _ in range(2000):
        other.view(arena.allocate(1))
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_a_slot_may_be_larger_than_others_together(arena):
    arena.allocate(1)
    slot = arena.allocate(1 << 30)
    arena.view(slot)[-1] = 1
    assert Mapping(arena.fd).view(slot)[-1] == 1


def test_memory_of_freed_slots_goes_back_to_the_system(arena):
    def resident() -> int:
        return os.fstat(arena.fd).st_blocks * 512

    slots = [arena.allocate((20 << 20) + number * PAGE) for number in range(40)]
    for slot in slots:
        arena.view(slot)
    assert resident() > 800 << 20
    for slot in slots:
        arena.free(slot)
    assert resident() < 300 << 20


def test_a_slot_whose_memory_went_back_can_be_used_again(arena):
    slots = [arena.allocate(100 << 20) for _ in range(4)]
    for slot in slots:
        arena.free(slot)
    again = [arena.allocate(100 << 20) for _ in range(4)]
    assert {slot.start + slot.segment.offset for slot in again} == {
        slot.start + slot.segment.offset for slot in slots
    }
    for number, slot in enumerate(again):
        arena.view(slot)[:1] = bytes([number])
    assert [arena.view(slot)[0] for slot in again] == [0, 1, 2, 3]


def test_the_file_has_no_name(arena):
    assert os.fstat(arena.fd).st_nlink == 0


def test_the_file_is_not_passed_to_programs_by_accident(arena):
    assert not os.get_inheritable(arena.fd)


def test_views_outlive_the_end_of_the_arena():
    arena = Arena()
    view = arena.view(arena.allocate(1))
    arena.close()
    view[0] = 7
    assert view[0] == 7


def test_closing_twice_closes_nothing_else(tmp_path):
    arena = Arena()
    arena.close()
    with (tmp_path / "other").open("wb") as file:
        arena.close()
        os.fstat(file.fileno())


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 3 * PAGE), st.booleans()), max_size=30))
def test_slots_in_use_never_overlap(steps):
    arena = Arena()
    used = []
    for size, is_freed in steps:
        slot = arena.allocate(size)
        assert slot.capacity >= size
        for other in used:
            if slot.segment == other.segment:
                ends_before = slot.start + slot.capacity <= other.start
                assert ends_before or other.start + other.capacity <= slot.start
        used.append(slot)
        if is_freed:
            arena.free(used.pop(0))
    arena.close()
