"""Fetching the files of a data set: once, whole, and gone on with after a break."""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Iterator

import pytest

from cerebro.data.named import DATASETS, fetching, lookup
from cerebro.errors import DataError, StoreError, UsageError
from tests import named as files
from tests.named import CONTENT, FileServer, serving
from tests.processes import wait_for


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as served:
        yield served


def get(server: FileServer, into, **options) -> str:
    return fetching.get(files.tiny(), into, server.url, pause_s=0, **options)


def assert_whole(folder: str) -> None:
    for name, content in CONTENT.items():
        with open(os.path.join(folder, name), "rb") as file:
            assert file.read() == content
    assert not [name for name in os.listdir(folder) if name.endswith(".part")]


def test_files_come_once_with_progress(server, tmp_path):
    told = []
    folder = get(server, tmp_path, progress=lambda *each: told.append(each))
    assert folder == str(tmp_path / "tiny")
    assert_whole(folder)
    sizes = {name: len(content) for name, content in CONTENT.items()}
    assert {name: done for name, done, total in told if done == total} == sizes
    get(server, tmp_path)
    assert server.asked == {"a.bin": 1, "b.bin": 1}


def test_a_broken_connection_is_made_again_and_goes_on_where_it_broke(server, tmp_path):
    server.breaks["a.bin"] = [10_000, 5_000]
    assert_whole(get(server, tmp_path))
    assert server.ranges == ["bytes=10000-", "bytes=15000-"]


def test_a_server_without_ranges_begins_anew(server, tmp_path):
    server.has_ranges = False
    server.breaks["a.bin"] = [10_000]
    assert_whole(get(server, tmp_path))


def test_a_connection_that_keeps_breaking_is_an_error_and_what_came_is_kept(server, tmp_path):
    server.breaks["a.bin"] = [1000, 0, 0, 0]
    with pytest.raises(StoreError, match=r"a\.bin could not be fetched.*goes on with it"):
        get(server, tmp_path)
    assert os.listdir(tmp_path / "tiny") != []
    assert not (tmp_path / "tiny/a.bin").exists()
    server.ranges.clear()
    assert_whole(get(server, tmp_path))
    assert server.ranges == ["bytes=1000-"]


def test_a_file_that_comes_a_little_further_each_time_comes_in_the_end(server, tmp_path):
    server.breaks["a.bin"] = [1000] * 6
    assert_whole(get(server, tmp_path))
    assert len(server.ranges) == 6


def test_a_corrupt_file_is_refused_and_not_kept(server, tmp_path):
    content = bytearray(CONTENT["b.bin"])
    content[100] ^= 1
    server.content["b.bin"] = bytes(content)
    with pytest.raises(DataError, match=r"b\.bin must give the published file: its MD5"):
        get(server, tmp_path)
    assert sorted(n for n in os.listdir(tmp_path / "tiny") if not n.startswith(".")) == ["a.bin"]
    server.content["b.bin"] = CONTENT["b.bin"]
    assert_whole(get(server, tmp_path))
    assert server.ranges == []


def test_a_part_that_is_longer_than_the_file_is_thrown_away(server, tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/.a.bin.part").write_bytes(b"x" * 100_000)
    assert_whole(get(server, tmp_path))


def test_a_file_that_is_there_and_wrong_is_named_and_left_alone(server, tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/a.bin").write_bytes(b"mine")
    with pytest.raises(DataError, match=r"a\.bin must be the published file.*Remove it"):
        get(server, tmp_path)
    assert (tmp_path / "tiny/a.bin").read_bytes() == b"mine"


def test_a_server_that_stumbles_is_asked_again(server, tmp_path):
    server.refusals = [503]
    assert_whole(get(server, tmp_path))


def test_a_file_that_the_server_has_not_is_an_error_at_once(server, tmp_path):
    del server.content["a.bin"]
    with pytest.raises(StoreError, match="404"):
        get(server, tmp_path)
    assert server.asked == {"a.bin": 1}


def test_an_address_that_cannot_be_reached_is_an_error_that_says_what_to_do(tmp_path):
    with serving() as gone:
        pass
    with pytest.raises(StoreError, match=f"reaches no network.*{tmp_path}/tiny yourself"):
        get(gone, tmp_path)


def test_of_two_at_once_one_fetches_and_the_other_waits(server, tmp_path):
    server.gate.clear()
    said: list[str] = []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        both = [pool.submit(get, server, tmp_path, say=said.append) for _ in range(2)]
        wait_for(lambda: server.asked and said, "one that fetches and one that waits")
        server.gate.set()
        folders = {each.result(60) for each in both}
    assert len(folders) == 1
    assert server.asked == {"a.bin": 1, "b.bin": 1}


@pytest.mark.parametrize(("name", "why"), [("dummy", "made when"), ("imagenet", "train_dir")])
def test_what_nobody_publishes_is_refused_with_what_to_do(tmp_path, name, why):
    with pytest.raises(UsageError, match=why):
        fetching.get(lookup(name), tmp_path)


@pytest.mark.parametrize("base", ["ftp://host/x", "file:///etc", "host"])
def test_only_http_is_spoken(tmp_path, base):
    with pytest.raises(UsageError, match="http://"):
        fetching.get(files.tiny(), tmp_path, base)


def test_every_published_file_is_one_that_is_looked_for():
    for data in DATASETS.values():
        for file in data.origin.files if data.origin else ():
            names = {n for form in data.forms for group in form.files.values() for n in group}
            assert file.name in names
            assert len(file.md5) == 32
