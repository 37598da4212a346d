from __future__ import annotations

import contextlib
import errno
import itertools
import pickle
import sys
import threading

import pytest

from cerebro.errors import LeaseLostError, MissingDependencyError, StoreError, UsageError
from cerebro.storage import open_store
from cerebro.storage.growing import MANY
from cerebro.storage.journal import Journal
from cerebro.storage.remote_objects import open_objects
from cerebro.storage.remote_retry import Retry
from cerebro.storage.remote_store import RemoteStore
from cerebro.testing import bucket
from cerebro.testing.faults import CountOnly, Fail, FaultyObjects

NO_RETRY = Retry(attempts=1)
QUICK = Retry(attempts=3, sleep=lambda seconds: None)


@pytest.fixture
def url(tmp_path):
    bucket.register()
    return f"bucket://{tmp_path}/runs"


@pytest.fixture
def place(tmp_path):
    """The objects as they are."""
    return tmp_path / "runs"


def counted(url, rule=None, retry=NO_RETRY):
    objects = FaultyObjects(open_objects(url)[0], rule or CountOnly())
    return RemoteStore(url, objects, retry=retry), objects


def names(place):
    return sorted(path.name for path in place.iterdir())


def test_making_a_store_touches_nothing(url, place):
    store = open_store(url)
    assert (store.list(), store.exists("a")) == ([], False)
    assert not place.exists()


def test_writing_a_checkpoint_is_two_requests_and_one_look(url):
    store, objects = counted(url)
    store.write_many({"d/a.safetensors": b"1", "d/a.json": b"2"})
    store.write_many({"d/b.safetensors": b"1", "d/b.json": b"2"})
    assert objects.operations == ["put", "list", "put", "put", "put"]


def test_an_append_is_one_request(url):
    store, objects = counted(url)
    store.append("a", b"1")
    objects.operations.clear()
    store.append("a", b"2")
    assert objects.operations == ["create"]


def test_appended_bytes_lie_in_parts_until_there_are_many(url, place):
    store = open_store(url)
    for number in range(MANY - 1):
        store.append("a", b"%d" % (number % 10))
    assert len(names(place)) == MANY - 1
    store.append("a", b"x")
    assert len(names(place)) == 1


def test_the_number_of_parts_stays_small_however_much_is_appended(url, place):
    store = open_store(url)
    for number in range(20 * MANY):
        store.append("a", b"%d" % (number % 10))
        assert len(names(place)) <= 2 * MANY
    assert store.size("a") == 20 * MANY


def test_closing_makes_one_object_of_a_file(url, place):
    store = open_store(url)
    for piece in (b"one", b"two", b"three"):
        store.append("a", piece)
    store.close()
    assert len(names(place)) == 1
    assert store.read("a") == b"onetwothree"


def test_of_two_who_append_at_the_same_place_one_is_told(url):
    first, second = open_store(url), open_store(url)
    first.append("a", b"one")
    second.append("a", b"two")
    with pytest.raises(LeaseLostError, match="somebody else has added to a"):
        first.append("a", b"three")
    assert open_store(url).read("a") == b"onetwo"


def test_of_many_who_append_at_once_one_succeeds_at_each_place(url):
    """Without a lease each would go on for itself; the file has what one of them wrote."""
    start, results = threading.Barrier(8), []

    def work(number):
        store = open_store(url)
        start.wait()
        try:
            store.append("a", b"%d" % number)
            results.append(number)
        except LeaseLostError:
            pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    content = open_store(url).read("a")
    assert sorted(content) == sorted(b"".join(b"%d" % number for number in results))
    assert results


def test_a_journal_that_somebody_else_continued_is_left_alone(url):
    first = Journal.open(open_store(url))
    first.append([{"n": 0}])
    second = Journal.open(open_store(url))
    second.append([{"n": 1}])
    with pytest.raises(LeaseLostError):
        first.append([{"n": 2}])
    assert Journal.open(open_store(url)).records == [{"n": 0}, {"n": 1}]


def test_a_reader_sees_a_whole_file_while_parts_are_merged(url):
    writer, reader = open_store(url), open_store(url)
    lines = [b"%d\n" % number for number in range(6 * MANY)]
    whole = b"".join(lines)
    wrong: list[bytes] = []
    is_done = threading.Event()

    def watch():
        while not is_done.is_set():
            if reader.exists("a"):
                seen = reader.read("a")
                if not whole.startswith(seen):
                    wrong.append(seen)

    thread = threading.Thread(target=watch)
    thread.start()
    for line in lines:
        writer.append("a", line)
    writer.close()
    is_done.set()
    thread.join()
    assert wrong == []
    assert reader.read("a") == whole


READS = {
    "read": lambda store: store.read("a"),
    "read_from": lambda store: store.read_from("a", 0),
    "read_into": lambda store: store.read_into("a", bytearray(6)),
    "exists": lambda store: store.exists("a"),
    "size": lambda store: store.size("a"),
}
EXPECTED = {"read": b"onetwo", "read_from": b"onetwo", "read_into": 6, "exists": True, "size": 6}


