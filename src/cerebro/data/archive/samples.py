"""Samples of archives: neighbours with one name up to the first dot, read as a stream."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from cerebro.data.archive.errors import ArchiveError, OnError, SampleError, quote, raise_error
from cerebro.data.archive.members import Limits, Member
from cerebro.data.archive.opening import redact
from cerebro.data.archive.spec import ShardSource, Spec, expand
from cerebro.data.archive.stream import iter_members

#: Fields by name, and the sample's `__key__` and `__source__`.
Sample: TypeAlias = dict[str, object]
#: Makes values of a sample's bytes; `SampleError` if it cannot.
Decode: TypeAlias = Callable[[Sample], Sample]


def read_samples(
    spec: Spec,
    *,
    decode: Decode | None = None,
    on_error: OnError = raise_error,
    seed: int = 0,
    limits: Limits | None = None,
) -> Iterator[Sample]:
    """The samples of all shards that a spec stands for, in order.

    Args:
        spec: As `expand` takes it.
        decode: What makes values of bytes, such as `Decoder()`; without it fields are bytes.
        on_error: Gets every `SampleError` and `ArchiveError`. Returns to go on without that sample,
            respectively without the rest of that shard; by default the error is raised.
        seed: Chooses among the replicas of each shard.
        limits: What an archive may ask for.

    >>> import io, tarfile
    >>> with tarfile.open("a.tar", "w") as tar:
    ...     for name, data in {"7.cls": b"3", "7.txt": b"seven"}.items():
    ...         member = tarfile.TarInfo(name)
    ...         member.size = len(data)
    ...         tar.addfile(member, io.BytesIO(data))
    >>> list(read_samples("a.tar"))
    [{'__key__': '7', '__source__': 'a.tar', 'cls': b'3', 'txt': b'seven'}]
    """
    for source in expand(spec):
        yield from read_shard(source, decode=decode, on_error=on_error, seed=seed, limits=limits)


def read_shard(
    source: ShardSource,
    *,
    decode: Decode | None = None,
    on_error: OnError = raise_error,
    seed: int = 0,
    limits: Limits | None = None,
) -> Iterator[Sample]:
    """The samples of one shard; the arguments are those of `read_samples`.

    A replica that cannot be opened or breaks off is given up for the next one, which goes on
    behind the last sample that was read: every sample comes once.
    """
    limits = limits or Limits()
    progress = _Progress(source)
    failures: list[ArchiveError] = []
    urls = source.replicas(seed)
    for url in urls:
        groups = _iter_groups(url, limits, is_last_hope=url == urls[-1])
        try:
            for sample in progress.resume(groups, redact(url)):
                made = _use(sample, decode, on_error)
                if made is not None:
                    yield made
        except ArchiveError as error:
            failures.append(error)
        else:
            return
    on_error(_combined(failures))


class _Progress:
    """How far a shard is, whichever replica it is read from."""

    def __init__(self, source: ShardSource) -> None:
        self._source = source
        self._samples = 0
        self._last_key: str | None = None

    def resume(
        self, groups: Iterable[Sample | SampleError], shard: str
    ) -> Iterator[Sample | SampleError]:
        """What comes behind what an earlier replica gave."""
        behind = self._samples
        number = 0
        for number, group in enumerate(groups, start=1):
            key = group.key if isinstance(group, SampleError) else str(group["__key__"])
            if number == behind and key != self._last_key:
                raise ArchiveError(
                    shard,
                    f"replicas must hold the same samples, but sample {number - 1} is "
                    f"{quote(key)} here and {quote(self._last_key)} in another one.",
                )
            if number > behind:
                self._samples, self._last_key = number, key
                yield group
        declared = self._source.samples
        if number < behind or (declared is not None and number != declared):
            wanted = behind if declared is None else declared
            raise ArchiveError(shard, f"it must hold {wanted} samples, but holds {number}.")


def _use(sample: Sample | SampleError, decode: Decode | None, on_error: OnError) -> Sample | None:
    if isinstance(sample, SampleError):
        on_error(sample)
        return None
    if decode is None:
        return sample
    try:
        return decode(sample)
    except SampleError as error:
        on_error(error)
        return None


def _combined(failures: list[ArchiveError]) -> ArchiveError:
    if len(failures) == 1:
        return failures[0]
    told = "; ".join(str(failure) for failure in failures)
    return ArchiveError(
        failures[0].shard, f"none of its {len(failures)} replicas can be read to the end: {told}"
    )


def _iter_groups(url: str, limits: Limits, *, is_last_hope: bool) -> Iterator[Sample | SampleError]:
    """Samples as they stand in the archive; for one that is wrong, the reason."""
    shard = redact(url)
    seen: set[str] = set()
    group: _Group | None = None
    try:
        with contextlib.closing(iter_members(url, limits, is_last_hope=is_last_hope)) as members:
            for member in members:
                name = member.name.removeprefix("./")
                if is_metadata(name):
                    continue
                key, field, fault = split_name(name)
                if group is None or group.key != key:
                    if group is not None:
                        yield group.finish()
                    group = _Group(shard, key, seen, limits)
                group.add(field, member, fault)
    except ArchiveError as error:
        # Where the next sample has begun, the one before is whole.
        begun = split_name((error.member or "").removeprefix("./"))[0]
        if group is not None and begun not in ("", group.key):
            yield group.finish()
        raise
    if group is not None:
        yield group.finish()


class _Group:
    """The files of one sample, as they come."""

    def __init__(self, shard: str, key: str, seen: set[str], limits: Limits) -> None:
        self.key = key
        self._shard = shard
        self._limits = limits
        self._sample: Sample = {"__key__": key, "__source__": shard}
        self._error: SampleError | None = None
        if key and key in seen:
            self._fail(
                "the files of a sample must stand together and a key come once, but this one came "
                "before. Pack the files sorted by name, for instance with `tar --sort=name`."
            )
        seen.add(key)

    def add(self, field: str, member: Member, fault: str | None) -> None:
        fault = fault or member.fault
        if fault is None and field in self._sample:
            fault = f"a field must come once, but {quote(member.name)} comes after another one."
        if fault is None and len(self._sample) >= self._limits.max_fields + 2:
            fault = f"a sample may have at most {self._limits.max_fields} fields, but has more."
        if fault is not None:
            self._fail(fault, field or None)
        elif self._error is None:
            self._sample[field] = member.data

    def finish(self) -> Sample | SampleError:
        return self._error or self._sample

    def _fail(self, reason: str, field: str | None = None) -> None:
        # What was gathered is of no use any more.
        self._sample.clear()
        self._error = self._error or SampleError(self._shard, self.key, reason, field)


def split_name(name: str) -> tuple[str, str, str | None]:
    """The key and the field that a file's name means, and what is wrong with it if anything is.

    >>> split_name("v1.0/cat7.Seg.PNG")
    ('v1.0/cat7', 'seg.png', None)
    """
    folder, slash, base = name.rpartition("/")
    stem, dot, extension = base.partition(".")
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or "\0" in name:
        return name, "", f"a name must stay inside its archive, but got {quote(name)}."
    if not stem:
        fault = f"a name must have something before its first dot, but got {quote(name)}."
        return name, "", f"{fault} Leave hidden files out."
    if not dot or not extension:
        fault = f"a name must have an extension, which names the field, but got {quote(name)}."
        return name, "", f"{fault} Rename the file or leave it out."
    return folder + slash + stem, extension.lower(), None


def is_metadata(name: str) -> bool:
    """Whether a file is about the archive and no part of a sample.

    >>> is_metadata("__index__.json"), is_metadata("__MACOSX/a.jpg"), is_metadata("__cat__/a.jpg")
    (True, True, False)
    """
    return name.rpartition("/")[2].startswith("__") or name.startswith("__MACOSX/")
