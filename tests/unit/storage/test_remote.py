"""Files anywhere, against a memory file system and a real HTTP server on the loopback interface."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import pytest
from fsspec.registry import _registry as registered

from cerebro.errors import MissingDependencyError, StoreError, UsageError
from cerebro.storage.remote import (
    Retry,
    copy_to_url,
    exists_url,
    fetch,
    fetch_many,
    glob_url,
    is_remote,
    join,
    list_url,
    local_path,
    open_url,
    read_url,
    redact,
)
from cerebro.storage.remote_retry import is_worth_retrying

DATA = bytes(range(256)) * 4000


class Handler(BaseHTTPRequestHandler):
    """What the first part of the path says: `/flaky/x` fails twice, `/cut/x` ends too early."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        kind, _, name = self.path.partition("?")[0].strip("/").partition("/")
        hits = self.server.hits  # type: ignore[attr-defined]
        hits[self.path, self.command] += 1
        status = 200
        if (kind == "flaky" and hits[self.path, self.command] <= 2) or kind == "down":
            status = 503
        elif kind == "forbidden":
            status = 403
        elif kind == "missing":
            status = 404
        data = DATA if status == 200 else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if kind == "cut" and (name != "once" or hits[self.path, self.command] == 1):
            data, self.close_connection = data[:1000], True
        if body:
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.daemon_threads = True
        running.hits = Counter()  # type: ignore[attr-defined]
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join()


@pytest.fixture
def web(server) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def retry(waits) -> Retry:
    """Waits are written down instead of waited for."""
    return Retry(sleep=waits.append)


@pytest.fixture
def memory() -> Iterator[str]:
    yield "memory://remote-tests"
    fsspec.filesystem("memory").store.clear()


def put(url: str, data: bytes = DATA) -> str:
    with fsspec.open(url, "wb") as file:
        file.write(data)
    return url


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("data/train.csv", "data/train.csv"),
        ("/data/a#b.csv", "/data/a#b.csv"),
        ("file:///data/a%20b", "/data/a b"),
        ("s3://bucket/a", None),
        ("HTTPS://host/a", None),
        ("memory://a", None),
        ("simplecache::s3://bucket/a", None),
    ],
)
def test_local_names_are_told_from_others(url, path):
    assert local_path(url) == path
    assert is_remote(url) == (path is None)


@pytest.mark.parametrize("url", ["file://host/data", "file://data", "file:///a?b=c"])
def test_a_file_url_with_more_than_a_path_is_refused(url):
    with pytest.raises(UsageError, match="file:///absolute/path"):
        local_path(url)


@pytest.mark.parametrize("url", ["", "a\0b", b"bytes"])
def test_what_can_be_no_name_is_refused(url):
    with pytest.raises(UsageError, match="path or URL"):
        is_remote(url)


def test_memory_files_are_read_listed_and_found(memory):
    for name in ("b.csv", "a.csv", "deep/c.csv"):
        put(f"{memory}/{name}", name.encode())
    assert read_url(f"{memory}/a.csv") == b"a.csv"
    with open_url(f"{memory}/b.csv") as stream:
        assert stream.read() == b"b.csv"
    assert list_url(memory) == ["a.csv", "b.csv", "deep"]
    assert [url.rsplit("/", 1)[1] for url in glob_url(f"{memory}/*.csv")] == ["a.csv", "b.csv"]
    assert [read_url(url) for url in glob_url(f"{memory}/*/c.csv")] == [b"deep/c.csv"]
    assert exists_url(f"{memory}/deep")
    assert not exists_url(f"{memory}/d.csv")


def test_local_files_are_read_listed_and_found(tmp_path):
    (tmp_path / "b c.csv").write_bytes(b"b")
    (tmp_path / "a.csv").write_bytes(b"a")
    assert read_url(tmp_path / "a.csv") == b"a"
    assert read_url(f"file://{tmp_path}/b%20c.csv") == b"b"
    assert list_url(tmp_path) == ["a.csv", "b c.csv"]
    assert glob_url(f"{tmp_path}/*.csv") == [f"{tmp_path}/a.csv", f"{tmp_path}/b c.csv"]
    assert exists_url(tmp_path)
    assert not exists_url(tmp_path / "c.csv")


@pytest.mark.parametrize("action", [read_url, open_url, list_url])
def test_a_local_file_that_is_missing_is_named(tmp_path, action):
    with pytest.raises(StoreError, match=r"missing\.csv"):
        action(tmp_path / "missing.csv")


