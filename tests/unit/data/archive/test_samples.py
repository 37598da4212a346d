"""Reading samples from whole archives."""

from __future__ import annotations

import gzip
import io
import subprocess
import tarfile

import fsspec
import pytest

from cerebro.data.archive import ArchiveError, ShardSource, read_samples, read_shard
from tests.unit.data.archive.archives import PAIRS, plain, tar_bytes, tar_of, zip_bytes, zip_of

WANTED = [
    {"__key__": "a", "cls": b"0", "txt": b"first"},
    {"__key__": "b", "cls": b"1", "txt": b"second"},
]


@pytest.mark.parametrize(
    "tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT]
)
def test_every_kind_of_tar_is_read(tmp_path, tar_format):
    name = tar_of(tmp_path / "a.tar", tar_format=tar_format)
    assert list(read_samples(name)) == [{**sample, "__source__": name} for sample in WANTED]


def test_the_format_is_known_by_the_first_bytes_not_by_the_name(tmp_path):
    (tmp_path / "zip.tar").write_bytes(zip_bytes(PAIRS))
    (tmp_path / "tgz.zip").write_bytes(gzip.compress(tar_bytes(PAIRS)))
    (tmp_path / "tar.tgz").write_bytes(tar_bytes(PAIRS))
    for name in ("zip.tar", "tgz.zip", "tar.tgz"):
        assert plain(read_samples(tmp_path / name)) == WANTED, name


def test_archives_of_plain_tar_are_read(tmp_path):
    for folder in ("x", "y.z"):
        (tmp_path / folder).mkdir()
        for field in ("cls", "seg.PNG"):
            (tmp_path / folder / f"{'n' * 120}.{field}").write_bytes(field.encode())
    command = ["tar", "--sort=name", "-czf", "a.tgz", "./x", "./y.z"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert plain(read_samples(tmp_path / "a.tgz")) == [
        {"__key__": f"{folder}/{'n' * 120}", "cls": b"cls", "seg.png": b"seg.PNG"}
        for folder in ("x", "y.z")
    ]


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_and_foreign_names_are_read(tmp_path, tar_format):
    files = [("ordner/" * 40 + "größe.txt", b"1"), ("名前.txt", b"2")]
    keys = [
        s["__key__"] for s in read_samples(tar_of(tmp_path / "a", files, tar_format=tar_format))
    ]
    assert keys == ["ordner/" * 40 + "größe", "名前"]


def test_the_directory_belongs_to_the_key_and_fields_are_lower_case(tmp_path):
    files = [("a/1.JPG", b"1"), ("a/1.Left.PNG", b"2"), ("b/1.JPG", b"3")]
    assert plain(read_samples(tar_of(tmp_path / "a.tar", files))) == [
        {"__key__": "a/1", "jpg": b"1", "left.png": b"2"},
        {"__key__": "b/1", "jpg": b"3"},
    ]


def test_metadata_is_passed_over(tmp_path):
    files = [("__index__.json", b"{}"), ("__MACOSX/a.jpg", b""), ("x/__about__", b""), *PAIRS]
    assert plain(read_samples(tar_of(tmp_path / "a.tar", files))) == WANTED
    assert plain(read_samples(zip_of(tmp_path / "a.zip", files))) == WANTED


def test_directories_in_archives_are_no_samples(tmp_path):
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        info = tarfile.TarInfo("folder")
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    (tmp_path / "a.tar").write_bytes(target.getvalue())
    assert list(read_samples(tmp_path / "a.tar")) == []


def test_an_empty_tar_has_no_samples(tmp_path):
    assert list(read_samples(tar_of(tmp_path / "a.tar", []))) == []


def test_several_shards_come_in_order(tmp_path):
    for number in range(3):
        tar_of(tmp_path / f"t-{number}.tar", [(f"{number}.txt", b"")])
    keys = [sample["__key__"] for sample in read_samples(f"{tmp_path}/t-@3.tar")]
    assert keys == ["0", "1", "2"]


def test_archives_are_read_from_urls_and_never_extracted(tmp_path, monkeypatch):
    fs = fsspec.filesystem("memory")
    monkeypatch.chdir(tmp_path)
    fs.pipe_file("/bucket/a.tgz", gzip.compress(tar_bytes(PAIRS)))
    assert plain(read_samples("memory://bucket/a.tgz")) == WANTED
    assert list(tmp_path.iterdir()) == []


class TestReplicas:
    def source(self, *urls, **known):
        return ShardSource(urls=tuple(map(str, urls)), **known)

    def read(self, source, seed=0, **options):
        return plain(read_shard(source, seed=seed, **options))

    @pytest.mark.parametrize("seed", range(6))
    def test_one_that_is_missing_is_made_up_for(self, tmp_path, seed):
        name = tar_of(tmp_path / "a.tar")
        source = self.source(tmp_path / "gone", name, "memory://gone/b.tar")
        assert self.read(source, seed) == WANTED

    @pytest.mark.parametrize("seed", range(6))
    @pytest.mark.parametrize("cut", [100, 600, 1500, 2600, 4096])
    def test_one_that_breaks_off_is_gone_on_with_in_another(self, tmp_path, seed, cut):
        whole = tar_bytes(PAIRS)
        (tmp_path / "cut.tar").write_bytes(whole[:cut])
        source = self.source(tmp_path / "cut.tar", tar_of(tmp_path / "whole.tar"))
        assert self.read(source, seed) == WANTED

    def test_if_all_are_broken_each_is_named(self, tmp_path):
        (tmp_path / "cut.tar").write_bytes(tar_bytes(PAIRS)[:700])
        source = self.source(tmp_path / "cut.tar", tmp_path / "gone.tar")
        with pytest.raises(ArchiveError, match="none of its 2 replicas") as caught:
            self.read(source)
        assert "cut.tar, member 'a.cls' at byte 700" in str(caught.value)
        assert "gone.tar: there is no such file" in str(caught.value)

    def test_others_than_the_first_are_refused(self, tmp_path):
        (tmp_path / "cut.tar").write_bytes(tar_bytes(PAIRS)[:2600])
        tar_of(tmp_path / "other.tar", [("z.txt", b""), *PAIRS])
        source = self.source(tmp_path / "cut.tar", tmp_path / "other.tar")
        seed = next(n for n in range(99) if source.replicas(n)[0].endswith("cut.tar"))
        with pytest.raises(ArchiveError, match="must hold the same samples"):
            self.read(source, seed)

    def test_a_count_that_is_known_must_hold(self, tmp_path):
        source = self.source(tar_of(tmp_path / "a.tar"), samples=3)
        with pytest.raises(ArchiveError, match="must hold 3 samples, but holds 2"):
            self.read(source)
