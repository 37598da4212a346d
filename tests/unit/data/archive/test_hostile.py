"""Archives that are damaged, cut off, or made to do harm."""

from __future__ import annotations

import contextlib
import gzip
import pickle
import struct
import tarfile
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.data.archive import ArchiveError, Limits, SampleError, read_samples
from cerebro.data.archive.members import HARMLESS_BYTES
from cerebro.errors import DataError
from tests.unit.data.archive.archives import PAIRS, plain, tar_bytes, tar_of, zip_bytes, zip_of

FIRST = {"__key__": "a", "cls": b"0", "txt": b"first"}


def collect(path, **options):
    """What could be read, and what was wrong."""
    problems: list = []
    return plain(read_samples(path, on_error=problems.append, **options)), problems


def member(name, **fields):
    info = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT)


END = bytes(10240)


@pytest.mark.parametrize(
    ("cut", "wanted", "message"),
    [
        (0, 0, "must not be empty"),
        (100, 0, "header is cut off"),
        (512, 0, r"member 'a\.cls' at byte 512: 1 bytes must follow"),
        (600, 0, r"member 'a\.cls' at byte 600"),
        (2500, 0, "at byte 2500: a header is cut off"),  # perhaps there was more of a
        (2600, 1, r"member 'b\.cls' at byte 2600"),
        (4096, 1, "at byte 4096: an archive must close with an end mark"),
    ],
)
def test_a_tar_that_is_cut_off_gives_what_is_whole_and_says_where(tmp_path, cut, wanted, message):
    file = tmp_path / "a.tar"
    file.write_bytes(tar_bytes(PAIRS)[:cut])
    with pytest.raises(ArchiveError, match=message):
        list(read_samples(file))
    samples, problems = collect(file)
    assert samples == [FIRST][:wanted]
    assert [type(problem) for problem in problems] == [ArchiveError]
    assert problems[0].shard == str(file)


def test_no_cut_passes_unnoticed(tmp_path):
    whole = tar_bytes(PAIRS)
    file = tmp_path / "a.tar"
    for cut in range(0, 4097, 64):
        file.write_bytes(whole[:cut])
        with pytest.raises(ArchiveError):
            list(read_samples(file))


@pytest.mark.parametrize("cut", [5, 40, 100, -1])
def test_a_gzip_that_is_cut_off_is_noticed(tmp_path, cut):
    (tmp_path / "a.tgz").write_bytes(gzip.compress(tar_bytes(PAIRS))[:cut])
    with pytest.raises(ArchiveError, match=r"a\.tgz"):
        list(read_samples(tmp_path / "a.tgz"))


def test_a_gzip_whose_sum_is_wrong_is_noticed(tmp_path):
    data = bytearray(gzip.compress(tar_bytes(PAIRS)))
    data[-8] ^= 1
    (tmp_path / "a.tgz").write_bytes(data)
    with pytest.raises(ArchiveError, match="CRC"):
        list(read_samples(tmp_path / "a.tgz"))


def test_damage_in_the_middle_does_not_end_a_tar_quietly(tmp_path):
    data = bytearray(tar_bytes(PAIRS))
    data[2048 + 3] ^= 1  # in the header of b.cls, where `tarfile` would just stop
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(ArchiveError, match="at byte 2560: the sum of a header is wrong"):
        list(read_samples(tmp_path / "a.tar"))


