"""Files anywhere: a local path or any URL fsspec knows (s3://, gs://, hdfs://, https://, ...).

Errors never repeat what may be a secret in a URL: user names, passwords, queries.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import os
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, BinaryIO, TypeVar, cast

import fsspec
from fsspec.registry import known_implementations

from cerebro.errors import MissingDependencyError, StoreError, UsageError
from cerebro.storage import remote_hdfs
from cerebro.storage.remote_names import (
    Url,
    is_remote,
    join,
    local_path,
    redact,
    scheme_of,
    text_of,
)
from cerebro.storage.remote_retry import Retry, is_missing
from cerebro.storage.store import explain

__all__ = [
    "Retry",
    "Url",
    "copy_to_url",
    "exists_url",
    "fetch",
    "fetch_many",
    "glob_url",
    "is_remote",
    "join",
    "list_url",
    "local_path",
    "open_url",
    "read_url",
    "redact",
]

_T = TypeVar("_T")

#: Protocol -> the package to install; fsspec has a line of its own for all others.
_PACKAGES = {
    **dict.fromkeys(("abfs", "abfss", "az"), "adlfs"),
    **dict.fromkeys(("gcs", "gs"), "gcsfs"),
    **dict.fromkeys(("http", "https"), "aiohttp"),
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
    "hdfs": "hdfs-native",
    "smb": "smbprotocol",
    "webhdfs": "requests",
}
#: File systems that show a file while it is being written, and can rename.
RENAMING = {"hdfs", "sftp", "smb", "ssh", "webhdfs"}
_CONNECT_S, _SILENCE_S = 30.0, 60.0
_COPY_BYTES = 1 << 20
_WINDOW = 4


def open_url(url: Url, *, retry: Retry | None = None) -> BinaryIO:
    """A stream of a file's bytes. Only opening it is tried again; see `read_url` and `fetch`."""
    path = local_path(url)
    if path is not None:
        return attempt("open", url, None, lambda: cast(BinaryIO, open(path, "rb")))
    return attempt("open", url, retry, lambda: cast(BinaryIO, _open_remote(url)))


def read_url(url: Url, *, retry: Retry | None = None) -> bytes:
    """All bytes of a file.

    >>> copy_to_url(__file__, "memory://docs/remote.py")
    >>> len(read_url("memory://docs/remote.py")) == os.path.getsize(__file__)
    True
    """
    if not is_remote(url):
        with open_url(url) as stream:
            return attempt("read", url, None, stream.read)

    def read() -> bytes:
        fs, path = open_filesystem(url)
        return bytes(fs.cat_file(path))

    return attempt("read", url, retry, read)


def exists_url(url: Url, *, retry: Retry | None = None) -> bool:
    """Whether a file or directory is there. One that cannot be reached is an error, not missing."""
    path = local_path(url)
    if path is not None:
        return os.path.exists(path)

    def look() -> bool:
        fs, name = open_filesystem(url)
        try:
            fs.info(name)
        except (FileNotFoundError, NotADirectoryError) as error:
            if is_missing(error):
                return False
            raise
        return True

    return attempt("look for", url, retry, look)


def list_url(url: Url, *, retry: Retry | None = None) -> list[str]:
    """The names in a directory, sorted."""
    path = local_path(url)
    if path is not None:
        return attempt("list", url, None, lambda: sorted(os.listdir(path)))

    def names() -> list[str]:
        fs, name = open_filesystem(url)
        fs.invalidate_cache(name)
        found = (str(entry).rstrip("/") for entry in fs.ls(name, detail=False))
        return sorted({entry.rsplit("/", 1)[-1] for entry in found} - {""})

    return attempt("list", url, retry, names)


