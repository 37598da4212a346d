"""One process of all that want the same thing makes it; the others wait for it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from cerebro.errors import RunLockedError
from cerebro.storage.lock import RunLock, read_holder
from cerebro.storage.store import DirectoryStore

#: Between two looks whether another process is done.
_LOOK_S = 0.1


@contextlib.contextmanager
def sole_maker(
    folder: str, lock_file: str, what: str, is_made: Callable[[], bool], say: Callable[[str], None]
) -> Iterator[bool]:
    """Wait for one's turn; whether there still is something to make.

    The lock is one of the kernel on a file in the folder, which disks that machines share know too,
    and which is free when its holder dies.

    >>> with sole_maker("made", ".lock", "x", lambda: False, print) as is_ours:
    ...     is_ours
    True
    """
    store = DirectoryStore(folder)
    lock = RunLock(store, lock_file)
    is_told = False
    while True:
        try:
            lock.acquire()
        except RunLockedError:
            if is_made():
                yield False
                return
            if not is_told:
                holder = read_holder(store, lock_file)
                who = f"pid {holder.pid} on {holder.host}" if holder else "another process"
                say(f"waiting for {who}, which works on {what}")
                is_told = True
            time.sleep(_LOOK_S)
        else:
            break
    try:
        yield not is_made()
    finally:
        lock.release()
