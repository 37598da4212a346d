"""Checks shards against their digests beside the driver's loop, ahead of the workers.

Workers take seconds to start, in which this reads hundreds of megabytes. What it has not reached
when a visit needs it, the worker checks itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from cerebro.data import open_dataset
from cerebro.errors import CerebroError
from cerebro.types import Split


@dataclass(frozen=True, slots=True)
class ShardDamaged:
    """Posted to the driver."""

    error: CerebroError


class Verifier:
    """Reads every shard of the train and val splits once."""

    def __init__(self, data: str, post: Callable[[object], None]) -> None:
        self._data = data
        self._post = post
        self._checked: set[tuple[Split, int]] = set()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="verifier", daemon=True)
        self._thread.start()

    def has_checked(self, split: Split, number: int) -> bool:
        """Whether a shard's bytes are those of its manifest."""
        return (split, number) in self._checked

    def close(self) -> None:
        """Stop after the shard at hand."""
        self._is_closed.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            dataset = open_dataset(self._data)
            if dataset.is_remote:
                # Whoever copies a shard checks it, and perhaps this machine needs none.
                return
            for split in (Split.TRAIN, Split.VAL):
                for number in range(len(dataset.shards(split))):
                    if self._is_closed.is_set():
                        return
                    dataset.open_shard(split, number)
                    self._checked.add((split, number))
        except CerebroError as error:
            self._post(ShardDamaged(error))
