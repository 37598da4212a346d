"""The inbox of a run: what people want of it while it goes on, one file a command.

Anybody may put a file there, each whole or not at all; only the driver takes them out, once its
journal has them. So people who steer at once never write the same file.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import getpass
import hashlib
import json
import math
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import NamedTuple, NoReturn, Self, cast

from cerebro.errors import StoreError, UsageError
from cerebro.storage import layout
from cerebro.storage.bell import ring
from cerebro.storage.store import DirectoryStore, Store
from cerebro.types import Json

FORMAT = 1
MAX_BYTES = 65_536
MAX_FILES = 10_000

_NAME = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]{0,94})\.json", re.ASCII)
_ID = re.compile(r"\d{8}T\d{6}\.\d{9}Z-[0-9a-f]{16}", re.ASCII)
#: A file that was changed so lately may be half written, by hand.
_SETTLED_S = 2.0


class Verb(enum.StrEnum):
    """What a command does."""

    #: End a trial, or all that are not through.
    STOP = "stop"
    PAUSE = "pause"
    UNPAUSE = "unpause"
    #: A new trial with other params, with a trial's state or without.
    CLONE = "clone"
    #: Train a trial longer, or all that are finished.
    EXTEND = "extend"
    #: A new trial.
    ADD = "add"


class _Takes(NamedTuple):
    """What a command is about; a trial is needed, possible or (None) not."""

    trial: bool | None
    params: bool = False
    epochs: bool = False


_TAKES = {
    Verb.STOP: _Takes(trial=False),
    Verb.PAUSE: _Takes(trial=True),
    Verb.UNPAUSE: _Takes(trial=True),
    Verb.CLONE: _Takes(trial=True, params=True),
    Verb.EXTEND: _Takes(trial=False, epochs=True),
    Verb.ADD: _Takes(trial=None, params=True),
}


def _new_id() -> str:
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    when = time.strftime("%Y%m%dT%H%M%S", time.gmtime(seconds))
    return f"{when}.{nanoseconds:09d}Z-{secrets.token_hex(8)}"


def _sender() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}:{os.getpid()}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What somebody wants of a run. ``UsageError`` if it cannot mean anything.

    >>> command = Command(command=Verb.CLONE, trial=3, params={"lr": 0.01})
    >>> Command.from_json(command.to_json(), command.id) == command
    True
    """

    command: Verb
    #: None: all trials that it can be about.
    trial: int | None = None
    #: Of a clone those that differ, of a new trial all.
    params: Mapping[str, Json] = field(default_factory=dict)
    #: How many are to be behind the trial in the end.
    epochs: int | None = None
    #: Whether a clone goes on with the state of the trial.
    is_warm: bool = True
    #: user@host:pid
    by: str = field(default_factory=_sender)
    time: str = field(default_factory=_now)
    #: Unique: a command that the journal has is not carried out again. Ids sort by time.
    id: str = field(default_factory=_new_id)

    def __post_init__(self) -> None:
        _check_types(self)
        takes, verb = _TAKES[self.command], f"the command {self.command}"
        if self.trial is None and takes.trial:
            raise UsageError(f"{verb} needs a trial: give its number.")
        if self.trial is not None and takes.trial is None:
            raise UsageError(f"{verb} takes no trial, but got {self.trial}: leave it out.")
        if self.params and not takes.params:
            names = ", ".join(map(repr, self.params))
            raise UsageError(f"{verb} takes no params, but got {names[:200]}: leave them out.")
        if self.epochs is None and takes.epochs:
            raise UsageError(f"{verb} needs epochs: how many are to be behind a trial.")
        if self.epochs is not None and not takes.epochs:
            raise UsageError(f"{verb} takes no epochs, but got {self.epochs}: leave them out.")

    def to_json(self) -> dict[str, Json]:
        return {"format": FORMAT, **cast("dict[str, Json]", asdict(self))}

    @classmethod
    def from_json(cls, value: object, id: str) -> Self:
        """The command that a file says; what it leaves out but the verb has its default.

        Raises:
            UsageError: it is no command, or one of another version.
        """
        if not isinstance(value, dict):
            raise UsageError(f"a command must be a JSON object, but got {_show(value)}.")
        known = {"format", *(item.name for item in fields(cls))}
        if unknown := value.keys() - known:
            raise UsageError(
                f"a command may have {', '.join(sorted(known))}, but got "
                f"{_show(sorted(unknown)[0])}: leave it out."
            )
        if (version := value.get("format", FORMAT)) != FORMAT:
            raise UsageError(
                f"a command must have format {FORMAT}, but has {_show(version)}: another version "
                "of Cerebro wrote it. Use the one that runs."
            )
        given = {"id": id, "by": "unknown", **value}
        given.pop("format", None)
        if not isinstance(given.get("command"), str) or given["command"] not in list(Verb):
            raise UsageError(
                f"a command must be one of {', '.join(Verb)}, but got "
                f"{_show(given.get('command'))}."
            )
        return cls(**{**given, "command": Verb(given["command"])})


class Refusal(NamedTuple):
    """A file that is no command, and why."""

    id: str
    reason: str


