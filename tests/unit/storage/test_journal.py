from __future__ import annotations

import errno
import tempfile
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.errors import DiskFullError, JournalCorruptError, LeaseLostError, StoreError
from cerebro.storage import DirectoryStore
from cerebro.storage.disk import Disk
from cerebro.storage.journal import Journal, encode, read
from cerebro.testing.faults import WRITES, CountOnly, Fail, FaultyDisk

PATH = "journal.jsonl"

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3)
    ),
    max_leaves=5,
)
records = st.dictionaries(st.text(), values, max_size=3)
some_records = st.lists(records, min_size=1, max_size=6)


@pytest.fixture
def store(tmp_path):
    store = DirectoryStore(tmp_path / "run")
    yield store
    store.close()


@pytest.fixture(scope="module")
def shared():
    """A store for the examples of a property; each writes the journal anew."""
    with tempfile.TemporaryDirectory() as directory:
        store = DirectoryStore(directory)
        yield store
        store.close()


def put(store, records):
    data = b"".join(map(encode, records))
    store.write(PATH, data)
    return data


def test_a_new_journal_is_empty(store):
    journal = Journal.open(store)
    assert (journal.records, journal.repaired) == ([], False)


def test_records_come_back_in_order(store):
    journal = Journal.open(store)
    journal.append([{"n": 0}, {"n": 1}])
    journal.append([{"n": 2}])
    assert Journal.open(store).records == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_a_reopened_journal_goes_on(store):
    Journal.open(store).append([{"n": 0}])
    Journal.open(store).append([{"n": 1}])
    assert read(store).records == [{"n": 0}, {"n": 1}]


def test_a_line_is_length_checksum_and_json(store):
    Journal.open(store).append([{"trial": 0}])
    assert store.read(PATH) == b'11 ed67c086 {"trial":0}\n'


def test_an_append_is_one_write_and_one_sync(tmp_path):
    disk = FaultyDisk(Disk(), CountOnly())
    journal = Journal.open(DirectoryStore(tmp_path, disk))
    journal.append([{"n": 0}])
    disk.operations.clear()
    journal.append([{"n": 1}, {"n": 2}])
    assert disk.operations == ["size", "append", "sync"]


def test_appending_nothing_does_nothing(tmp_path):
    disk = FaultyDisk(Disk(), CountOnly())
    journal = Journal.open(DirectoryStore(tmp_path, disk))
    disk.operations.clear()
    journal.append([])
    assert disk.operations == []


def test_a_record_that_is_not_json_changes_nothing(store):
    journal = Journal.open(store)
    with pytest.raises(TypeError):
        journal.append([{"n": 0}, {"n": object()}])
    journal.append([{"n": 1}])
    assert read(store).records == [{"n": 1}]


@settings(max_examples=50)
@given(some_records)
def test_any_records_come_back(shared, records):
    put(shared, [])
    Journal.open(shared).append(records)
    assert Journal.open(shared).records == records


@settings(max_examples=80)
@given(some_records, st.data())
def test_any_truncation_leaves_a_prefix_and_is_repaired(shared, records, data):
    size = len(put(shared, records))
    cut = data.draw(st.integers(0, size))
    shared.truncate(PATH, cut)
    journal = Journal.open(shared)
    kept = journal.records
    assert kept == records[: len(kept)]
    assert len(b"".join(map(encode, records[: len(kept) + 1]))) > cut or kept == records
    assert shared.size(PATH) == len(b"".join(map(encode, kept)))
    assert journal.repaired == (shared.size(PATH) != cut)
    journal.append([{"after": 1}])
    assert read(shared).records == [*kept, {"after": 1}]


@settings(max_examples=150)
@given(some_records, st.data())
def test_any_changed_byte_is_found(shared, records, data):
    good = put(shared, records)
    place = data.draw(st.integers(0, len(good) - 1))
    flip = data.draw(st.integers(1, 255))
    shared.write(PATH, good[:place] + bytes([good[place] ^ flip]) + good[place + 1 :])
    if place < len(b"".join(map(encode, records[:-1]))):
        with pytest.raises(JournalCorruptError):
            Journal.open(shared)
    else:
        journal = Journal.open(shared)
        assert (journal.records, journal.repaired) == (records[:-1], True)


@pytest.mark.parametrize("byte", [b"5", b" ", b"x", b"\0", b"}"])
def test_a_lost_newline_is_damage_before_the_tail(store, byte):
    good = put(store, [{"n": 0}, {"n": 1}])
    store.write(PATH, good.replace(b"\n", byte, 1))
    with pytest.raises(JournalCorruptError):
        Journal.open(store)


