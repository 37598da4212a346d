"""What a journal gets from now on, for those who do not write it."""

from __future__ import annotations

import errno

from cerebro.errors import StoreError
from cerebro.storage import layout
from cerebro.storage.journal import _decode
from cerebro.storage.store import Store
from cerebro.types import Json


class Tail:
    """Reads only what is new. The journal need not exist yet.

    >>> import tempfile
    >>> from cerebro.storage import DirectoryStore
    >>> from cerebro.storage.journal import Journal
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     journal = Journal.open(DirectoryStore(directory))
    ...     journal.append([{"trial": 0}])
    ...     tail = Tail(DirectoryStore(directory))
    ...     journal.append([{"trial": 1}])
    ...     journal.close()
    ...     tail.records(), tail.records()
    ([{'trial': 1}], [])
    """

    def __init__(self, store: Store, path: str = layout.JOURNAL) -> None:
        self._store = store
        self._path = path
        self._offset = self._size()
        self._rest = b""

    def records(self) -> list[dict[str, Json]]:
        """Those that were added since the last call; what is being written comes later."""
        size = self._size()
        if size < self._offset:
            # A new driver cut off what the one before it had not written to the end.
            self._offset, self._rest = 0, b""
        if size == self._offset:
            return []
        data = self._store.read_from(self._path, self._offset)
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        # The first may be the end of one that was being written when this began.
        found = (_decode(line + b"\n", 0) for line in lines)
        return [each[0] for each in found if each is not None]

    def _size(self) -> int:
        try:
            return self._store.size(self._path)
        except StoreError as error:
            if error.errno != errno.ENOENT:
                raise
            return 0
