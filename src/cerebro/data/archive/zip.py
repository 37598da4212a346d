"""Zip archives, member by member; nothing is written to disk."""

from __future__ import annotations

import stat
import zipfile
from collections.abc import Iterator
from typing import BinaryIO

from cerebro.data.archive.errors import ArchiveError, reason_of
from cerebro.data.archive.members import HARMLESS_BYTES, Limits, Member, too_large

_ENCRYPTED = 0x1


def iter_zip(stream: BinaryIO, shard: str, limits: Limits) -> Iterator[Member]:
    """The files of a zip, in the order of its directory.

    Raises `ArchiveError` where it is damaged. The directory is at the end of a zip: of one that is
    cut off, nothing can be read.
    """
    if not stream.seekable():
        raise ArchiveError(
            shard,
            "a zip has its directory at the end, but this source can only be read from the "
            "beginning. Copy it to a file first, or use tar.",
        )
    try:
        size = stream.seek(0, 2)
        archive = zipfile.ZipFile(stream)
    except Exception as error:
        raise ArchiveError(
            shard, f"it is no whole zip: {reason_of(error)}. Copy or write it again."
        ) from error
    with archive:
        members = archive.infolist()
        if sum(member.compress_size for member in members) > size:
            raise ArchiveError(shard, "its members overlap, which only bombs do.")
        for member in members:
            if not member.filename:
                raise ArchiveError(shard, "a member has no name. Copy or write it again.")
            if not member.is_dir():
                yield _read(archive, member, shard, limits)


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo, shard: str, limits: Limits) -> Member:
    fault = _fault(info, limits)
    if fault is not None:
        return Member(info.filename, info.header_offset, fault=fault)
    try:
        with archive.open(info) as file:
            data = file.read()
    except Exception as error:
        reason = f"it cannot be read: {reason_of(error)}. Copy or write the archive again."
        raise ArchiveError(shard, reason, info.filename, info.header_offset) from error
    if len(data) != info.file_size:
        reason = f"{info.file_size} bytes are declared, but {len(data)} are there."
        raise ArchiveError(shard, reason, info.filename, info.header_offset)
    return Member(info.filename, info.header_offset, data)


def _fault(info: zipfile.ZipInfo, limits: Limits) -> str | None:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        return "a sample must be made of plain files, but this is a link or a device."
    if info.flag_bits & _ENCRYPTED:
        return "a file in an archive must not be encrypted, but this one is."
    if info.file_size > limits.max_member_bytes:
        return too_large(info.file_size, limits)
    ratio = info.file_size // max(info.compress_size, 1)
    if info.file_size > HARMLESS_BYTES and ratio > limits.max_ratio:
        return (
            f"a file may get at most {limits.max_ratio} times as large when it is unpacked, but "
            f"this one would {ratio} times. Raise max_ratio if that is right."
        )
    return None