def glob_url(url: Url, *, retry: Retry | None = None) -> list[str]:
    """All files whose names match a pattern with `*`, `?` or `[...]`, sorted.

    >>> for name in "ba":
    ...     copy_to_url(__file__, f"memory://globs/{name}.csv")
    >>> glob_url("memory://globs/*.csv")
    ['memory:///globs/a.csv', 'memory:///globs/b.csv']
    """

    def names() -> list[str]:
        fs, pattern = open_filesystem(url)
        fs.invalidate_cache()
        found = [str(name) for name in fs.glob(pattern)]
        return sorted(found if not is_remote(url) else map(fs.unstrip_protocol, found))

    return attempt("list", url, retry, names)


def fetch(url: Url, target: str | os.PathLike[str], *, retry: Retry | None = None) -> None:
    """Copy a file to a local one, which appears whole or not at all."""
    goal = os.path.abspath(os.fspath(target))
    directory = os.path.dirname(goal)
    source = local_path(url)
    with _explained("write", goal):
        os.makedirs(directory, exist_ok=True)
        # Named as the store names what it writes, so that the same broom sweeps it up.
        descriptor, temp = tempfile.mkstemp(prefix=f".tmp-{os.getpid()}-0-", dir=directory)
        os.fchmod(descriptor, 0o644)
        os.close(descriptor)

    def download() -> None:
        if source is not None:
            shutil.copyfile(source, temp)
            return
        fs, path = open_filesystem(url)
        fs.get_file(path, temp)

    try:
        attempt("fetch", url, None if source is not None else retry, download)
        with _explained("write", goal):
            _sync(temp)
            os.replace(temp, goal)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temp)


def fetch_many(
    pairs: Iterable[tuple[Url, str | os.PathLike[str]]],
    *,
    threads: int = 16,
    retry: Retry | None = None,
    keep_going: bool = False,
) -> dict[str, StoreError]:
    """Copy many files to local ones, several at a time.

    The first that fails, in the order given, ends it with its error. With `keep_going` all others
    are fetched as well, and the errors are returned by the URLs they belong to.

    >>> with tempfile.TemporaryDirectory() as directory:
    ...     fetch_many([(__file__, f"{directory}/{n}.py") for n in range(3)])
    ...     sorted(os.listdir(directory))
    {}
    ['0.py', '1.py', '2.py']
    """
    if threads < 1:
        raise UsageError(f"`threads >= 1` must hold, but got threads={threads}.")
    stop = threading.Event()
    policy = retry or Retry()
    if policy.sleep is time.sleep:
        policy = replace(policy, sleep=stop.wait)  # not to wait for what nobody wants any more

    def fetch_one(url: Url, target: str | os.PathLike[str]) -> None:
        if not stop.is_set():
            fetch(url, target, retry=policy)

    failures: dict[str, StoreError] = {}
    pool = ThreadPoolExecutor(threads, thread_name_prefix="cerebro-fetch")
    try:
        for url, done in _in_flight(pool, fetch_one, pairs, threads * _WINDOW):
            try:
                done.result()
            except StoreError as error:
                if not keep_going:
                    raise
                failures[os.fspath(url)] = error
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)
    return failures


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _in_flight(
    pool: ThreadPoolExecutor,
    action: Callable[[Url, str | os.PathLike[str]], None],
    pairs: Iterable[tuple[Url, str | os.PathLike[str]]],
    limit: int,
) -> Iterator[tuple[Url, Future[None]]]:
    """The calls in the order given, no more than `limit` of them ahead of the caller."""
    waiting: deque[tuple[Url, Future[None]]] = deque()
    for url, target in pairs:
        waiting.append((url, pool.submit(action, url, target)))
        if len(waiting) >= limit:
            yield waiting.popleft()
    yield from waiting