def test_files_are_copied_there_and_back(memory, tmp_path):
    (tmp_path / "a").write_bytes(DATA)
    copy_to_url(tmp_path / "a", f"{memory}/deep/a")
    fetch(f"{memory}/deep/a", tmp_path / "new" / "b")
    copy_to_url(tmp_path / "new" / "b", tmp_path / "c" / "d")
    assert (tmp_path / "c" / "d").read_bytes() == DATA


def test_a_fetched_file_replaces_the_old_one_and_others_may_read_it(memory, tmp_path):
    target = tmp_path / "a"
    target.write_bytes(b"old and longer than the new one" * 100_000)
    fetch(put(f"{memory}/a"), target)
    assert target.read_bytes() == DATA
    assert target.stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path) == ["a"]


def test_http_files_are_read(web, tmp_path, retry, waits):
    assert read_url(f"{web}/plain/a", retry=retry) == DATA
    with open_url(f"{web}/plain/a", retry=retry) as stream:
        assert stream.read(1000) == DATA[:1000]
    fetch(f"{web}/plain/a b?v=2", tmp_path / "a", retry=retry)
    assert (tmp_path / "a").read_bytes() == DATA
    assert exists_url(f"{web}/plain/a", retry=retry)
    assert waits == []


def test_a_server_that_fails_twice_is_asked_three_times(server, web, tmp_path, retry, waits):
    fetch(f"{web}/flaky/a", tmp_path / "a", retry=retry)
    assert (tmp_path / "a").read_bytes() == DATA
    assert server.hits["/flaky/a", "GET"] == 3
    assert read_url(f"{web}/flaky/b", retry=retry) == DATA
    assert len(waits) == 4


def test_a_transfer_that_is_cut_off_is_made_again(web, tmp_path, retry, waits):
    fetch(f"{web}/cut/once", tmp_path / "a", retry=retry)
    assert (tmp_path / "a").read_bytes() == DATA
    assert len(waits) == 1


def test_a_transfer_that_is_always_cut_off_leaves_nothing(web, tmp_path, retry, waits):
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(StoreError, match=r"cannot fetch http://127\.0\.0\.1.*/cut/a: "):
        fetch(f"{web}/cut/a", tmp_path / "a", retry=retry)
    assert len(waits) == 4
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


@pytest.mark.parametrize("kind", ["missing", "forbidden"])
def test_what_would_fail_again_is_not_tried_again(server, web, tmp_path, retry, waits, kind):
    with pytest.raises(StoreError, match=f"/{kind}/a"):
        fetch(f"{web}/{kind}/a", tmp_path / "a", retry=retry)
    assert waits == []
    assert os.listdir(tmp_path) == []


def test_a_server_that_is_down_is_not_a_file_that_is_missing(web, retry):
    assert not exists_url(f"{web}/missing/a", retry=retry)
    with pytest.raises(StoreError, match="look for"):
        exists_url(f"{web}/down/a", retry=retry)


def test_a_connection_that_is_refused_is_tried_again(tmp_path, retry, waits):
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:9"):
        fetch("http://127.0.0.1:9/a", tmp_path / "a", retry=retry)
    assert len(waits) == 4


def test_many_files_are_fetched_in_parallel(web, memory, tmp_path, retry):
    pairs = [(f"{web}/flaky/{n}", tmp_path / "web" / str(n)) for n in range(20)]
    pairs += [(put(f"{memory}/{n}"), tmp_path / "memory" / str(n)) for n in range(20)]
    assert fetch_many(iter(pairs), threads=4, retry=retry) == {}
    assert all(target.read_bytes() == DATA for _, target in pairs)


def test_the_first_file_in_order_that_fails_is_the_one_reported(memory, tmp_path):
    pairs = [(put(f"{memory}/{n}"), tmp_path / str(n)) for n in range(5)]
    pairs += [(f"{memory}/missing-{n}", tmp_path / f"m{n}") for n in range(200)]
    with pytest.raises(StoreError, match="missing-0: there is no such file"):
        fetch_many(pairs, threads=3)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(("m", "."))]


def test_with_keep_going_the_others_are_fetched_and_failures_are_told(memory, tmp_path, retry):
    pairs = [(f"{memory}/missing", tmp_path / "m"), (put(f"{memory}/a"), tmp_path / "a")]
    failures = fetch_many(pairs, retry=retry, keep_going=True)
    assert list(failures) == [f"{memory}/missing"]
    assert os.listdir(tmp_path) == ["a"]


def test_a_failure_does_not_wait_for_the_pauses_of_others(web, memory, tmp_path):
    # The server that is down would be waited for some 40 s if nobody called it off.
    pairs = [(f"{memory}/missing", tmp_path / "m")]
    pairs += [(f"{web}/down/{n}", tmp_path / str(n)) for n in range(4)]
    with pytest.raises(StoreError, match="missing"):
        fetch_many(pairs, threads=5, retry=Retry(first_delay_s=20.0))


