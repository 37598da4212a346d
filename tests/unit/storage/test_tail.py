from __future__ import annotations

import pytest

from cerebro.storage import DirectoryStore
from cerebro.storage.journal import encode
from cerebro.storage.tail import Tail
from cerebro.types import Json


@pytest.fixture
def store(tmp_path):
    return DirectoryStore(tmp_path)


@pytest.fixture
def journal(tmp_path):
    """A function that adds bytes to the journal."""

    def append(data):
        with open(tmp_path / "journal.jsonl", "ab") as file:
            file.write(data)

    return append


ONE: dict[str, Json] = {"type": "visit", "trial": 0}
TWO: dict[str, Json] = {"type": "visit", "trial": 1}
THREE: dict[str, Json] = {"type": "visit", "trial": 2}


def test_what_was_there_before_is_not_told(store, journal):
    journal(encode(ONE))
    tail = Tail(store)
    assert tail.records() == []
    journal(encode(TWO) + encode(THREE))
    assert tail.records() == [TWO, THREE]
    assert tail.records() == []


def test_a_journal_may_begin_later(store, journal):
    tail = Tail(store)
    assert tail.records() == []
    journal(encode(ONE))
    assert tail.records() == [ONE]


@pytest.mark.parametrize("cut", range(1, len(encode(TWO))))
def test_a_record_that_is_being_written_comes_when_it_is_whole(store, journal, cut):
    tail = Tail(store)
    journal(encode(ONE) + encode(TWO)[:cut])
    assert tail.records() == [ONE]
    journal(encode(TWO)[cut:])
    assert tail.records() == [TWO]


@pytest.mark.parametrize("cut", range(1, len(encode(ONE))))
def test_one_whose_beginning_was_there_before_is_not_told(store, journal, cut):
    journal(encode(ONE)[:cut])
    tail = Tail(store)
    journal(encode(ONE)[cut:] + encode(TWO))
    assert tail.records() == [TWO]


def test_a_journal_that_was_cut_is_read_anew(store, journal):
    journal(encode(ONE) + encode(TWO)[:-3])
    tail = Tail(store)
    store.truncate("journal.jsonl", len(encode(ONE)))
    assert tail.records() == [ONE]
    journal(encode(THREE))
    assert tail.records() == [THREE]
