"""The lock of a run on a remote store: a lease that its holder renews, and loses if it does not.

Leases are numbered, `lock.000001`, and the highest number counts. To take over is to create the
next number, which of several contenders one can do. Only its holder ever writes to a lease, so a
driver that was frozen and wakes up changes nothing: it finds a higher number, and stops.

No clocks are compared. A contender watches a lease by its own clock, and takes over what does not
change for longer than the holder itself would trust it.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from cerebro.errors import LeaseLostError, RunLockedError, StoreError
from cerebro.storage.remote_store import RemoteStore

logger = logging.getLogger("cerebro.storage")

#: For so long after it began to renew it, a holder trusts its lease.
LEASE_S = 30.0
#: Seconds from one renewal to the next, as a part of that.
_RENEWAL = 1 / 3
#: Nonces of the leases that this process renews.
_HELD: set[str] = set()
#: A lease that does not change for so long, as a multiple, is nobody's any more.
_STALE = 1.5
_LOOKS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who took a lock last: times are ISO 8601 in UTC."""

    host: str
    pid: int
    started: str
    #: Of a lease: when its holder last renewed it, by its own clock.
    renewed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lease:
    """What the file of a lease says."""

    host: str
    pid: int
    started: str
    renewed: str
    #: Tells one holder from another.
    nonce: str
    #: Which kernel and which table of processes the pid is of, and when that process began.
    machine: str
    began: str
    is_released: bool = False

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


