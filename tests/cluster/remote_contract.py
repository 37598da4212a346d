"""What stores at URLs promise beyond the store contract; a class for each kind of server."""

from __future__ import annotations

import threading
from typing import ClassVar

import pytest

from cerebro.errors import LeaseLostError
from cerebro.storage import open_store
from cerebro.storage.remote_store import RemoteStore
from cerebro.testing.store_contract import StoreContract


class RemoteContract(StoreContract):
    """For a fixture `url`: a place of the test's own."""

    @pytest.fixture
    def store(self, url):
        store = open_store(url)
        yield store
        store.close()

    def test_of_many_who_create_a_file_one_succeeds(self, url):
        together, made = threading.Barrier(8), []

        def contend(number):
            store = RemoteStore(url)
            together.wait()
            if store.create("a", b"%d" % number):
                made.append(number)

        threads = [threading.Thread(target=contend, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == 1
        assert open_store(url).list() == ["a"]
        assert open_store(url).read("a") == b"%d" % made[0]

    def test_of_two_who_append_at_the_same_place_one_is_told(self, url):
        first, second = open_store(url), open_store(url)
        first.append("a", b"one")
        second.append("a", b"two")
        with pytest.raises(LeaseLostError):
            first.append("a", b"three")
        assert open_store(url).read("a") == b"onetwo"


class BucketContract(RemoteContract):
    """For servers to which a large file goes in several requests."""

    #: Of 7 MiB each, in the largest file.
    pieces: ClassVar[int]

    def test_a_file_of_many_blocks_is_written_whole_or_not_at_all(self, url):
        store = open_store(url)
        pieces = [bytes([number]) * (7 << 20) for number in range(self.pieces)]
        store.write("a", pieces)
        assert store.read("a") == b"".join(pieces)

        def broken():
            yield from pieces
            raise KeyError("made on purpose")

        with pytest.raises(KeyError):
            store.write_stream("a", broken())
        assert store.size("a") == sum(map(len, pieces))
        with pytest.raises(KeyError):
            store.write_stream("b", broken())
        assert store.list() == ["a"]