@pytest.mark.parametrize("rubbish", [b"\0" * 5000, b"\n\n\n", b"99 00000000 {}\n", b"9" * 100_000])
def test_rubbish_at_the_end_is_cut_off(store, rubbish):
    good = put(store, [{"n": 0}])
    store.write(PATH, good + rubbish)
    assert Journal.open(store).repaired
    assert store.read(PATH) == good


@pytest.mark.parametrize("text", [b"{", b"[]", b"1", b"[" * 100_000])
def test_a_good_checksum_of_something_else_is_cut_off(store, text):
    good = put(store, [{"n": 0}])
    store.append(PATH, b"%d %08x %b\n" % (len(text), zlib.crc32(text), text))
    assert Journal.open(store).records == [{"n": 0}]
    assert store.read(PATH) == good


def test_damage_is_reported_with_its_place_and_changes_nothing(store):
    good = put(store, [{"n": 0}, {"n": 1}, {"n": 2}])
    bad = good.replace(b'"n":1', b'"n":7')
    store.write(PATH, bad)
    with pytest.raises(JournalCorruptError, match=r"record 2 of .*journal.jsonl .*at byte 19"):
        Journal.open(store)
    assert store.read(PATH) == bad


def test_reading_does_not_repair(store):
    good = put(store, [{"n": 0}, {"n": 1}])
    store.write(PATH, good[:-3])
    assert read(store) == ([{"n": 0}], len(good) // 2, True)
    assert store.read(PATH) == good[:-3]


def test_reading_a_journal_that_is_not_there_is_a_store_error(store):
    with pytest.raises(StoreError, match="No such file"):
        read(store)


def test_a_second_writer_is_noticed(store):
    first = Journal.open(store)
    first.append([{"n": 0}])
    Journal.open(store).append([{"n": 1}])
    with pytest.raises(LeaseLostError, match="another driver"):
        first.append([{"n": 2}])
    assert read(store).records == [{"n": 0}, {"n": 1}]


def test_a_journal_that_is_gone_is_noticed(store):
    journal = Journal.open(store)
    store.remove(PATH)
    with pytest.raises(LeaseLostError, match="is gone"):
        journal.append([{"n": 0}])
    assert not store.exists(PATH)


def test_a_writer_that_lost_its_lease_never_writes_again(store):
    first = Journal.open(store)
    store.append(PATH, b"x")
    with pytest.raises(LeaseLostError):
        first.append([{"n": 0}])
    store.truncate(PATH, 0)
    with pytest.raises(StoreError, match="takes no records"):
        first.append([{"n": 0}])


@pytest.mark.parametrize("only", ["append", "sync"])
def test_a_failed_append_is_undone(tmp_path, only):
    good = DirectoryStore(tmp_path)
    Journal.open(good).append([{"n": 0}])
    disk = FaultyDisk(Disk(), Fail(1, errno.ENOSPC, always=True, only=frozenset({only})))
    journal = Journal.open(DirectoryStore(tmp_path, disk))
    with pytest.raises(DiskFullError, match="bytes are needed"):
        journal.append([{"n": 1}])
    assert Journal.open(good).records == [{"n": 0}]
    assert not Journal.open(good).repaired


def test_what_a_failed_append_left_is_repaired_on_opening(tmp_path):
    good = DirectoryStore(tmp_path)
    Journal.open(good).append([{"n": 0}])
    disk = FaultyDisk(Disk(), Fail(1, errno.EIO, always=True, only=WRITES - {"make_dir"}))
    journal = Journal.open(DirectoryStore(tmp_path, disk))
    with pytest.raises(StoreError):
        journal.append([{"n": 1}])
    journal = Journal.open(good)
    assert (journal.records, journal.repaired) == ([{"n": 0}], True)


def test_after_a_failed_append_none_is_taken(tmp_path):
    disk = FaultyDisk(Disk(), CountOnly())
    journal = Journal.open(DirectoryStore(tmp_path, disk))
    disk.rule = Fail(len(disk.operations) + 3, errno.EIO)
    with pytest.raises(StoreError, match="Input/output"):
        journal.append([{"n": 1}])
    with pytest.raises(StoreError, match="takes no records"):
        journal.append([{"n": 1}])


def test_a_size_that_cannot_be_read_is_no_lost_lease(tmp_path):
    disk = FaultyDisk(Disk(), CountOnly())
    journal = Journal.open(DirectoryStore(tmp_path, disk))
    disk.rule = Fail(len(disk.operations) + 1, errno.EIO)
    with pytest.raises(StoreError, match="Input/output") as caught:
        journal.append([{"n": 1}])
    assert not isinstance(caught.value, LeaseLostError)


def test_closing_lets_go_of_the_file(store):
    journal = Journal.open(store)
    journal.append([{"n": 0}])
    journal.close()
    journal.append([{"n": 1}])
    assert read(store).records == [{"n": 0}, {"n": 1}]
