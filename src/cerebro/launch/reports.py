"""The pages of the runs in a directory, for reading only."""

from __future__ import annotations

import csv
import html
import json
import os
import re
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import psutil

from cerebro.errors import CerebroError
from cerebro.launch.gate import answer
from cerebro.storage import DirectoryStore, layout
from cerebro.track.text import clean, show

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

RUNS_SHOWN = 1000
_CHUNK_BYTES = 1 << 16
#: The most that is read of a file for the list.
_HEAD_BYTES = 1 << 20
_SHOWN = (layout.REPORT, layout.LEADERBOARD, layout.SUMMARY, layout.TRACE)
#: What may be asked for: results, not checkpoints, commands or logs.
_PATH = re.compile(
    r"(?P<run>[A-Za-z0-9][A-Za-z0-9._-]*)/"
    rf"(?P<file>{'|'.join(map(re.escape, _SHOWN))}"
    r"|trials/t[0-9]+/(?:params\.json|progress\.csv))",
    re.ASCII,
)
_TYPES = {".html": "text/html", ".csv": "text/csv", ".json": "application/json"}
#: A page of ours has its scripts and styles in itself and asks nobody for more.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self' http://127.0.0.1:* http://localhost:*"
)


def report_app(runs: Path) -> WSGIApplication:
    """Serves a list of runs, and the report, leaderboard, summary and trace of each.

    Nothing outside of ``runs`` is read, whatever a path or a link in it says.
    """
    store = DirectoryStore(runs)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path in ("", "/"):
            return _send_page(start_response, _index(store))
        match = _PATH.fullmatch(path[1:])
        file = None if match is None else _open(store, f"{match['run']}/{match['file']}")
        if file is None:
            return answer(start_response, "404 Not Found", "There is no such page.")
        start_response("200 OK", _headers(Path(path).suffix, os.fstat(file.fileno()).st_size))
        if environ["REQUEST_METHOD"] == "HEAD":
            file.close()
            return []
        return _chunks(file)

    return app


def _send_page(start_response: StartResponse, page: str) -> Iterable[bytes]:
    body = page.encode()
    start_response("200 OK", _headers(".html", len(body)))
    return [body]


def _headers(suffix: str, size: int) -> list[tuple[str, str]]:
    return [
        ("Content-Type", f"{_TYPES[suffix]}; charset=utf-8"),
        ("Content-Length", str(size)),
        ("Content-Security-Policy", _POLICY),
        ("Cache-Control", "no-cache"),
    ]


def _open(store: DirectoryStore, path: str) -> BinaryIO | None:
    try:
        # Checks that no link on the way leads out; the last one is not followed at all.
        full = store.local_path(path)
        descriptor = os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (CerebroError, OSError):
        return None
    file = os.fdopen(descriptor, "rb")
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return file
    file.close()
    return None


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        left = os.fstat(file.fileno()).st_size
        # A file that grows meanwhile is sent as long as was said.
        while left and (chunk := file.read(min(_CHUNK_BYTES, left))):
            left -= len(chunk)
            yield chunk


def _index(store: DirectoryStore) -> str:
    runs = [name for name in _list(store) if _has(store, f"{name}/{layout.RUN}")]
    rows = "".join(_row(store, name) for name in runs[:RUNS_SHOWN])
    more = len(runs) - RUNS_SHOWN
    rest = f"<p>and {more} more</p>" if more > 0 else ""
    head = "".join(f"<th>{name}</th>" for name in ("run", "state", "best", "last change", ""))
    table = f"<table><tr>{head}</tr>{rows}</table>{rest}" if rows else "<p>No run is there yet.</p>"
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Runs</title>'
        "<style>:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;margin:2em}"
        "td,th{padding:.15em 1.2em .15em 0;text-align:left}</style>"
        f"<h1>Runs</h1><p>{html.escape(store.local_path())}</p>{table}</html>"
    )


def _row(store: DirectoryStore, run: str) -> str:
    links = " ".join(
        f'<a href="/{html.escape(run)}/{file}">{file}</a>'
        for file in _SHOWN
        if _has(store, f"{run}/{file}")
    )
    told = (run, _state(store, run), _best(store, run), _last_change(store, run))
    cells = "".join(f"<td>{html.escape(text)}</td>" for text in told)
    return f"<tr>{cells}<td>{links}</td></tr>"


def _state(store: DirectoryStore, run: str) -> str:
    holder = _read_json(store, f"{run}/{layout.LOCK}")
    pid = holder.get("pid")
    # A driver on another host cannot be looked for, and counts as alive.
    is_far = holder.get("host") != socket.gethostname()
    if isinstance(pid, int) and 0 < pid < 2**31 and (is_far or psutil.pid_exists(pid)):
        return "running"
    return "finished" if _has(store, f"{run}/{layout.SUMMARY}") else "not finished"


def _best(store: DirectoryStore, run: str) -> str:
    """The first of the leaderboard, and what ranks it: `t0003 val_loss 0.25`."""
    spec = _read_json(store, f"{run}/{layout.RUN}").get("spec")
    metric = str(spec.get("metric")) if isinstance(spec, dict) else ""
    lines = _read(store, f"{run}/{layout.LEADERBOARD}").splitlines()
    row = next(csv.DictReader(lines[:2]), {})
    if row.get("rank") != "1" or not row.get(metric):
        return ""
    try:
        value = show(float(row[metric]))
    except ValueError:
        return ""
    return f"{clean(row.get('trial') or '', 40)}  {clean(metric, 40)} {value}"


def _last_change(store: DirectoryStore, run: str) -> str:
    file = _open(store, f"{run}/{layout.JOURNAL}")
    if file is None:
        return ""
    with file:
        changed = datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime).astimezone()
    return changed.strftime("%Y-%m-%d %H:%M")


def _read(store: DirectoryStore, path: str) -> str:
    """How a file begins; "" if there is none."""
    file = _open(store, path)
    if file is None:
        return ""
    with file:
        return file.read(_HEAD_BYTES).decode(errors="replace")


def _read_json(store: DirectoryStore, path: str) -> Mapping[str, Any]:
    try:
        found = json.loads(_read(store, path))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _list(store: DirectoryStore) -> Sequence[str]:
    try:
        return store.list()
    except CerebroError:
        return []


def _has(store: DirectoryStore, path: str) -> bool:
    try:
        return store.exists(path)
    except CerebroError:
        return False
