"""What every store must do. Subclass ``StoreContract``, give it a ``store`` fixture, run pytest."""

from __future__ import annotations

import unittest
from collections.abc import Iterator

from cerebro.errors import StoreError, UsageError
from cerebro.storage.opening import open_store
from cerebro.storage.store import Store, is_temp

#: Names that must never reach the storage: each could lead outside it, or mean two things.
HOSTILE_PATHS = (
    "",
    ".",
    "..",
    "../x",
    "a/../x",
    "a/../../x",
    "/etc/passwd",
    "//host/share",
    "a//b",
    "a/",
    "./a",
    "~/x",
    "%2e%2e/x",
    "%252e%252e/x",
    "a%00b",
    "a\0b",
    "a\nb",
    "a#b",
    "a;b",
    "a?b",
    "..\\x",
    "C:\\x",
    "\\\\host\\share",
    "C:x",
    "-rf",
    "a b",
    "\u2025/x",
    "\uff0e\uff0e/x",
    "\u0661",
    "a" * 101,
    "a" * 300,
)

raises = unittest.TestCase().assertRaises


class StoreContract:
    """Tests of a store; each gets an empty one from the ``store`` fixture of the subclass.

    >>> class TestMyStore(StoreContract):
    ...     ...  # and a pytest fixture named store
    """

    def test_what_was_written_is_read(self, store: Store) -> None:
        store.write("a", b"hopper")
        assert store.read("a") == b"hopper"

    def test_directories_are_made_when_needed(self, store: Store) -> None:
        store.write("trials/t0000/params.json", b"{}")
        assert store.read("trials/t0000/params.json") == b"{}"

    def test_pieces_are_written_one_after_another(self, store: Store) -> None:
        store.write("a", [b"one", bytearray(b"two"), b"", memoryview(b"three")])
        assert store.read("a") == b"onetwothree"

    def test_an_empty_file_can_be_written(self, store: Store) -> None:
        store.write("a", b"")
        assert store.size("a") == 0

    def test_writing_again_replaces_all_bytes(self, store: Store) -> None:
        store.write("a", b"a long text")
        store.write("a", b"short")
        assert store.read("a") == b"short"

    def test_writing_leaves_no_other_file(self, store: Store) -> None:
        store.write("a", b"1")
        assert store.list() == ["a"]

    def test_many_files_are_written_together(self, store: Store) -> None:
        store.write_many({"x/a": b"1", "y/b": [b"2", b"3"]})
        assert (store.read("x/a"), store.read("y/b")) == (b"1", b"23")

    def test_a_bad_name_among_many_writes_none(self, store: Store) -> None:
        with raises(UsageError):
            store.write_many({"a": b"1", "../b": b"2"})
        assert store.list() == []

    def test_read_into_fills_the_buffer(self, store: Store) -> None:
        store.write("a", b"hopper")
        buffer = bytearray(6)
        assert store.read_into("a", buffer) == 6
        assert buffer == b"hopper"

    def test_read_into_stops_at_the_end_of_the_file(self, store: Store) -> None:
        store.write("a", b"hop")
        assert store.read_into("a", bytearray(6)) == 3

    def test_reading_what_is_not_there_is_a_store_error(self, store: Store) -> None:
        with raises(StoreError):
            store.read("a")

    def test_appending_makes_the_file(self, store: Store) -> None:
        store.append("logs/a", b"one")
        assert store.read("logs/a") == b"one"

    def test_appending_adds_at_the_end(self, store: Store) -> None:
        store.write("a", b"one")
        store.append("a", b"two")
        store.append("a", b"three")
        assert store.read("a") == b"onetwothree"

    def test_appending_goes_to_the_new_file_after_a_write(self, store: Store) -> None:
        store.append("a", b"old")
        store.write("a", b"new")
        store.append("a", b"er")
        assert store.read("a") == b"newer"

    def test_appending_goes_to_a_new_file_after_a_removal(self, store: Store) -> None:
        store.append("a", b"old")
        store.remove("a")
        store.append("a", b"new")
        assert store.read("a") == b"new"

    def test_appending_continues_where_a_file_was_truncated(self, store: Store) -> None:
        store.append("a", b"one")
        store.truncate("a", 1)
        store.append("a", b"ff")
        assert store.read("a") == b"off"

    def test_closing_keeps_the_store_usable(self, store: Store) -> None:
        store.append("a", b"one")
        store.close()
        store.append("a", b"two")
        assert store.read("a") == b"onetwo"

    def test_many_appends_are_one_file(self, store: Store) -> None:
        lines = [b"%d\n" % number for number in range(150)]
        for line in lines:
            store.append("logs/a", line)
        assert store.read("logs/a") == b"".join(lines)
        assert (store.list("logs"), store.size("logs/a")) == (["a"], len(b"".join(lines)))

    def test_an_appended_file_is_the_same_once_the_store_is_closed(self, store: Store) -> None:
        for piece in (b"one", b"two", b"three"):
            store.append("a", piece)
        store.close()
        assert (open_store(store.url).read("a"), store.list()) == (b"onetwothree", ["a"])

    def test_another_store_of_the_same_place_appends_at_the_end(self, store: Store) -> None:
        store.append("a", b"one")
        store.close()
        other = open_store(store.url)
        other.append("a", b"two")
        other.close()
        assert store.read("a") == b"onetwo"

    def test_an_appended_file_can_be_cut_anywhere(self, store: Store) -> None:
        for size in (0, 2, 3, 5):
            for piece in (b"one", b"two"):
                store.append(f"a{size}", piece)
            store.truncate(f"a{size}", size)
            assert store.read(f"a{size}") == b"onetwo"[:size]

    def test_an_appended_file_can_be_replaced(self, store: Store) -> None:
        store.append("a", b"one")
        store.append("a", b"two")
        store.write("a", b"new")
        assert (store.read("a"), store.size("a"), store.list()) == (b"new", 3, ["a"])

    def test_an_appended_file_can_be_removed(self, store: Store) -> None:
        store.append("a", b"one")
        store.append("a", b"two")
        store.remove("a")
        assert (store.exists("a"), store.list()) == (False, [])

    def test_appending_nothing_makes_an_empty_file(self, store: Store) -> None:
        store.append("a", b"")
        store.append("a", b"one")
        assert (store.list(), store.read("a")) == (["a"], b"one")

    def test_read_from_gives_the_rest(self, store: Store) -> None:
        store.write("a", b"hopper")
        store.append("b", b"hop")
        store.append("b", b"per")
        assert [store.read_from(name, 3) for name in "ab"] == [b"per", b"per"]
        assert [store.read_from(name, 9) for name in "ab"] == [b"", b""]

    def test_a_stream_is_written_as_one_file(self, store: Store) -> None:
        store.write_stream("a", (piece for piece in (b"one", b"two")))
        assert store.read("a") == b"onetwo"

    def test_a_stream_that_fails_writes_nothing(self, store: Store) -> None:
        def pieces() -> Iterator[bytes]:
            yield b"x" * 1000
            raise KeyError("made on purpose")

        store.write("a", b"old")
        with raises(KeyError):
            store.write_stream("a", pieces())
        assert (store.read("a"), store.list()) == (b"old", ["a"])

    def test_a_large_file_comes_back_whole(self, store: Store) -> None:
        pieces = [bytes([number]) * (3 << 20) for number in range(6)]
        store.write("a", pieces)
        buffer = bytearray(18 << 20)
        assert store.read_into("a", buffer) == len(buffer)
        assert buffer == b"".join(pieces)

    def test_a_copy_has_the_same_bytes_and_stays(self, store: Store) -> None:
        store.write("a", b"one")
        store.copy("a", "d/b")
        store.write("a", b"two")
        assert (store.read("a"), store.read("d/b")) == (b"two", b"one")

    def test_exists_tells_what_is_there(self, store: Store) -> None:
        store.write("d/a", b"")
        assert [store.exists(path) for path in ("d", "d/a", "d/b", "d/a/x")] == [
            True,
            True,
            False,
            False,
        ]

    def test_size_counts_bytes(self, store: Store) -> None:
        store.write("a", b"12345")
        assert store.size("a") == 5

    def test_list_is_sorted(self, store: Store) -> None:
        store.write_many({"d/b": b"", "d/a": b"", "d/c/x": b""})
        assert store.list("d") == ["a", "b", "c"]

    def test_a_missing_directory_lists_as_empty(self, store: Store) -> None:
        assert store.list("nowhere") == []

    def test_a_removed_file_is_gone(self, store: Store) -> None:
        store.write("a", b"1")
        store.remove("a")
        assert not store.exists("a")

    def test_removing_what_is_not_there_does_nothing(self, store: Store) -> None:
        store.remove("nowhere/a")
        assert store.list() == []

    def test_a_child_holds_the_files_of_a_directory(self, store: Store) -> None:
        store.child("digits").write("run.json", b"{}")
        assert store.read("digits/run.json") == b"{}"

    def test_the_url_opens_the_same_store(self, store: Store) -> None:
        store.write("a", b"1")
        assert open_store(store.url).read("a") == b"1"

    def test_hostile_paths_are_refused_everywhere(self, store: Store) -> None:
        for path in HOSTILE_PATHS:
            self._check_refused(store, path)
        assert store.list() == []

    def test_a_name_of_100_characters_can_be_written(self, store: Store) -> None:
        store.write("a" * 100, b"1")
        assert store.list() == ["a" * 100]

    def test_no_name_of_a_user_is_a_temporary_one(self, store: Store) -> None:
        store.write("a.tmp-1-1-b", b"1")
        assert not any(map(is_temp, store.list()))

    def _check_refused(self, store: Store, path: str) -> None:
        for operate in (
            store.read,
            store.exists,
            store.size,
            store.remove,
            store.child,
            lambda path: store.write(path, b"x"),
            lambda path: store.write_many({path: b"x"}),
            lambda path: store.append(path, b"x"),
            lambda path: store.truncate(path, 0),
            lambda path: store.read_into(path, bytearray(1)),
            *((store.list, store.where) if path else ()),
        ):
            with raises(UsageError, msg=path):
                operate(path)
