"""Where the ranks of a gang are."""

from __future__ import annotations

import os
from dataclasses import dataclass

from cerebro.errors import UsageError

#: Steps between two comparisons of the replicas.
CHECK_EVERY = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class GangPlace:
    """A gang that stands in the place of one worker.

    >>> GangPlace(size=2).local
    2
    """

    #: Ranks in all.
    size: int
    #: Ranks on the machine of the leader, itself included; 0: all of them.
    local: int = 0
    #: "host:port" where the leader waits for ranks of other machines; "": a free port of its own.
    address: str = ""
    #: Steps between two comparisons of the replicas; 0: never.
    check_every: int = CHECK_EVERY
    #: Whether all ranks must be on one machine, where a cluster could have them on several.
    is_together: bool = False

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.local <= self.size or self.check_every < 0:
            raise UsageError(
                "`size >= 1`, `0 <= local <= size` and `check_every >= 0` must hold, but got "
                f"{self!r}."
            )
        if self.local == 0:
            object.__setattr__(self, "local", self.size)
        if self.local < self.size and not self.address:
            raise UsageError(
                f"a gang of {self.size} with {self.local} ranks on this machine needs an address "
                "for the others, but got none."
            )


def chosen_interface() -> str:
    """The network interface that users want ranks to reach each other over; "": any."""
    return os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
