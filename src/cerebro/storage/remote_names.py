"""Names of files anywhere: which are local, what lies below a directory, what may be shown."""

from __future__ import annotations

import os
import re
from typing import TypeAlias
from urllib.parse import quote, unquote, urlsplit

from cerebro.errors import UsageError

Url: TypeAlias = str | os.PathLike[str]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(?:://|::)")
#: A secret may hold slashes when it comes after a colon; a name may hold an @ of its own.
_USER = re.compile(r"://(?:[^\s@:]*:(?!:)[^\s@]*|[^\s@/]*)@")
#: Whose URLs name a user or a container before an @, which is no secret.
_NAMED = {"abfs", "abfss", "hdfs", "sftp", "smb", "ssh", "viewfs", "webhdfs"}
_READ_ONLY = {"data", "ftp", "git", "github", "http", "https", "tar", "zip"}
_QUERY = re.compile(r"(://[^\s?#'\"]*)[?#][^\s'\"]*")


def is_remote(url: Url) -> bool:
    """Whether a file has to be fetched before it can be used in place.

    >>> is_remote("s3://bucket/train.csv"), is_remote("file:///data"), is_remote("data/train.csv")
    (True, False, False)
    """
    return local_path(url) is None


def local_path(url: Url) -> str | None:
    """The path of a local name or `file://` URL; None for one that is elsewhere.

    >>> local_path("file:///data/a%20b.csv"), local_path("s3://bucket/a.csv")
    ('/data/a b.csv', None)
    """
    text = text_of(url)
    scheme = scheme_of(text)
    if scheme is None:
        return os.path.expanduser(text)
    if scheme not in ("file", "local"):
        return None
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not parts.path:
        raise UsageError(
            "a file:// URL must be file:///absolute/path, without host, query or fragment."
        )
    return unquote(parts.path)


def redact(url: Url) -> str:
    """The URL, or a text with URLs in it, without what may be secret.

    >>> redact("https://ada:1815@host/train.csv?token=abc")
    'https://***@host/train.csv?***'
    """
    return _QUERY.sub(r"\1?***", _USER.sub("://***@", os.fspath(url)))


def join(url: Url, name: str) -> str:
    """The file `name` below a directory; a name that leads out of it is refused.

    The names come from tables that others may have written. Links inside a local directory are
    its owner's, and followed.

    >>> join("s3://bucket/images", "cat/1.png"), join("https://host/images?v=2", "a b.png")
    ('s3://bucket/images/cat/1.png', 'https://host/images/a%20b.png?v=2')
    >>> join("images", "../../etc/passwd")
    Traceback (most recent call last):
    cerebro.errors.UsageError: a name must stay inside images, but got '../../etc/passwd'.
    """
    root = local_path(url)
    if not _stays_inside(name):
        raise UsageError(f"a name must stay inside {redact(url)}, but got {name[:200]!r}.")
    if root is not None:
        return os.path.join(root, name)
    text = text_of(url)
    if scheme_of(text) not in ("http", "https"):
        return f"{text.rstrip('/')}/{name}"
    parts = urlsplit(text)
    # Quoted, an encoded ".." stays a strange name instead of becoming a way out.
    return parts._replace(path=f"{parts.path.rstrip('/')}/{quote(name)}").geturl()


def check_store_url(url: str) -> str:
    """The URL of a store, if it can be one and holds no secret.

    >>> check_store_url("s3://bucket/runs/")
    's3://bucket/runs'
    """
    text = text_of(url).rstrip("/")
    scheme, parts = scheme_of(text), urlsplit(text)
    if scheme is None or scheme in _READ_ONLY or "::" in text:
        raise UsageError(
            f"a store must be a path or the URL of a file system that can be written, but got "
            f"{redact(text)}."
        )
    user, at, _ = parts.netloc.rpartition("@")
    if parts.query or parts.fragment or (at and (":" in user or scheme not in _NAMED)):
        raise UsageError(
            f"the URL of a store must hold no credentials, but {redact(text)} may. Give them where "
            f"the client of {scheme}:// looks for them: environment variables, its configuration."
        )
    return text


def _stays_inside(name: str) -> bool:
    parts = name.replace("\\", "/").split("/")
    return (
        "\0" not in name
        and _SCHEME.match(name) is None
        and not re.match(r"[A-Za-z]:[/\\]", name)
        and all(part not in ("", ".", "..") for part in parts)
    )


def scheme_of(text: str) -> str | None:
    """The protocol of a URL in lower case; None for a plain path."""
    found = _SCHEME.match(text)
    return found[1].lower() if found else None


def text_of(url: Url) -> str:
    """The URL as text, if it can be one."""
    text = os.fspath(url)
    if not isinstance(text, str) or not text or "\0" in text:
        raise UsageError(f"a path or URL must be text without NUL, but got {text!r}.")
    return text