def test_archives_joined_in_one_file_are_refused(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_bytes(PAIRS) + tar_bytes([("c.txt", b"")]))
    with pytest.raises(ArchiveError, match="nothing may follow the end mark"):
        list(read_samples(tmp_path / "a.tar"))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_tar_with_a_broken_byte_gives_an_error_or_samples_never_anything_else(
    tmp_path_factory, data
):
    raw = bytearray(tar_bytes(PAIRS))
    raw[data.draw(st.integers(0, 4200))] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.mktemp("x") / "a.tar"
    file.write_bytes(raw)
    with contextlib.suppress(ArchiveError, SampleError):
        list(read_samples(file))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_zip_with_a_broken_byte_gives_an_error_or_samples_never_anything_else(
    tmp_path_factory, data
):
    file = tmp_path_factory.mktemp("x") / "a.zip"
    raw = bytearray(zip_bytes(PAIRS))
    raw[data.draw(st.integers(4, len(raw) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(raw)
    with contextlib.suppress(ArchiveError, SampleError):
        list(read_samples(file))


@settings(max_examples=80, deadline=None)
@given(raw=st.binary(max_size=2000))
def test_any_bytes_give_an_error_that_names_the_file(tmp_path_factory, raw):
    file = tmp_path_factory.mktemp("x") / "a.tar"
    file.write_bytes(raw)
    if raw.strip(b"\0"):
        with pytest.raises(DataError, match=r"a\.tar"):
            list(read_samples(file))


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (tarfile.SYMTYPE, "symbolic link"),
        (tarfile.LNKTYPE, "hard link"),
        (tarfile.CHRTYPE, "device"),
        (tarfile.FIFOTYPE, "pipe"),
    ],
)
def test_links_and_devices_are_refused_and_what_follows_is_read(tmp_path, kind, what):
    (tmp_path / "a.tar").write_bytes(
        member("evil.txt", type=kind, linkname="/etc/passwd") + tar_bytes(PAIRS[:2])
    )
    with pytest.raises(SampleError, match=what):
        list(read_samples(tmp_path / "a.tar"))
    samples, problems = collect(tmp_path / "a.tar")
    assert samples == [FIRST]
    assert [problem.key for problem in problems] == ["evil"]


def test_sparse_files_are_refused(tmp_path):
    (tmp_path / "a.tar").write_bytes(member("a.txt", type=tarfile.GNUTYPE_SPARSE) + END)
    with pytest.raises(ArchiveError, match="sparse"):
        list(read_samples(tmp_path / "a.tar"))
    pax = tarfile.TarInfo("b.txt")
    pax.pax_headers = {"GNU.sparse.major": "1"}
    (tmp_path / "b.tar").write_bytes(pax.tobuf(tarfile.PAX_FORMAT) + END)
    with pytest.raises(SampleError, match="sparse"):
        list(read_samples(tmp_path / "b.tar"))


@pytest.mark.parametrize("size", [1 << 32, 1 << 40, 1 << 62])
def test_a_declared_size_is_not_believed(tmp_path, size):
    (tmp_path / "a.tar").write_bytes(member("a.txt", size=size) + END)
    with pytest.raises(ArchiveError, match="too early"):
        list(read_samples(tmp_path / "a.tar"))


def test_a_member_beyond_the_cap_costs_its_sample_only(tmp_path):
    name = tar_of(tmp_path / "a.tar", [("big.txt", bytes(5000)), *PAIRS[:2]])
    samples, problems = collect(name, limits=Limits(max_member_bytes=4999))
    assert samples == [FIRST]
    assert "at most 4999 bytes, but it declares 5000" in str(problems[0])
    assert len(list(read_samples(name, limits=Limits(max_member_bytes=5000)))) == 2


def test_an_endless_header_is_refused(tmp_path):
    (tmp_path / "a.tar").write_bytes(member("x", type=tarfile.GNUTYPE_LONGNAME, size=1 << 40) + END)
    with pytest.raises(ArchiveError, match="extended header may have"):
        list(read_samples(tmp_path / "a.tar"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../../etc/passwd.txt", "stay inside"),
        ("/etc/passwd.txt", "stay inside"),
        ("a/../../b.txt", "stay inside"),
        (".hidden", "before its first dot"),
        ("a/.txt", "before its first dot"),
        ("README", "must have an extension"),
        ("a.", "must have an extension"),
    ],
)
@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_names_that_mean_no_sample_are_refused(tmp_path, name, message, pack):
    file = pack(tmp_path / "archive", [(name, b""), *PAIRS[:2]])
    with pytest.raises(SampleError, match=message):
        list(read_samples(file))
    samples, problems = collect(file)
    assert (samples, len(problems)) == ([FIRST], 1)


def test_a_name_that_is_not_utf8_is_refused(tmp_path):
    info = tarfile.TarInfo("b\udcffd.txt")
    data = info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")
    (tmp_path / "a.tar").write_bytes(data + END)
    with pytest.raises(ArchiveError, match="UTF-8"):
        list(read_samples(tmp_path / "a.tar"))


def test_a_field_that_comes_twice_costs_its_sample(tmp_path):
    files = [("x.txt", b"1"), ("x.TXT", b"2"), *PAIRS[:2]]
    samples, problems = collect(tar_of(tmp_path / "a.tar", files))
    assert samples == [FIRST]
    assert [(p.key, p.field) for p in problems] == [("x", "txt")]


def test_files_of_a_sample_that_stand_apart_are_noticed(tmp_path):
    files = [("x.txt", b"1"), *PAIRS[:2], ("x.cls", b"2")]
    with pytest.raises(SampleError, match="must stand together"):
        list(read_samples(tar_of(tmp_path / "a.tar", files)))


def test_a_sample_may_not_have_fields_without_end(tmp_path):
    name = tar_of(tmp_path / "a.tar", [(f"x.{n}", b"") for n in range(11)])
    with pytest.raises(SampleError, match="at most 10 fields"):
        list(read_samples(name, limits=Limits(max_fields=10)))
    assert len(next(read_samples(name, limits=Limits(max_fields=11)))) == 13


def test_a_zip_bomb_is_refused(tmp_path):
    name = zip_of(tmp_path / "a.zip", [("bomb.txt", bytes(HARMLESS_BYTES + 1)), *PAIRS[:2]])
    samples, problems = collect(name)
    assert samples == [FIRST]
    assert "at most 200 times as large" in str(problems[0])


def test_a_gzip_bomb_is_refused(tmp_path):
    with gzip.open(tmp_path / "a.tgz", "wb", compresslevel=1) as file:
        file.write(member("bomb.txt", size=HARMLESS_BYTES * 2))
        for _ in range(2 * HARMLESS_BYTES >> 20):
            file.write(bytes(1 << 20))
        file.write(END)
    with pytest.raises(ArchiveError, match="at most 200 times as large"):
        list(read_samples(tmp_path / "a.tgz"))


def test_a_zip_whose_members_overlap_is_refused(tmp_path):
    data = bytearray(zip_bytes(PAIRS))
    place = data.rindex(b"PK\x01\x02")
    struct.pack_into("<I", data, place + 20, 10_000)
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(ArchiveError, match="overlap"):
        list(read_samples(tmp_path / "a.zip"))


def test_links_and_secrets_in_a_zip_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        link = zipfile.ZipInfo("link.txt")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("a.txt", "plain")
    raw = bytearray((tmp_path / "a.zip").read_bytes())
    raw[raw.rindex(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.zip").write_bytes(raw)
    samples, problems = collect(tmp_path / "a.zip")
    assert samples == []
    assert ["link" in str(problems[0]), "encrypted" in str(problems[1])] == [True, True]


@pytest.mark.parametrize("cut", [30, 200, -1])
def test_a_zip_that_is_cut_off_is_refused(tmp_path, cut):
    (tmp_path / "a.zip").write_bytes(zip_bytes(PAIRS)[:cut])
    with pytest.raises(ArchiveError, match="no whole zip"):
        list(read_samples(tmp_path / "a.zip"))


@pytest.mark.parametrize("magic", [b"BZh91AY", b"\xfd7zXZ\0\0", b"\x28\xb5\x2f\xfd1234"])
def test_other_formats_are_named(tmp_path, magic):
    (tmp_path / "a.tar").write_bytes(magic)
    with pytest.raises(ArchiveError, match=r"tar, tar\.gz or zip, but this is"):
        list(read_samples(tmp_path / "a.tar"))


def test_errors_carry_their_fields_through_a_pipe():
    bad = pickle.loads(pickle.dumps(SampleError("a.tar", "7", "why.", "cls")))
    assert (bad.shard, bad.key, bad.reason, bad.field) == ("a.tar", "7", "why.", "cls")
    cut = pickle.loads(pickle.dumps(ArchiveError("a.tar", "why.", "7.cls", 512)))
    assert (cut.member, cut.offset, str(cut)) == (
        "7.cls",
        512,
        "a.tar, member '7.cls' at byte 512: why.",
    )
