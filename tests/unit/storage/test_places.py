from __future__ import annotations

import os
import pickle

import pytest

from cerebro.errors import UsageError
from cerebro.storage import DirectoryStore, HDFSStore, LocalStore, PrefixStore
from cerebro.storage.remote_store import RemoteStore


def test_a_local_store_names_everything_below_its_prefix(tmp_path):
    store = LocalStore(prefix_path=str(tmp_path))
    assert [
        store.get_train_data_path(),
        store.get_val_data_path(),
        store.get_runs_path(),
        store.get_run_path("search"),
        store.get_logs_path("search"),
    ] == [
        f"file://{tmp_path}/{name}"
        for name in ("train_data", "val_data", "runs", "runs/search", "logs/search")
    ]


def test_each_place_can_be_named_by_itself(tmp_path):
    store = LocalStore(tmp_path, "/d/train", "/d/val", "/d/runs", logs_path="/d/logs")
    assert [store.train_path, store.val_path, store.runs_path, store.logs_path] == [
        f"file:///d/{name}" for name in ("train", "val", "runs", "logs")
    ]


def test_a_relative_prefix_is_fixed_when_the_store_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = LocalStore("experiments")
    monkeypatch.chdir("/")
    assert store.prefix_path == f"file://{tmp_path}/experiments"


def test_another_dataset_has_a_number(tmp_path):
    assert LocalStore("/a").get_train_data_path(2) == "file:///a/train_data.2"


def test_checkpoints_are_found_by_run_and_trial():
    path = LocalStore("/a").get_checkpoint_path("search/t0007")
    assert path == "file:///a/runs/search/trials/t0007/checkpoints"


def test_checkpoints_of_no_trial_are_refused():
    with pytest.raises(UsageError, match="give <run>/<trial>"):
        LocalStore("/a").get_checkpoint_path("search")


@pytest.mark.parametrize("name", ["", "..", "a/../b", "/a"])
def test_a_run_outside_of_the_store_is_refused(name):
    with pytest.raises(UsageError, match="must stay inside"):
        LocalStore("/a").get_run_path(name)


@pytest.mark.parametrize(
    ("arguments", "prefix"),
    [
        (("hdfs://namenode:9000/user/ada",), "hdfs://namenode:9000/user/ada"),
        (("hdfs:///user/ada",), "hdfs:///user/ada"),
        (("/user/ada",), "hdfs:///user/ada"),
        (("/user/ada/", None, None, None, None, "namenode"), "hdfs://namenode:8020/user/ada"),
        (("/user/ada", None, None, None, None, "nn", 9000, "ada"), "hdfs://ada@nn:9000/user/ada"),
        (("hdfs:///user/ada", None, None, None, None, "nn", 9000), "hdfs://nn:9000/user/ada"),
    ],
    ids=["whole", "default-host", "path", "host", "host-port-user", "url-and-host"],
)
def test_an_hdfs_store_takes_all_documented_forms(arguments, prefix):
    assert HDFSStore(*arguments).prefix_path == prefix


def test_an_hdfs_store_without_a_prefix_has_one_beside_its_train_data():
    store = HDFSStore(train_path="/data/train", val_path="/data/val", host="nn")
    assert store.prefix_path == "hdfs://nn:8020/data"
    assert store.get_runs_path() == "hdfs://nn:8020/data/runs"
    assert store.get_val_data_path() == "hdfs://nn:8020/data/val"


def test_a_store_needs_some_place():
    with pytest.raises(UsageError, match="needs prefix_path"):
        HDFSStore()


def test_a_directory_at_the_top_cannot_hold_runs():
    with pytest.raises(UsageError, match="give prefix_path as well"):
        LocalStore(train_path="/train")


@pytest.mark.parametrize("path", ["s3://bucket/x", "file:///x", "x/y"])
def test_an_hdfs_store_refuses_other_places(path):
    with pytest.raises(UsageError, match="must have hdfs://host:port/path"):
        HDFSStore(path)


def test_a_local_store_refuses_urls_and_names_the_right_class():
    with pytest.raises(UsageError, match="use HDFSStore for it"):
        LocalStore("hdfs://namenode/x")


@pytest.mark.parametrize(
    ("dropped", "instead"),
    [
        ({"kerb_ticket": "/tmp/ticket"}, "KRB5CCNAME"),
        ({"extra_conf": {"dfs.replication": "1"}}, "HADOOP_CONF_DIR"),
        ({"driver": "libhdfs3"}, "hdfs-native"),
        ({"temp_dir": "/tmp/x"}, "leave it out"),
    ],
    ids=["kerb_ticket", "extra_conf", "driver", "temp_dir"],
)
def test_arguments_that_are_gone_say_what_to_use(dropped, instead):
    with pytest.raises(UsageError, match=f"{next(iter(dropped))} .*{instead}"):
        HDFSStore("/x", **dropped)


def test_a_port_needs_a_host():
    with pytest.raises(UsageError, match="a port belongs to a host"):
        HDFSStore("/x", port=9000)


def test_a_password_is_refused_and_not_repeated():
    with pytest.raises(UsageError) as caught:
        HDFSStore("hdfs://ada:SECRET@namenode/x")
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "kind"),
    [("hdfs://nn/x", HDFSStore), ("/x", LocalStore), ("x", LocalStore), ("s3://b/x", PrefixStore)],
)
def test_a_store_is_made_for_any_url(url, kind):
    assert type(PrefixStore.create(url)) is kind


@pytest.mark.parametrize(
    "store",
    [LocalStore("/a"), HDFSStore("/a", host="nn"), PrefixStore("s3://b/a")],
    ids=["local", "hdfs", "s3"],
)
def test_stores_travel_and_stay_equal(store):
    again = pickle.loads(pickle.dumps(store))
    assert again == store
    assert len({again, store}) == 1


def test_stores_of_other_places_differ():
    assert LocalStore("/a") != LocalStore("/b")


def test_files_can_be_looked_for_and_read(tmp_path):
    store = LocalStore(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a").write_bytes(b"1")
    path = store.get_run_path("a")
    assert (store.exists(path), store.read(path)) == (True, b"1")
    assert not store.exists(store.get_run_path("b"))


def test_a_local_store_opens_the_files_of_its_directory(tmp_path):
    opened = LocalStore(tmp_path / "a b").open_runs()
    assert isinstance(opened, DirectoryStore)
    assert opened.root == os.fspath(tmp_path / "a b" / "runs")


def test_another_store_opens_the_files_at_its_url():
    opened = PrefixStore("memory://places").open()
    assert isinstance(opened, RemoteStore)
    assert opened.url == "memory://places"
