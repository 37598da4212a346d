"""Where an estimator keeps its things: prepared data, runs and logs, each at a path or URL.

::

    <prefix>/train_data   what prepare_data wrote, or plain Parquet
            /val_data
            /runs/<run>   one directory a search: see layout.py
            /logs/<run>   TensorBoard event files

These are names only: nothing is opened or made before somebody asks. So they travel anywhere.
"""

from __future__ import annotations

import os
import posixpath
from urllib.parse import quote, unquote, urlsplit

from cerebro.errors import UsageError
from cerebro.storage.opening import open_store
from cerebro.storage.remote import Url, exists_url, read_url
from cerebro.storage.remote_names import local_path, redact, scheme_of, text_of
from cerebro.storage.store import Store

_DEFAULT_PORT = 8020


class PrefixStore:
    """Names of prepared data, runs and logs below one prefix, which is any path or URL.

    Every name is given as a URL (`file:///…` for a local one), so that Spark, executors and this
    process mean the same file by it. Equal values are equal, and can be pickled.

    Args:
        prefix_path: What is not named below lies here. Without it the directory that holds
            `train_path` is taken.
        train_path: Prepared train data; default `<prefix>/train_data`.
        val_path: Prepared validation data; default `<prefix>/val_data`.
        runs_path: Runs; default `<prefix>/runs`.
        logs_path: TensorBoard event files; default `<prefix>/logs`.
        temp_dir: Not used any more: nothing is kept on the way.

    >>> store = PrefixStore("s3://bucket/sales")
    >>> store.get_train_data_path(), store.get_run_path("search")
    ('s3://bucket/sales/train_data', 's3://bucket/sales/runs/search')
    >>> store.get_checkpoint_path("search/t0007")
    's3://bucket/sales/runs/search/trials/t0007/checkpoints'
    """

    def __init__(
        self,
        prefix_path: Url | None = None,
        train_path: Url | None = None,
        val_path: Url | None = None,
        runs_path: Url | None = None,
        logs_path: Url | None = None,
        *,
        temp_dir: Url | None = None,
    ) -> None:
        _refuse_temp_dir(temp_dir)
        given = prefix_path or _prefix_of(train_path, val_path)
        self.prefix_path = self._locate("prefix_path", given)
        self.train_path = self._below("train_path", train_path, "train_data")
        self.val_path = self._below("val_path", val_path, "val_data")
        self.runs_path = self._below("runs_path", runs_path, "runs")
        self.logs_path = self._below("logs_path", logs_path, "logs")

    @staticmethod
    def create(prefix_path: Url) -> PrefixStore:
        """The store for a prefix: an `HDFSStore` for hdfs://, a `LocalStore` for a path.

        >>> PrefixStore.create("hdfs://namenode:8020/user/ada")
        HDFSStore('hdfs://namenode:8020/user/ada')
        """
        scheme = scheme_of(text_of(prefix_path))
        if scheme == "hdfs":
            return HDFSStore(prefix_path)
        if scheme in (None, "file", "local"):
            return LocalStore(prefix_path)
        return PrefixStore(prefix_path)

    def get_train_data_path(self, idx: int | None = None) -> str:
        """Prepared train data; with a number, that of another dataset beside it."""
        return _numbered(self.train_path, idx)

    def get_val_data_path(self, idx: int | None = None) -> str:
        """Prepared validation data; with a number, that of another dataset beside it."""
        return _numbered(self.val_path, idx)

    def get_runs_path(self) -> str:
        """The directory of runs."""
        return self.runs_path

    def get_run_path(self, run_id: str) -> str:
        """The directory of one run."""
        return _join(self.runs_path, run_id)

    def get_logs_path(self, run_id: str | None = None) -> str:
        """The directory of TensorBoard's files, of one run or of all."""
        return self.logs_path if run_id is None else _join(self.logs_path, run_id)

    def get_checkpoint_path(self, run_id: str) -> str:
        """The directory of a trial's checkpoints: `run_id` is `<run>/<trial>`."""
        run, slash, trial = run_id.partition("/")
        if not slash or not trial:
            raise UsageError(
                f"checkpoints belong to a trial: give <run>/<trial>, such as 'search/t0007', "
                f"instead of {run_id!r}."
            )
        return _join(self.get_run_path(run), f"trials/{trial}/checkpoints")

    def exists(self, path: Url) -> bool:
        """Whether there is a file or directory at a path or URL."""
        return exists_url(path)

    def read(self, path: Url) -> bytes:
        """All bytes of the file at a path or URL."""
        return read_url(path)

    def open(self) -> Store:
        """The files below the prefix."""
        return open_store(self.prefix_path)

    def open_runs(self) -> Store:
        """The files below the directory of runs."""
        return open_store(self.runs_path)

    def _locate(self, argument: str, path: Url) -> str:
        """The URL of what somebody named."""
        text = text_of(path)
        local = local_path(text)
        if local is not None:
            return f"file://{quote(os.path.abspath(local))}"
        return text.rstrip("/")

    def _below(self, argument: str, path: Url | None, default: str) -> str:
        return _join(self.prefix_path, default) if path is None else self._locate(argument, path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({redact(self.prefix_path)!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))


class LocalStore(PrefixStore):
    """Names below a directory, which every machine that takes part must see (NFS, for example).

    >>> LocalStore("/mnt/shared/sales", val_path="/mnt/other/val").get_val_data_path()
    'file:///mnt/other/val'
    """

    def __init__(
        self,
        prefix_path: Url | None = None,
        train_path: Url | None = None,
        val_path: Url | None = None,
        runs_path: Url | None = None,
        temp_dir: Url | None = None,
        *,
        logs_path: Url | None = None,
    ) -> None:
        super().__init__(prefix_path, train_path, val_path, runs_path, logs_path, temp_dir=temp_dir)

    def _locate(self, argument: str, path: Url) -> str:
        if local_path(path) is None:
            raise UsageError(
                f"a LocalStore must have paths or file:// URLs, but {argument} is "
                f"{redact(text_of(path))}: use {_class_for(path)} for it."
            )
        return super()._locate(argument, path)


class HDFSStore(PrefixStore):
    """Names below a directory of HDFS: `hdfs://host:port/path`, `hdfs:///path` or `/path`.

    Without a host that of `fs.defaultFS` in the configuration under `HADOOP_CONF_DIR` is meant.
    HDFS is reached by the package hdfs-native, without a JVM.

    Args:
        prefix_path: What is not named below lies here. Without it the directory that holds
            `train_path` is taken.
        train_path: Prepared train data; default `<prefix>/train_data`.
        val_path: Prepared validation data; default `<prefix>/val_data`.
        runs_path: Runs; default `<prefix>/runs`.
        temp_dir: Not used any more.
        host: Of the NameNode, where the paths do not say.
        port: Of the NameNode; default 8020.
        user: Who to be, where HDFS asks for no proof of it.
        kerb_ticket: Not used any more: `KRB5CCNAME` names the ticket cache.
        driver: Not used any more: there is one.
        extra_conf: Not used any more: `HADOOP_CONF_DIR` names the configuration.
        logs_path: TensorBoard event files; default `<prefix>/logs`.

    >>> HDFSStore("/user/ada/sales", host="namenode").get_runs_path()
    'hdfs://namenode:8020/user/ada/sales/runs'
    >>> HDFSStore(train_path="hdfs:///data/train", val_path="hdfs:///data/val").prefix_path
    'hdfs:///data'
    """

    def __init__(
        self,
        prefix_path: Url | None = None,
        train_path: Url | None = None,
        val_path: Url | None = None,
        runs_path: Url | None = None,
        temp_dir: Url | None = None,
        host: str | None = None,
        port: int | None = None,
        user: str | None = None,
        kerb_ticket: str | None = None,
        driver: str = "libhdfs",
        extra_conf: object = None,
        *,
        logs_path: Url | None = None,
    ) -> None:
        _refuse_dropped(kerb_ticket, driver, extra_conf)
        if port is not None and host is None:
            raise UsageError(f"a port belongs to a host: give host as well as port={port}.")
        self._authority = _authority(host, port, user)
        super().__init__(prefix_path, train_path, val_path, runs_path, logs_path, temp_dir=temp_dir)

    def _locate(self, argument: str, path: Url) -> str:
        text = text_of(path)
        scheme = scheme_of(text)
        parts = urlsplit(text) if scheme == "hdfs" else None
        name = unquote(parts.path) if parts else text
        if scheme not in (None, "hdfs") or not name.startswith("/"):
            raise UsageError(
                "an HDFSStore must have hdfs://host:port/path, hdfs:///path or /path, but "
                f"{argument} is {redact(text)}."
                + ("" if scheme in (None, "hdfs") else f" Use {_class_for(path)} for it.")
            )
        authority = parts.netloc if parts and parts.netloc else self._authority
        if ":" in authority.rpartition("@")[0]:
            raise UsageError("an hdfs:// URL must have no password: HDFS knows none.")
        return f"hdfs://{authority}{posixpath.normpath(name)}"


def _class_for(path: Url) -> str:
    scheme = scheme_of(text_of(path))
    if scheme == "hdfs":
        return "HDFSStore"
    return "LocalStore" if scheme in (None, "file", "local") else "PrefixStore"


def _prefix_of(train_path: Url | None, val_path: Url | None) -> str:
    """The directory of the train data, where everything else goes if nobody says otherwise."""
    path = train_path or val_path
    if path is None:
        raise UsageError("a store needs prefix_path, or train_path and val_path: got none of them.")
    text = text_of(path).rstrip("/")
    parent = text.rpartition("/")[0]
    if not parent or parent.endswith(("/", ":")):
        raise UsageError(
            f"the directory of {redact(text)} cannot hold runs and logs: give prefix_path as well."
        )
    return parent


def _authority(host: str | None, port: int | None, user: str | None) -> str:
    who = f"{quote(user)}@" if user else ""
    if host is None:
        return who
    if scheme_of(host) is not None or "/" in host:
        raise UsageError(f"host must be a name such as 'namenode', but is {redact(host)!r}.")
    return f"{who}{host}:{port or _DEFAULT_PORT}"


def _refuse_temp_dir(temp_dir: Url | None) -> None:
    if temp_dir is not None:
        raise UsageError("temp_dir is not used any more: leave it out, nothing is kept on the way.")


def _refuse_dropped(kerb_ticket: str | None, driver: str, extra_conf: object) -> None:
    if kerb_ticket is not None:
        raise UsageError(
            "kerb_ticket is not used any more: set the environment variable KRB5CCNAME, here and "
            "for the executors."
        )
    if extra_conf:
        raise UsageError(
            "extra_conf is not used any more: put it into core-site.xml or hdfs-site.xml, and set "
            "the environment variable HADOOP_CONF_DIR, here and for the executors."
        )
    if driver not in ("libhdfs", "hdfs-native", None):
        raise UsageError(
            f"driver must be 'hdfs-native' (or 'libhdfs', which means the same now), but is "
            f"{driver!r}: leave it out."
        )


def _numbered(path: str, idx: int | None) -> str:
    return path if idx is None else f"{path}.{idx}"


def _join(url: str, name: str) -> str:
    if not name or any(part in ("", ".", "..") for part in name.split("/")):
        raise UsageError(f"a name must stay inside {redact(url)}, but got {name[:200]!r}.")
    return f"{url}/{name}"
