from __future__ import annotations

from cerebro.storage.parts import Part, chain, newest, parse_part, part_name


def part(generation, start, end, *, merged=False):
    name = part_name("j", generation, start, end if merged else None)
    return Part(name, generation, start, end, merged)


def test_a_name_tells_file_generation_and_place():
    assert parse_part(part_name("log.jsonl", 3, 42), 8) == (
        "log.jsonl",
        Part(part_name("log.jsonl", 3, 42), 3, 42, 50),
    )


def test_a_merged_part_that_is_too_short_is_none():
    assert parse_part(part_name("j", 1, 0, 100), 99) is None


def test_other_names_are_no_parts():
    names = ("j", "j.part-1-2", ".part-000001-000000000000000")
    assert [parse_part(name, 1) for name in names] == [None, None, None]


def test_parts_follow_each_other():
    parts = [part(1, 3, 5), part(1, 0, 3), part(1, 5, 9)]
    assert [each.start for each in chain(parts)] == [0, 3, 5]


def test_a_gap_ends_a_file():
    assert [each.start for each in chain([part(1, 0, 3), part(1, 4, 5)])] == [0]


def test_without_a_beginning_there_is_no_file():
    assert chain([part(1, 3, 5)]) == []


def test_what_was_merged_counts_before_what_it_was_merged_from():
    merged = part(1, 0, 5, merged=True)
    assert chain([part(1, 0, 3), part(1, 3, 5), merged, part(1, 5, 6)]) == [merged, part(1, 5, 6)]


def test_what_comes_late_at_a_merged_place_does_not_count():
    merged = part(1, 0, 5, merged=True)
    assert chain([part(1, 0, 900), merged]) == [merged]


def test_the_longer_of_two_merged_parts_counts():
    longer = part(1, 0, 9, merged=True)
    assert chain([part(1, 0, 5, merged=True), longer]) == [longer]


def test_only_the_newest_generation_counts():
    assert chain([part(1, 0, 9), part(2, 0, 3), part(1, 9, 12)]) == [part(2, 0, 3)]


def test_a_generation_without_a_beginning_does_not_hide_the_one_before():
    assert chain([part(1, 0, 9), part(2, 3, 6)]) == [part(1, 0, 9)]


def test_the_newest_generation_is_known_by_any_part():
    assert (newest([]), newest([part(1, 0, 9), part(4, 3, 6)])) == (0, 4)