@pytest.mark.parametrize("to", ["object", "parts"])
@pytest.mark.parametrize("read", READS)
def test_a_file_is_found_while_it_turns_into_an_object_or_into_parts(url, place, read, to):
    """Whoever looks for the one after that is gone finds the other."""

    class Turning(FaultyObjects):
        def look(self, path):
            return self._turn(super().look, path)

        def get(self, path, start=0, end=None):
            return self._turn(super().get, path, start, end)

        def _turn(self, operate, *args):
            try:
                return operate(*args)
            finally:
                if len(self.operations) == 1:
                    turn()

    def turn():
        store = open_store(url)
        if to == "object":
            store.write("a", b"onetwo")
        else:
            # Nothing is added, and the object is in parts all the same.
            with contextlib.suppress(StoreError):
                failing, _ = counted(url, Fail(5, errno.EIO))
                failing.append("a", b"three")

    store = open_store(url)
    store.append("a", b"one")
    store.append("a", b"two")
    if to == "parts":
        store.write("a", b"onetwo")
    reader = RemoteStore(url, Turning(open_objects(url)[0], CountOnly()), retry=NO_RETRY)
    assert READS[read](reader) == EXPECTED[read]
    assert ("a" in names(place)) == (to == "object")


CHANGES = {
    "write": (lambda store: store.write("a", b"new"), b"new"),
    "truncate": (lambda store: store.truncate("a", 4), b"onet"),
    "remove": (lambda store: store.remove("a"), None),
    "append": (lambda store: store.append("a", b"!"), b"onetwothree!"),
    "merge": (lambda store: store.close(), b"onetwothree"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_fails_anywhere_leaves_the_old_or_the_new(url, change):
    """A file in parts is replaced, cut, removed or merged in one step, whatever goes wrong."""
    act, new = CHANGES[change]
    for number in itertools.count(1):
        open_store(url).remove("a")
        store, objects = counted(url)
        for piece in (b"one", b"two", b"three"):
            store.append("a", piece)
        objects.rule = Fail(len(objects.operations) + number, errno.EIO)
        with contextlib.suppress(StoreError):
            act(store)
        found = open_store(url)
        content = found.read("a") if found.exists("a") else None
        assert content in (b"onetwothree", new)
        if not objects.has_fired:
            break
        found.append("a", b"+")
        assert found.read("a") == (content or b"") + b"+"
    assert number > 1


def test_a_request_that_fails_in_passing_is_made_again(url):
    store, objects = counted(url, Fail(1, errno.ECONNRESET), retry=QUICK)
    store.write("a", b"1")
    assert store.read("a") == b"1"
    assert objects.operations[:2] == ["put", "put"]


def test_an_append_whose_answer_was_lost_is_not_made_twice(url):
    class Lossy(FaultyObjects):
        def create(self, path, data):
            super().create(path, data)
            if self.operations.count("create") == 2:
                raise ConnectionResetError("made on purpose")

    objects = Lossy(open_objects(url)[0], CountOnly())
    store = RemoteStore(url, objects, retry=QUICK)
    for piece in (b"one", b"two", b"three"):
        store.append("a", piece)
    assert store.read("a") == b"onetwothree"


def test_what_stays_away_is_a_store_error_that_says_what_to_do(url):
    store, _ = counted(url, Fail(1, errno.EIO, always=True), retry=QUICK)
    with pytest.raises(StoreError, match=r"cannot read bucket://.*/runs/a: .*Check that") as caught:
        store.read("a")
    assert caught.value.errno == errno.EIO


def test_a_missing_file_has_the_number_of_the_system(url):
    for operate in (open_store(url).read, open_store(url).size):
        with pytest.raises(StoreError) as caught:
            operate("nope")
        assert caught.value.errno == errno.ENOENT


def test_a_guard_is_asked_before_every_change(url):
    store = open_store(url)
    store.write("a", b"1")

    def refuse():
        raise LeaseLostError("somebody else's")

    store.guard = refuse
    for change in (
        lambda: store.write("a", b"2"),
        lambda: store.write_stream("a", [b"2"]),
        lambda: store.append("a", b"2"),
        lambda: store.truncate("a", 0),
        lambda: store.remove("a"),
        lambda: store.copy("a", "b"),
        lambda: store.child("d").write("a", b"2"),
    ):
        with pytest.raises(LeaseLostError):
            change()
    assert (store.read("a"), store.list()) == (b"1", ["a"])


@pytest.mark.parametrize(
    "url",
    [
        "s3://KEY:SECRET@bucket/runs",
        "s3://SECRET@bucket/runs",
        "s3://bucket/runs?token=SECRET",
        "s3://bucket/runs#SECRET",
        "hdfs://user:SECRET@host/runs",
        "memory://user:SECRET@host/runs",
    ],
)
def test_a_url_that_may_hold_credentials_is_refused_without_repeating_them(url):
    with pytest.raises(UsageError, match="must hold no credentials") as caught:
        open_store(url)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("url", ["https://host/runs", "zip://a.zip", "simplecache::s3://b/a"])
def test_what_cannot_be_written_is_refused(url):
    with pytest.raises(UsageError, match="can be written"):
        open_store(url)


def test_an_unknown_protocol_is_refused():
    with pytest.raises(UsageError, match="unknown protocol 's33'"):
        open_store("s33://bucket/runs")


def test_a_client_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(MissingDependencyError, match="pip install hdfs-native"):
        open_store("hdfs://no-such-host:1/runs")


def test_a_store_travels(url):
    store = open_store(url)
    store.guard = lambda: None
    store.write("a", b"1")
    again = pickle.loads(pickle.dumps(store))
    assert (again.read("a"), again.guard) == (b"1", None)


def test_a_copy_of_everything_has_its_parts_too(url):
    store, target = open_store(url), open_store(f"{url}.1")
    store.write("trials/t0000/params.json", b"{}")
    store.append("journal.jsonl", b"one")
    store.append("journal.jsonl", b"two")
    store.copy_to(target, lambda name: False)
    assert target.read("trials/t0000/params.json") == b"{}"
    assert target.read("journal.jsonl") == b"onetwo"