@pytest.mark.parametrize("threads", [0, -1])
def test_fetching_needs_a_thread(threads):
    with pytest.raises(UsageError, match="threads >= 1"):
        fetch_many([], threads=threads)


def test_waits_double_up_to_a_limit_and_are_the_same_every_time():
    policy = Retry(attempts=8, first_delay_s=1.0, max_delay_s=10.0)
    waits = list(policy.delays("a"))
    assert waits == list(policy.delays("a"))
    assert waits != list(policy.delays("b"))
    assert all(
        top / 2 <= wait <= top for wait, top in zip(waits, [1, 2, 4, 8, 10, 10, 10], strict=True)
    )


@pytest.mark.parametrize(
    ("error", "worth"),
    [
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (OSError(5, "Input/output error"), True),
        (EOFError(), True),
        (FileNotFoundError(), False),
        (PermissionError(13, "no"), False),
        (OSError(28, "No space left on device"), False),
        (ValueError(), False),
        (KeyError(), False),
    ],
)
def test_only_what_may_pass_is_worth_another_attempt(error, worth):
    assert is_worth_retrying(error) is worth


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://key:sec/ret@bucket/a", "s3://***@bucket/a"),
        ("https://token@host/a", "https://***@host/a"),
        ("https://host/a.csv?X-Amz-Signature=abc#x", "https://host/a.csv?***"),
        ("s3://bucket/a@b.csv", "s3://bucket/a@b.csv"),
        ("data/a?b@c.csv", "data/a?b@c.csv"),
        ("zip://a.csv::https://u:p@host/b.zip?k=v", "zip://a.csv::https://***@host/b.zip?***"),
    ],
)
def test_secrets_are_taken_out_of_urls(url, shown):
    assert redact(url) == shown


@pytest.mark.parametrize("action", [read_url, open_url, list_url])
def test_errors_do_not_repeat_secrets(web, retry, action):
    url = web.replace("http://", "http://ada:swordfish@") + "/forbidden/a?token=swordfish"
    with pytest.raises(StoreError) as caught:
        action(url, retry=retry)
    assert "swordfish" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("root", "name", "joined"),
    [
        ("/data", "cat/1.png", "/data/cat/1.png"),
        ("file:///data%201/", "a", "/data 1/a"),
        ("s3://bucket/images/", "a%2e b.png", "s3://bucket/images/a%2e b.png"),
        ("https://host/images?v=2", "a b#1.png", "https://host/images/a%20b%231.png?v=2"),
        ("https://host/x", "%2e%2e/%2e%2e/etc", "https://host/x/%252e%252e/%252e%252e/etc"),
        ("/data", "...", "/data/..."),
        ("/data", "a..b/.hidden", "/data/a..b/.hidden"),
    ],
)
def test_names_are_joined_to_any_directory(root, name, joined):
    assert join(root, name) == joined


@pytest.mark.parametrize("root", ["/data", "s3://bucket/images", "https://host/images"])
@pytest.mark.parametrize(
    "name",
    [
        *("../../etc/passwd", "/etc/passwd", "a/../../b", "..", ".", "", "a//b", "./a", "a/"),
        *("..\\..\\secret", "\\\\host\\share", "C:\\secret", "C:/secret", "a\0b"),
        *("file:///etc/passwd", "s3://other/a", "https://evil/a", "simplecache::file:///etc"),
    ],
)
def test_names_that_lead_out_are_refused(root, name):
    with pytest.raises(UsageError, match="must stay inside"):
        join(root, name)


def test_a_missing_package_is_named(monkeypatch):
    for protocol, package in (("s3", "s3fs"), ("gs", "gcsfs")):
        monkeypatch.delitem(registered, protocol, raising=False)
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match="pip install s3fs"):
        read_url("s3://bucket/a")
    with pytest.raises(MissingDependencyError, match="pip install gcsfs"):
        exists_url("gs://bucket/a")


def test_an_unknown_protocol_is_refused_with_a_suggestion(tmp_path):
    with pytest.raises(UsageError, match=r"unknown protocol 'memry'.*Did you mean 'memory'"):
        fetch("memry://user:swordfish@a/b", tmp_path / "a")
    assert os.listdir(tmp_path) == []


def test_a_target_that_cannot_be_written_is_named(memory, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="file/a"):
        fetch(put(f"{memory}/a"), tmp_path / "file" / "a")


def test_a_retry_policy_can_be_sent_to_workers():
    assert pickle.loads(pickle.dumps(Retry(attempts=2))) == Retry(attempts=2)