class Lease:
    """A lock of one file name on a remote store; see `RunLock`.

    Args:
        store: From now on guarded by the lease: whoever has lost it changes nothing there.
        path: What the names of leases begin with.
        lease_s: For how long a lease counts that is not renewed.
        machine: Whose processes can be looked at; default this one.
        clock: Seconds that go on while the process is stopped.
        sleep: How to wait.

    >>> store = RemoteStore("memory://leases")
    >>> lease = Lease(store)
    >>> lease.acquire()
    >>> read_lease_holder(store).pid == os.getpid()
    True
    >>> lease.release()
    >>> read_lease_holder(store) is None
    True
    """

    def __init__(
        self,
        store: RemoteStore,
        path: str = "lock",
        *,
        lease_s: float = LEASE_S,
        machine: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._store = store
        self._path = path
        self._lease_s = lease_s
        self._machine = _machine() if machine is None else machine
        self._clock = clock
        self._sleep = sleep
        self._number = 0
        self._mine: _Lease | None = None
        self._trusted_until = 0.0
        self._renewing = threading.Lock()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._lost: str | None = None

    def acquire(self) -> None:
        """Take the lease; raises ``RunLockedError`` if somebody else renews it.

        One of a holder that has died on this machine is taken over at once, any other once it was
        watched for a while.
        """
        number, found = self._current()
        if found is not None and not found.is_released and not self._is_dead(found):
            self._watch(number, found)
        now = _now()
        mine = _Lease(
            host=socket.gethostname(),
            pid=os.getpid(),
            started=now,
            renewed=now,
            nonce=secrets.token_hex(16),
            machine=self._machine,
            began=_began(os.getpid()) or "",
        )
        began_s = self._clock()
        # Before anybody can see it: others in this process are refused at once, and do not watch.
        _HELD.add(mine.nonce)
        try:
            self._claim(number + 1, mine)
            self._number, self._mine = number + 1, mine
            self._trusted_until = began_s + self._lease_s
            self._lost = None
            self._forget_before(number + 1)
            self._is_over.clear()
            self._store.guard = self.check
            self._thread = threading.Thread(target=self._keep, name="cerebro-lease", daemon=True)
            self._thread.start()
        except BaseException:
            # Nobody renews it: whoever comes next may watch it, and take it over.
            self._is_over.set()
            self._thread = self._mine = self._store.guard = None
            _HELD.discard(mine.nonce)
            raise

    def release(self) -> None:
        """Give the lease back; nothing happens if it is not held."""
        if self._thread is None or self._mine is None:
            return
        self._is_over.set()
        self._thread.join()
        self._thread = None
        self._store.guard = None
        mine, self._mine = self._mine, None
        try:
            if self._lost is None:
                self._write(_released(mine))
        except StoreError as error:
            logger.warning("the lease of this run could not be given back: %s", error)
        finally:
            # Not before: until it is given back, others in this process need not watch it.
            _HELD.discard(mine.nonce)

    def check(self) -> None:
        """Return if the lease is held for sure; look again where that is not certain.

        Raises:
            LeaseLostError: Another driver has it.
        """
        if self._lost is None and self._clock() >= self._trusted_until:
            self._renew()
        if self._lost is not None:
            raise LeaseLostError(
                f"{self._store.url} is being written by another driver ({self._lost}) since this "
                f"one was not heard of for {self._lease_s:.0f} s. This one stops; nothing of the "
                "other's was changed."
            )

    def _claim(self, number: int, mine: _Lease) -> None:
        """Create the lease of this number; raises if somebody else was quicker."""
        name = _name(self._path, number)
        if not self._store.create(name, mine.encode()):
            self._refuse(self._current()[1])
        highest, other = self._current()
        if highest != number:
            # Somebody was quicker by more than one, and the number was free again.
            self._store.remove(name)
            self._refuse(other)

    def _keep(self) -> None:
        """Renew until it is given back or lost."""
        while not self._is_over.wait(self._lease_s * _RENEWAL) and self._lost is None:
            try:
                self._renew()
            except StoreError as error:
                logger.warning("the lease of this run could not be renewed: %s", error)

    def _renew(self) -> None:
        with self._renewing:
            mine, began_s = self._mine, self._clock()
            if mine is None or self._lost is not None:
                return
            highest, other = self._current()
            if highest != self._number or other is None or other.nonce != mine.nonce:
                self._lost = "unknown" if other is None else f"{other.host}, pid {other.pid}"
                return
            self._mine = _renewed(mine)
            self._write(self._mine)
            self._trusted_until = began_s + self._lease_s

    def _write(self, lease: _Lease) -> None:
        # Past the guard, which asks for this very lease.
        self._store.unguarded().write(_name(self._path, self._number), lease.encode())

    def _is_dead(self, found: _Lease) -> bool:
        """Whether the holder was a process of this machine, and is gone."""
        if not self._machine or found.machine != self._machine:
            return False
        if found.nonce in _HELD:
            self._refuse(found)
        return _began(found.pid) != found.began

    def _watch(self, number: int, found: _Lease) -> None:
        """Wait until a lease is stale; an error as soon as it is renewed."""
        stale_s = self._lease_s * _STALE
        logger.warning(
            "%s was being written by pid %d on %s: waiting %.0f s to see whether it still is",
            *(self._store.url, found.pid, found.host, stale_s),
        )
        until = self._clock() + stale_s
        while self._clock() < until:
            self._sleep(stale_s / _LOOKS)
            latest, other = self._current()
            if latest != number or other != found:
                if other is not None and other.is_released:
                    return
                self._refuse(other)

    def _current(self) -> tuple[int, _Lease | None]:
        return _current(self._store, self._path)

    def _forget_before(self, number: int) -> None:
        """Remove what counts no more; what stays, whoever takes the lease next removes."""
        try:
            for old in _numbers(self._store, self._path):
                if old < number:
                    self._store.unguarded().remove(_name(self._path, old))
        except StoreError as error:
            logger.warning("earlier leases of this run could not be removed: %s", error)

    def _refuse(self, found: _Lease | None) -> NoReturn:
        who = "another driver"
        if found is not None:
            who = f"host {found.host}, pid {found.pid}, since {found.started}"
        raise RunLockedError(
            f"a run must have one driver, but {self._store.url} is being written by {who}. "
            "Wait until it is done, or stop it."
        )


def read_lease_holder(store: RemoteStore, path: str = "lock") -> Holder | None:
    """Who took the lease last and did not give it back; it may have died since."""
    found = _current(store, path)[1]
    if found is None or found.is_released:
        return None
    return Holder(host=found.host, pid=found.pid, started=found.started, renewed=found.renewed)


def _current(store: RemoteStore, path: str) -> tuple[int, _Lease | None]:
    """The highest number there is, and what that lease says; 0 without any."""
    number = max(_numbers(store, path), default=0)
    if number == 0:
        return 0, None
    try:
        value = json.loads(store.read(_name(path, number)))
        return number, _Lease(**{field.name: value[field.name] for field in fields(_Lease)})
    except StoreError as error:
        # Whose lease it is, a store that does not answer leaves open.
        if error.errno != errno.ENOENT:
            raise
        return number, None
    except (ValueError, TypeError, KeyError, RecursionError):
        return number, None


def _numbers(store: RemoteStore, path: str) -> list[int]:
    folder, _, file = path.rpartition("/")
    pattern = re.compile(re.escape(file) + r"\.(\d{6,})", re.ASCII)
    found = (pattern.fullmatch(name) for name in store.list(folder))
    return [int(match[1]) for match in found if match is not None]


def _name(path: str, number: int) -> str:
    return f"{path}.{number:06d}"


def _renewed(lease: _Lease) -> _Lease:
    return _Lease(**{**asdict(lease), "renewed": _now()})


def _released(lease: _Lease) -> _Lease:
    return _Lease(**{**asdict(lease), "is_released": True})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _machine() -> str:
    """Names the table of processes that this one is in: containers may share a host's name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _began(pid: int) -> str | None:
    """When a process began, in ticks; None if there is none, or it is dead and not buried."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *rest = text.rpartition(")")[2].split()
    return None if state in "ZX" else rest[18]
