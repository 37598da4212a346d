"""The files of a data set, fetched from where it is published."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from cerebro.data.named.finding import home
from cerebro.data.named.kinds import NamedData, OriginFile
from cerebro.data.named.waiting import sole_maker
from cerebro.errors import DataError, StoreError, UsageError
from cerebro.storage.disk import Disk
from cerebro.storage.remote import redact
from cerebro.storage.store import explain

#: Called as bytes of a file come: its name, how many there are, how many there will be if known.
Progress: TypeAlias = Callable[[str, int, int | None], None]

_CHUNK = 1 << 20
_SILENCE_S = 60.0
_TRIES = 4
_LOCK = ".get.lock"


def get(
    data: NamedData,
    into: str | os.PathLike[str] | None = None,
    base: str | None = None,
    *,
    progress: Progress = lambda name, done, total: None,
    say: Callable[[str], None] = lambda text: None,
    pause_s: float = 1.0,
) -> str:
    """Fetch what is not there yet of a data set; the folder it is in.

    Files get their names when they are whole and have the checksum that was published. What a
    broken connection or a killed process left is gone on with. Several processes at once fetch
    each file once.

    Args:
        data: One of `DATASETS`.
        into: The folder for data sets, in which it gets a folder with its name; by default
            `$CEREBRO_DATA` or `~/.cerebro/data`.
        base: Another address below which the same files are.
        progress: Hears of bytes as they come.
        say: Hears of waiting for another process.
        pause_s: How long to wait before a broken connection is made again.

    Raises:
        UsageError: the data set is not to be fetched, or the address is none.
        StoreError: the address cannot be reached, or what was got cannot be written.
        DataError: a file is not the one that was published.
    """
    if data.origin is None:
        raise UsageError(_nowhere(data))
    address = (base or data.origin.url).rstrip("/")
    if urllib.parse.urlsplit(address).scheme not in ("http", "https"):
        raise UsageError(f"an address begins with http:// or https://, but got {redact(address)}.")
    folder = os.path.join(os.path.abspath(os.path.expanduser(into or home())), data.name)
    with sole_maker(folder, _LOCK, f"{data.name} in {folder}", lambda: False, say):
        disk = Disk()
        try:
            for file in data.origin.files:
                _Fetch(file, folder, f"{address}/{file.name}", progress, pause_s, disk).run()
        finally:
            disk.close()
    return folder


def _nowhere(data: NamedData) -> str:
    if data.given_by:
        return (
            f"{data.name} has no source that all may read: get it yourself, and name its folders "
            f"with {' and '.join(data.given_by.values())}."
        )
    return f"{data.name} is made when it is prepared: there is nothing to get."


@dataclass(frozen=True, slots=True)
class _Fetch:
    """One file on its way."""

    file: OriginFile
    folder: str
    url: str
    progress: Progress
    pause_s: float
    disk: Disk

    @property
    def path(self) -> str:
        return os.path.join(self.folder, self.file.name)

    @property
    def part(self) -> str:
        """What has come so far."""
        return os.path.join(self.folder, f".{self.file.name}.part")

    def run(self) -> None:
        if os.path.exists(self.path):
            self._check(self.path, f"{self.path} must be the published file", "Remove it.")
            return
        self._fetch_all()
        try:
            self._check(
                self.part,
                f"{redact(self.url)} must give the published file",
                "Nothing is kept: try again, or another address with --from.",
            )
        except DataError:
            self._forget()
            raise
        try:
            self.disk.sync(self.part)
            self.disk.rename(self.part, self.path)
            self.disk.sync_dir(self.folder)
        except OSError as error:
            raise explain(error, "write", self.path, 0) from error

    def _check(self, path: str, must: str, todo: str) -> None:
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, _md5).hexdigest()
        if found != self.file.md5:
            raise DataError(f"{must}: its MD5 must be {self.file.md5}, but is {found}. {todo}")

    def _fetch_all(self) -> None:
        """Until the file is whole, however often the connection breaks."""
        failed = 0
        while failed < _TRIES:
            before = self._size()
            try:
                if self._fetch_rest(before):
                    return
                why = "the connection broke"
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and before:
                    failed += 1
                    self._forget()
                    continue
                if error.code < http.HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise self._unreachable(f"it answers {error.code} {error.reason}") from error
                why = f"it answers {error.code} {error.reason}"
            except urllib.error.URLError as error:
                raise self._unreachable(str(error.reason)) from error
            except StoreError:
                raise
            except (http.client.HTTPException, OSError) as error:
                why = str(error) or type(error).__name__
            # One that came further begins to count anew.
            failed = 1 if self._size() > before else failed + 1
            if failed < _TRIES:
                time.sleep(self.pause_s)
        raise self._unreachable(f"{why}, {_TRIES} times")

    def _fetch_rest(self, start: int) -> bool:
        """Get what is missing of the file; whether it is whole."""
        request = urllib.request.Request(self.url)  # noqa: S310 - http or https, see `get`
        if start:
            request.add_header("Range", f"bytes={start}-")
        with urllib.request.urlopen(request, timeout=_SILENCE_S) as answer:  # noqa: S310
            if start and answer.status != http.HTTPStatus.PARTIAL_CONTENT:
                start = 0
            length = answer.headers.get("Content-Length")
            total = start + int(length) if length and length.isdigit() else None
            if start == 0:
                self._forget()
            done = start
            while chunk := answer.read(_CHUNK):
                self._append(chunk)
                done += len(chunk)
                self.progress(self.file.name, done, total)
        return total is None or done == total

    def _append(self, chunk: bytes) -> None:
        try:
            self.disk.append(self.part, chunk)
        except OSError as error:
            raise explain(error, "write", self.part, len(chunk)) from error

    def _forget(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.disk.remove(self.part)

    def _size(self) -> int:
        try:
            return os.stat(self.part).st_size
        except FileNotFoundError:
            return 0

    def _unreachable(self, why: str) -> StoreError:
        kept = " What has come is kept: the same command goes on with it." if self._size() else ""
        return StoreError(
            f"{self.file.name} could not be fetched from {redact(self.url)}: {why}.{kept} If this "
            f"machine reaches no network, put the file into {self.folder} yourself."
        )


def _md5() -> hashlib._Hash:
    """What publishers of data sets give: against damage, not against malice."""
    return hashlib.md5(usedforsecurity=False)
