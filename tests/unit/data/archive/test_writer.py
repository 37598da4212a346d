"""Writing shards: their format, their cuts, and what is left when a writer dies."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.data.archive import ShardWriter, expand, read_samples, write_shards
from cerebro.errors import DataError, DiskFullError, UsageError
from cerebro.storage.disk import Disk
from cerebro.testing.faults import WRITES, CountOnly, Fail, FaultyDisk
from tests.unit.data.archive.archives import plain

SAMPLES = [{"__key__": f"s{n:03}", "txt": f"number {n}", "cls": n} for n in range(10)]


def digests(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


_part = st.text(
    st.characters(exclude_characters="/.\0", exclude_categories=["Cs"]), min_size=1, max_size=30
)
_keys = st.lists(_part, min_size=1, max_size=3).map("/".join)
_fields = st.from_regex(r"[a-z0-9]([a-z0-9_.]{0,30}[a-z0-9])?", fullmatch=True)
_samples = st.dictionaries(
    _keys.filter(lambda key: not key.rpartition("/")[2].startswith("__")),
    st.dictionaries(_fields, st.binary(max_size=2000), min_size=1, max_size=4),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(
    samples=_samples, max_count=st.integers(1, 13), max_bytes=st.integers(1, 9000), z=st.booleans()
)
def test_any_samples_come_back_whatever_the_cut(tmp_path_factory, samples, max_count, max_bytes, z):
    folder = tmp_path_factory.mktemp("x")
    wanted = [{"__key__": key, **fields} for key, fields in samples.items()]
    index = write_shards(
        folder, wanted, name="t", max_count=max_count, max_bytes=max_bytes, compress=z
    )
    assert plain(read_samples(folder / "t.shards")) == wanted
    assert all(shard.samples <= max_count for shard in index.shards)


def test_plain_tar_reads_the_shards(tmp_path):
    key = "folder.d/" + "ü" * 120
    write_shards(tmp_path, [{"__key__": key, "cls": 3, "a.txt": "x" * 600}], name="t")
    with tarfile.open(tmp_path / "t-000000.tar") as tar:
        members = tar.getmembers()
        assert [(m.name, m.size, m.mtime, m.mode, m.uid) for m in members] == [
            (f"{key}.a.txt", 600, 0, 0o644, 0),
            (f"{key}.cls", 1, 0, 0o644, 0),
        ]
        assert tar.extractfile(members[1]).read() == b"3"
    listed = subprocess.run(
        ["tar", "-tf", "t-000000.tar", "--quoting-style=literal"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stdout.splitlines() == [f"{key}.a.txt", f"{key}.cls"]


def test_shards_roll_at_the_count_and_the_index_says_what_is_there(tmp_path):
    index = write_shards(tmp_path, SAMPLES, name="t", max_count=4)
    files = ["t-000000.tar", "t-000001.tar", "t-000002.tar"]
    tree = json.loads((tmp_path / "t.shards").read_text())
    assert tree["shardtype"] == "application/x-tar"
    assert tree["shards"] == [[file] for file in files]
    assert [shard["samples"] for shard in tree["metadata"]["shards"]] == [4, 4, 2]
    assert (tree["metadata"]["samples"], index.total_samples) == (10, 10)
    for file, shard in zip(files, tree["metadata"]["shards"], strict=True):
        assert shard["bytes"] == (tmp_path / file).stat().st_size
        assert shard["sha256"] == digests(tmp_path)[file]
    assert [shard.samples for shard in expand(f"{tmp_path}/t.shards")] == [4, 4, 2]


def test_shards_roll_at_the_bytes_but_take_a_large_sample_alone(tmp_path):
    sizes = [10, 10, 5000, 10]
    samples = [{"__key__": str(n), "bin": bytes(size)} for n, size in enumerate(sizes)]
    index = write_shards(tmp_path, samples, max_bytes=2048)
    assert [shard.samples for shard in index.shards] == [2, 1, 1]


@pytest.mark.parametrize("compress", [False, True])
def test_the_same_samples_give_the_same_bytes(tmp_path, compress):
    shuffled_fields = [dict(reversed(sample.items())) for sample in SAMPLES]
    for folder, samples in (("a", SAMPLES), ("b", shuffled_fields)):
        write_shards(tmp_path / folder, samples, name="t", max_count=3, compress=compress)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_fields_with_an_underscore_are_not_written(tmp_path):
    write_shards(tmp_path, [{"__key__": "a", "__source__": "x", "_note": "n", "txt": "t"}])
    assert plain(read_samples(tmp_path / "shard.shards")) == [{"__key__": "a", "txt": b"t"}]


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"txt": ""}, "`__key__`"),
        ({"__key__": 3, "txt": ""}, "`__key__`"),
        ({"__key__": "a"}, "at least one field"),
        ({"__key__": "a.b", "txt": ""}, "without dots"),
        ({"__key__": "", "txt": ""}, "without dots"),
        ({"__key__": "__a", "txt": ""}, "without dots"),
        ({"__key__": "../a", "txt": ""}, "without dots"),
        ({"__key__": "/a", "txt": ""}, "without dots"),
        ({"__key__": "./a", "txt": ""}, "without dots"),
        ({"__key__": "a\0", "txt": ""}, "without dots"),
        ({"__key__": "a", "TXT": b""}, "lower-case"),
        ({"__key__": "a", "b/txt": b""}, "lower-case"),
        ({"__key__": "a", "": b""}, "lower-case"),
        ({"__key__": "\udcff", "txt": b""}, "UTF-8"),
        ({"__key__": "s000", "txt": ""}, "must come once"),
        ({"__key__": "a", "cls": "x"}, "whole number"),
    ],
)
def test_a_sample_that_cannot_be_read_again_is_refused(tmp_path, sample, message):
    with pytest.raises(DataError, match=message):
        write_shards(tmp_path / "out", [*SAMPLES[:1], sample])
    assert not (tmp_path / "out").exists()


def test_no_samples_are_an_error(tmp_path):
    with pytest.raises(DataError, match="at least one sample"):
        write_shards(tmp_path / "out", [])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "options",
    [{"name": "../x"}, {"name": ""}, {"name": "-x"}, {"max_count": 0}, {"max_bytes": 0}],
)
def test_wrong_options_are_refused(tmp_path, options):
    with pytest.raises(UsageError):
        write_shards(tmp_path, SAMPLES, **options)


def test_an_error_leaves_the_old_shards_until_the_first_new_one_is_whole(tmp_path):
    write_shards(tmp_path, SAMPLES, name="t", max_count=4)
    before = digests(tmp_path)

    def broken():
        yield SAMPLES[0]
        raise DataError("no more")

    with pytest.raises(DataError, match="no more"):
        write_shards(tmp_path, broken(), name="t", max_count=4)
    assert digests(tmp_path) == before


def test_fewer_shards_than_before_leave_none_of_the_old_ones(tmp_path):
    (tmp_path / "t-notes.tar").touch()
    write_shards(tmp_path, SAMPLES, name="t", max_count=1)
    write_shards(tmp_path, SAMPLES, name="t", max_count=5)
    assert sorted(os.listdir(tmp_path)) == [
        "t-000000.tar",
        "t-000001.tar",
        "t-notes.tar",
        "t.shards",
    ]


def test_two_writers_in_one_directory_are_refused(tmp_path):
    with ShardWriter(tmp_path) as writer:
        with pytest.raises(UsageError, match="only one process"), ShardWriter(tmp_path):
            pass
        writer.write(SAMPLES[0])


def write_on(disk, folder):
    with ShardWriter(folder, name="t", max_count=4, disk=disk) as writer:
        for sample in SAMPLES:
            writer.write(sample)


def test_whichever_operation_fails_the_index_names_whole_shards_and_a_rerun_mends_it(tmp_path):
    counting = FaultyDisk(Disk(), CountOnly())
    write_on(counting, tmp_path / "good")
    wanted = digests(tmp_path / "good")
    for number in range(1, len(counting.operations) + 1):
        folder = tmp_path / str(number)
        disk = FaultyDisk(Disk(), Fail(number, errno.ENOSPC, only=WRITES))
        with contextlib.suppress(DiskFullError):
            write_on(disk, folder)
        disk.close()
        if (folder / "t.shards").exists():
            assert plain(read_samples(folder / "t.shards")) == plain(
                read_samples(tmp_path / "good" / "t.shards")
            )
        write_shards(folder, SAMPLES, name="t", max_count=4)
        assert digests(folder) == wanted


KILLED = """
import os, signal, sys
from cerebro.data.archive import ShardWriter
with ShardWriter(sys.argv[1], name="t", max_count=3) as writer:
    for n in range(10):
        if n == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        writer.write({"__key__": f"s{n:03}", "txt": f"number {n}" + "x" * 2_000_000, "cls": n})
"""


def test_a_rerun_after_a_kill_gives_the_same_files(tmp_path):
    samples = [{**s, "txt": f"{s['txt']}" + "x" * 2_000_000} for s in SAMPLES]
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "a"], check=False)
    assert killed.returncode == -signal.SIGKILL
    left = os.listdir(tmp_path / "a")
    assert "t.shards" not in left
    assert any(name.startswith(".tmp-") for name in left)
    for folder in ("a", "b"):
        write_shards(tmp_path / folder, samples, name="t", max_count=3)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
