"""Which shards a spec stands for."""

from __future__ import annotations

import json

import fsspec
import pytest

from cerebro.data.archive import ShardSource, expand
from cerebro.data.archive import spec as archive_spec
from cerebro.errors import DataError, UsageError


def names(spec):
    return [shard.urls[0] for shard in expand(spec)]


def test_a_count_braces_and_a_list_say_the_same():
    wanted = [f"t-{n:06d}.tgz" for n in range(123)]
    assert names("t-@000123.tgz") == wanted
    assert names("t-{000000..000122}.tgz") == wanted
    assert names(wanted) == wanted


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("{a,b}-{0..1}.tar", ["a-0.tar", "a-1.tar", "b-0.tar", "b-1.tar"]),
        ("{08..10}.tar", ["08.tar", "09.tar", "10.tar"]),
        ("{3..1}.tar", ["3.tar", "2.tar", "1.tar"]),
        ("{0..6..3}", ["0", "3", "6"]),
        ("{c..a}{X..Y}", ["cX", "cY", "bX", "bY", "aX", "aY"]),
        ("x{,2}.tar", ["x.tar", "x2.tar"]),
        ("s3://me@10/x.tar", ["s3://me@10/x.tar"]),
        ("icon@2x.tar", ["icon@2x.tar"]),
        ("{a,b}/t-@2.tar", ["a/t-0.tar", "a/t-1.tar", "b/t-0.tar", "b/t-1.tar"]),
        ("https://host/x.tar?sig=a", ["https://host/x.tar?sig=a"]),
    ],
)
def test_names_are_expanded_in_order(spec, wanted):
    assert names(spec) == wanted


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("t-{0..1000000000000}.tar", "at most 1000000 shards.*makes 1000000000001"),
        ("{0..999}{0..999}{0..999}{0..999}.tar", "at most 1000000 shards"),
        ("t-@999999999999.tar", "at most 1000000 shards"),
        ("t-@" + "9" * 5000 + ".tar", "at most 1000000 shards"),
        ("t-@000.tar", "count >= 1"),
        ("t-@2.@3.tar", "one @count"),
        ("t-{0..1.tar", "in pairs"),
        ("t-0}.tar", "in pairs"),
        ("t-{a,{b,c}}.tar", "in pairs"),
        ("t-{}.tar", "braces must hold a range"),
        ("t-{x}.tar", "braces must hold a range"),
        ("t-{0..9..0}.tar", "step .* must not be 0"),
        ("t-{0..99999999999999999999}.tar", "braces must hold a range"),
        ("pipe:curl http://host/x.tar", "would run a command"),
        ("", "one line of text"),
        ("a\0b", "one line of text"),
        ([], "at least one name"),
        (7, "a name or a list of names"),
    ],
)
def test_a_bad_spec_is_refused(spec, message):
    with pytest.raises(UsageError, match=message):
        expand(spec)


def test_the_shards_of_several_names_are_counted_together(monkeypatch):
    monkeypatch.setattr(archive_spec, "MAX_SHARDS", 1000)
    assert len(names(["{0..998}.tar", "one-more.tar"])) == 1000
    with pytest.raises(UsageError, match="at most 1000 shards"):
        names(["{0..999}.tar", "one-more.tar"])


def test_secrets_in_a_url_are_not_repeated():
    with pytest.raises(UsageError) as caught:
        expand("https://ada:1815@host/t-{0..1.tar?token=abc")
    assert "1815" not in str(caught.value)
    assert "abc" not in str(caught.value)


def test_a_glob_is_sorted_and_must_match(tmp_path):
    for name in ("b.tar", "a.tar", "c.txt"):
        (tmp_path / name).touch()
    assert names(f"{tmp_path}/*.tar") == [f"{tmp_path}/a.tar", f"{tmp_path}/b.tar"]
    with pytest.raises(DataError, match="nothing matches"):
        expand(f"{tmp_path}/*.zip")


def index(tmp_path, **tree):
    file = tmp_path / "t.shards"
    file.write_text(json.dumps({"shardtype": "application/x-tar", **tree}))
    return str(file)


def test_an_index_gives_replicas_counts_and_digests(tmp_path):
    file = index(
        tmp_path,
        shards=[["t-0.tar", "https://mirror/t-0.tar"], "t-1.tar"],
        metadata={"shards": [{"samples": 3, "bytes": 9, "sha256": "ab"}, {}]},
    )
    assert expand(file) == [
        ShardSource(
            urls=(f"{tmp_path}/t-0.tar", "https://mirror/t-0.tar"), samples=3, bytes=9, sha256="ab"
        ),
        ShardSource(urls=(f"{tmp_path}/t-1.tar",)),
    ]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({}, '"shards"'),
        ({"shards": []}, "at least one shard"),
        ({"shards": [[]]}, "shard 0 .* list of its replicas"),
        ({"shards": [["a.tar"], [3]]}, "shard 1 .* list of its replicas"),
        ({"shards": [["pipe:rm -r /"]]}, "plain files or URLs"),
        ({"shards": [["simplecache::file:///etc/passwd"]]}, "plain files or URLs"),
        ({"shards": [["../../secret.tar"]]}, "must stay inside"),
        ({"shards": ["a.tar"], "metadata": 3}, "metadata"),
    ],
)
def test_a_bad_index_is_refused(tmp_path, tree, message):
    with pytest.raises(DataError, match=message):
        expand(index(tmp_path, **tree))


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "\xff"])
def test_an_index_that_is_no_json_is_refused(tmp_path, text):
    (tmp_path / "t.shards").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match="must be JSON"):
        expand(tmp_path / "t.shards")


def test_an_index_that_is_missing_is_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.shards: there is no such file"):
        expand(tmp_path / "gone.shards")


def test_an_index_from_another_machine_names_no_local_files(tmp_path):
    fs = fsspec.filesystem("memory")
    for number, url in enumerate(["/etc/passwd", "file:///etc/passwd"]):
        fs.pipe_file(f"/remote/{number}.shards", json.dumps({"shards": [[url]]}).encode())
        with pytest.raises(DataError, match="must not name local files"):
            expand(f"memory://remote/{number}.shards")
    fs.pipe_file("/remote/t.shards", json.dumps({"shards": [["sub/0.tar"]]}).encode())
    assert names("memory://remote/t.shards") == ["memory://remote/sub/0.tar"]


def test_replicas_are_spread_by_the_seed():
    shards = [ShardSource(urls=tuple(f"{host}/{n}.tar" for host in "abc")) for n in range(60)]
    first = [shard.replicas(seed=1)[0][0] for shard in shards]
    assert {host: 10 < first.count(host) < 30 for host in "abc"} == dict.fromkeys("abc", True)
    assert first == [shard.replicas(seed=1)[0][0] for shard in shards]
    assert first != [shard.replicas(seed=2)[0][0] for shard in shards]
