"""How a rank may end, as its leader tells the driver."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import NoReturn

from cerebro.backend.base import Failure, FailureKind
from cerebro.backend.process import cause_of
from cerebro.types import Json


class RankFailed(Exception):
    """Something raised in a rank other than the leader; `failure` says what."""

    def __init__(self, rank: int, failure: Failure) -> None:
        super().__init__(failure.message)
        self.rank = rank
        self.failure = failure


class RankLost(Exception):
    """A rank has ended without a word: the gang, as one worker, is lost.

    >>> str(RankLost(2, -9))
    'lost rank 2 of its gang, which was killed by SIGKILL'
    """

    def __init__(self, rank: int | None = None, code: int | None = None) -> None:
        self.rank = rank
        self.code = code
        which = "a rank" if rank is None else f"rank {rank}"
        cause = "cannot be reached any more" if code is None else cause_of(code)
        super().__init__(f"lost {which} of its gang, which {cause}")

    def end_process(self) -> NoReturn:
        """End this process in the way in which the rank did, so that its driver is told that."""
        print(f"cerebro: this worker {self}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        if self.code is not None and self.code < 0:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(-self.code, signal.SIG_DFL)
            os.kill(os.getpid(), -self.code)
        os._exit(self.code if self.code is not None and self.code > 0 else 1)


def pack_failure(failure: Failure) -> dict[str, Json]:
    """A failure as JSON."""
    return {
        "kind": failure.kind.value,
        "message": failure.message,
        "traceback": failure.traceback,
        "signature": failure.signature,
        "error": failure.error,
        "is_splittable": failure.is_splittable,
    }


def unpack_failure(packed: dict[str, Json], rank: int) -> Failure:
    """A failure of a rank as its leader reports it."""
    return Failure(
        kind=FailureKind(str(packed["kind"])),
        message=f"{packed['message']} (rank {rank})",
        traceback=str(packed["traceback"]),
        signature=str(packed["signature"]),
        error=str(packed["error"]),
        is_splittable=bool(packed["is_splittable"]),
    )
