"""What is worth trying again when a remote file cannot be read, how often, and how long to wait."""

from __future__ import annotations

import errno
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

_T = TypeVar("_T")

#: Answers that may be others in a moment: timeouts, conflicts of two requests, too early, too many
#: of them. And all >= 500.
_PASSING_STATUS = {408, 409, 425, 429}
#: What will be the same in a moment.
_LASTING = (
    *(FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError),
    PermissionError,
)
_LASTING_ERRNO = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE),
}
#: Packages of clients whose own errors are those of a connection, unless they carry a status.
_CLIENTS = {"aiohttp", "aiobotocore", "botocore", "gcsfs", "http", "requests", "urllib3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often to try, and how long to wait in between: twice as long each time, with jitter.

    The jitter is drawn from `seed` and the file's name, so that many files that fail together are
    not all asked for again together, and a run waits as long as the last one did.

    >>> delays = list(Retry(attempts=4, first_delay_s=1.0).delays("s3://bucket/a.png"))
    >>> [1 <= 2 * delay / 2**number <= 2 for number, delay in enumerate(delays)]
    [True, True, True]
    """

    attempts: int = 5
    first_delay_s: float = 0.5
    max_delay_s: float = 20.0
    seed: int = 0
    sleep: Callable[[float], object] = time.sleep

    def delays(self, key: str) -> Iterator[float]:
        """Seconds to wait after each failed attempt but the last."""
        jitter = np.random.default_rng([self.seed, zlib.crc32(key.encode())])
        for number in range(self.attempts - 1):
            delay = min(self.max_delay_s, self.first_delay_s * 2.0**number)
            yield delay * float(jitter.uniform(0.5, 1.0))

    def run(self, key: str, action: Callable[[], _T]) -> _T:
        """What `action` returns; what it raised last if no attempt worked.

        >>> answers = iter([ConnectionResetError(), b"data"])
        >>> def ask():
        ...     answer = next(answers)
        ...     if isinstance(answer, Exception):
        ...         raise answer
        ...     return answer
        >>> Retry(sleep=lambda seconds: None).run("name", ask)
        b'data'
        """
        for delay in self.delays(key):
            try:
                return action()
            except Exception as error:
                if not is_worth_retrying(error):
                    raise
            self.sleep(delay)
        return action()


def is_worth_retrying(error: BaseException) -> bool:
    """Whether the same request may work in a moment.

    >>> is_worth_retrying(ConnectionResetError()), is_worth_retrying(FileNotFoundError())
    (True, False)
    """
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and cause is not None:
        # Some clients call whatever went wrong "not found"; its cause knows better.
        return is_worth_retrying(cause)
    status = status_of(error)
    if status is None and cause is not None and isinstance(error, OSError):
        status = status_of(cause)
    if status is not None:
        return status in _PASSING_STATUS or status >= 500
    if isinstance(error, OSError):
        return not isinstance(error, _LASTING) and error.errno not in _LASTING_ERRNO
    if isinstance(error, TimeoutError | EOFError):
        return True
    return type(error).__module__.split(".")[0] in _CLIENTS


def is_missing(error: BaseException) -> bool:
    """Whether a file is not there, as opposed to not reachable."""
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and cause is not None:
        return status_of(cause) in (404, 410) or is_missing(cause)
    return isinstance(error, FileNotFoundError | NotADirectoryError)


def status_of(error: BaseException) -> int | None:
    """The HTTP status an error carries, if it carries one."""
    for name in ("status", "code"):
        value = getattr(error, name, None)
        if isinstance(value, int) and 100 <= value < 600:
            return value
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        value = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return value if isinstance(value, int) else None
    return None
