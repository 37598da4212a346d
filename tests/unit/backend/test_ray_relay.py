"""Files that only another process sees: asked for over a connection, as a store and a dataset."""

from __future__ import annotations

import threading
from multiprocessing.connection import Listener

import pytest

from cerebro.backend.base import Setup
from cerebro.backend.ray.places import Place, places_of, redirected
from cerebro.backend.ray.relay import RayRelay
from cerebro.data import from_arrays, open_dataset
from cerebro.data.cache import ShardCache
from cerebro.errors import StoreError, UsageError
from cerebro.storage import open_store
from cerebro.storage.checkpoint import load, save
from cerebro.storage.remote_relay import PIECE_BYTES, connect, new_address, serve


@pytest.fixture
def relay(tmp_path):
    """A driver's dataset and store, which this process reaches by `relay://` URLs."""
    from_arrays(tmp_path / "data", {"x": [[1.0, 2.0]] * 10}, shards=2, validation=0.2)
    source = RayRelay({"data": str(tmp_path / "data"), "store": str(tmp_path / "run")})
    key, address = b"k" * 32, new_address()
    with Listener(address, family="AF_UNIX", authkey=key) as listener:

        def answer():
            with listener.accept() as connection:
                serve(connection, source)

        thread = threading.Thread(target=answer)
        thread.start()
        channel = connect(address, key)
        yield tmp_path
        channel.close()
        thread.join()


def test_a_dataset_is_read_as_from_a_url(relay, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(relay))
    monkeypatch.setattr("tempfile.tempdir", str(relay))
    far, near = open_dataset("relay://data"), open_dataset(relay / "data")
    assert far.digest == near.digest
    assert far.is_remote
    shards = [data.open_shard("train", 1).columns["x"].tolist() for data in (far, near)]
    assert shards[0] == shards[1]


def test_a_damaged_shard_is_found_out_on_the_way(relay):
    (path,) = (relay / "data").glob("val-*.arrow")
    path.write_bytes(b"\0" * path.stat().st_size)
    info = open_dataset("relay://data").shards("val")[0]
    cache = ShardCache("relay://data", root=str(relay / "copies"))
    with pytest.raises(Exception, match="its SHA-256 must be"):
        cache.path(info)


def test_a_checkpoint_is_written_and_read_through_it(relay):
    far = open_store("relay://store")
    state = bytes(range(256)) * 100
    ref = save(far, 3, visits=2, attempt=0, data=state, meta={"steps": 7}, parent=None)
    for store in (far, open_store(relay / "run")):
        found = load(store, ref, into=bytearray)
        assert bytes(found.data) == state
        assert found.meta == {"steps": 7}


def test_large_files_come_in_pieces(relay):
    content = bytes(PIECE_BYTES) + b"end"
    far = open_store("relay://store")
    far.write("large", content)
    assert open_store(relay / "run").size("large") == len(content)
    assert far.read("large") == content
    assert far.read_from("large", PIECE_BYTES - 1, 3) == b"\0en"


def test_what_is_not_there_is_missing_and_what_leads_outside_is_refused(relay):
    far = open_store("relay://store")
    assert not far.exists("nothing")
    assert far.list("nothing") == []
    with pytest.raises(StoreError, match="there is no such file"):
        far.read("nothing")
    (relay / "secret").write_text("x")
    with pytest.raises(UsageError):
        far.read("../secret")


def test_a_place_is_seen_where_it_holds_what_the_driver_wrote(relay):
    setup = Setup(task="t:T", data=str(relay / "data"), store=str(relay / "run"))
    places = places_of(setup, ".probe-1", b"token")
    assert places["data"].is_seen()
    assert not places["store"].is_seen()
    open_store(relay / "run").write(".probe-1", b"other")
    assert not places["store"].is_seen()
    open_store(relay / "run").write(".probe-1", b"token")
    assert places["store"].is_seen()
    assert not Place("/nowhere", "file", "0").is_seen()


def test_only_what_is_not_seen_is_asked_for_elsewhere():
    setup = Setup(task="t:T", data="/data", store="/run")
    assert redirected(setup, frozenset({"store"})) == Setup(
        task="t:T", data="/data", store="relay://store"
    )


def test_an_opening_that_cannot_be_relayed_says_what_to_do():
    with pytest.raises(UsageError, match="a directory that all machines share"):
        redirected(object(), frozenset({"store"}))