def send(store: Store, command: Command) -> str:
    """Put a command into the inbox of a run and wake its driver; gives the command's id.

    >>> import tempfile
    >>> from cerebro.storage import DirectoryStore
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     store = DirectoryStore(directory)
    ...     id = send(store, Command(command=Verb.STOP, trial=3))
    ...     [(name, found)] = pending(store)
    >>> name == f"{id}.json", found.command, found.trial
    (True, <Verb.STOP: 'stop'>, 3)

    Raises:
        UsageError: the command is too long or not JSON, or too many are waiting.
    """
    try:
        data = json.dumps(command.to_json(), allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"params must be finite JSON, but are not ({error}).") from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"a command must have at most {MAX_BYTES} bytes, but has {len(data)}.")
    if len(store.list(layout.INBOX)) >= MAX_FILES:
        raise UsageError(
            f"at most {MAX_FILES} commands may wait for a driver, but {store.url} has as many. "
            "Go on with the run, or remove some."
        )
    store.write(layout.command(command.id), data)
    ring(store)
    return command.id


def pending(store: Store) -> list[tuple[str, Command | Refusal]]:
    """The files in the inbox, in the order of their names, and what they say.

    Only regular files named ``*.json`` count, and only the first ``MAX_FILES`` of them; what is
    being written by hand is left for later. Never raises for what somebody put there.
    """
    try:
        names = store.list(layout.INBOX)
    except (UsageError, StoreError):  # a link that leads elsewhere, a file
        return []
    found: list[tuple[str, Command | Refusal]] = []
    for name in names:
        if _NAME.fullmatch(name) is None:
            continue
        content = _read(store, name)
        if content is not None:
            found.append((name, content))
        if len(found) == MAX_FILES:
            break
    return found


def remove(store: Store, name: str) -> None:
    """Take a file out of the inbox, once the journal has what it said.

    One that cannot be removed stays, and its id tells that it has been answered.
    """
    with contextlib.suppress(StoreError):
        store.remove(f"{layout.INBOX}/{name}")


class _Made(NamedTuple):
    """When a file was made, as a mark of it alone, and how long ago it was changed."""

    mark: str
    age_s: float


def _made(store: DirectoryStore, name: str) -> _Made | None:
    """None if it is no regular file: nothing that somebody links to is read."""
    try:
        status = os.lstat(f"{store.local_path(layout.INBOX)}/{name}")
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return _Made(f"{status.st_ctime_ns:x}", abs(time.time() - status.st_mtime))


def _read(store: Store, name: str) -> Command | Refusal | None:
    """What a file says; None if it is none, is gone, or may be half written."""
    made = _made(store, name) if isinstance(store, DirectoryStore) else _Made("", math.inf)
    if made is None:
        return None
    stem = name.removesuffix(".json")
    buffer = bytearray(MAX_BYTES + 1)
    try:
        data = buffer[: store.read_into(f"{layout.INBOX}/{name}", buffer)]
    except StoreError as error:
        if error.errno == errno.ENOENT:
            return None
        return Refusal(stem if _ID.fullmatch(stem) else f"{stem}-{made.mark}", str(error))
    # The name that a person gave may come again: this file, or what it says, comes only once.
    mark = made.mark or hashlib.sha256(data).hexdigest()[:16]
    id = stem if _ID.fullmatch(stem) else f"{stem}-{mark}"
    if len(data) > MAX_BYTES:
        return Refusal(id, f"a command must have at most {MAX_BYTES} bytes, but {name} has more.")
    try:
        value = json.loads(data, object_pairs_hook=_unique, parse_constant=_no_constant)
        return _from_file(value, stem, id)
    except UsageError as error:
        return Refusal(id, str(error))
    except (ValueError, RecursionError) as error:
        if made.age_s < _SETTLED_S:
            return None
        return Refusal(id, f"a command must be JSON, but {name} is not ({error}).")


def _from_file(value: object, stem: str, id: str) -> Command:
    if isinstance(value, dict) and value.get("id", stem) != stem:
        raise UsageError(
            f"the id of a command must be the name of its file, {stem}, but is "
            f"{_show(value['id'])}: change it, or leave it out."
        )
    return Command.from_json(value, id)


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise UsageError("a command must say each thing once, but a name occurs twice.")
    return unique


def _no_constant(text: str) -> NoReturn:
    raise UsageError(f"numbers of a command must be finite, but got {text}.")


def _check_types(command: Command) -> None:
    checks: list[tuple[str, object, bool, str]] = [
        ("command", command.command, isinstance(command.command, Verb), "a verb"),
        ("trial", command.trial, _is_count(command.trial, 0), "a number from 0 on, or null"),
        ("params", command.params, _are_params(command.params), "an object with names as keys"),
        ("epochs", command.epochs, _is_count(command.epochs, 1), "a number from 1 on, or null"),
        ("is_warm", command.is_warm, isinstance(command.is_warm, bool), "true or false"),
        ("by", command.by, isinstance(command.by, str), "text"),
        ("time", command.time, isinstance(command.time, str), "text"),
        ("id", command.id, isinstance(command.id, str), "text"),
    ]
    for name, value, is_right, what in checks:
        if not is_right:
            raise UsageError(f"`{name}` of a command must be {what}, but is {_show(value)}.")


def _is_count(value: object, least: int) -> bool:
    return value is None or (type(value) is int and value >= least)


def _are_params(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}…"