def copy_to_url(local: str | os.PathLike[str], url: Url, *, retry: Retry | None = None) -> None:
    """Copy a local file to a URL, where it appears whole or not at all."""
    if not is_remote(url):
        fetch(local, cast(str, local_path(url)))
        return

    def upload() -> None:
        fs, path = open_filesystem(url)
        fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        if scheme_of(text_of(url)) not in RENAMING:
            fs.put_file(os.fspath(local), path)
            return
        folder, name = path.rsplit("/", 1)
        temp = f"{folder}/.tmp-{os.getpid()}-{threading.get_ident()}-{name}"
        fs.put_file(os.fspath(local), temp)
        if fs.exists(path):
            fs.rm_file(path)  # not all of them rename over a file
        fs.mv(temp, path)

    attempt("write", url, retry, upload)


def open_filesystem(url: Url, **options: object) -> tuple[Any, str]:
    """The file system of a URL and the name inside it."""
    text = text_of(url)
    scheme = scheme_of(text) or "file"
    if scheme == "hdfs":
        remote_hdfs.refuse_forked()
    try:
        if scheme == "hdfs":
            importlib.import_module("hdfs_native")  # else fsspec looks for a JVM
            options |= remote_hdfs.SETTINGS
        if scheme in ("http", "https"):
            options["client_kwargs"] = {"timeout": _http_timeout()}
        fs, path = fsspec.core.url_to_fs(text, **options)
        if scheme == "hdfs":
            remote_hdfs.keep(fs.client)
    except ImportError as error:
        raise MissingDependencyError(_install_hint(scheme, error)) from error
    except ValueError as error:
        if scheme in known_implementations:
            raise UsageError(f"{redact(text)} is not a URL: {_reason(error, text)}.") from None
        close = difflib.get_close_matches(scheme, known_implementations, n=1)
        raise UsageError(
            f"unknown protocol {scheme!r} in {redact(text)}."
            + (f" Did you mean {close[0]!r}?" if close else " Known are those of fsspec.")
        ) from None
    return fs, str(path)


def _http_timeout() -> object:
    """No limit for a file as a whole: the client's own, five minutes, is too short for large ones.

    Only fsspec loads the client for the rest, so it is not imported at the top.
    """
    client = importlib.import_module("aiohttp")
    return client.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)


def _install_hint(scheme: str, error: ImportError) -> str:
    package = _PACKAGES.get(scheme)
    if package is None:
        said = known_implementations.get(scheme, {}).get("err", str(error))
        return f"{scheme}:// needs a package that is not installed: {said}."
    return f"{scheme}:// needs {package}. Install it with `pip install {package}`."


def _open_remote(url: Url) -> Any:
    fs, path = open_filesystem(url)
    return fs.open(path, "rb")


def attempt(action: str, url: Url, retry: Retry | None, call: Callable[[], _T]) -> _T:
    """Call, again where that may help, and explain what went wrong in the end."""
    text = text_of(url)
    if not is_remote(text):
        with _explained(action, text):
            return call()
    try:
        return (retry or Retry()).run(redact(text), call)
    except (UsageError, StoreError):
        raise
    except Exception as error:
        explained = _explain_remote(error, action, text)
        # The error of a client may repeat the URL with everything in it.
        raise explained from (error if redact(text) == text else None)


def _explain_remote(error: Exception, action: str, text: str) -> StoreError:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return explain(error, action, tempfile.gettempdir(), 0)
    missing = is_missing(error)
    advice = "Check the name" if missing else "Check that it is there and that you may use it"
    reason = "there is no such file" if missing else _reason(error, text)
    explained = StoreError(
        f"cannot {action} {redact(text)}: {reason}. {advice}, then run the same command again."
    )
    explained.errno = errno.ENOENT if missing else getattr(error, "errno", None)
    return explained


def _reason(error: BaseException, text: str) -> str:
    said = str(error).replace(text, redact(text)).rstrip(".")
    return redact(said) or type(error).__name__


@contextlib.contextmanager
def _explained(action: str, path: str) -> Iterator[None]:
    try:
        yield
    except (UsageError, StoreError):
        raise
    except OSError as error:
        raise explain(error, action, path, 0) from error
