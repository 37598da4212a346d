"""Who a rank is: what must be the same for all ranks of a gang, and what tells them apart."""

from __future__ import annotations

import socket

from cerebro.errors import UsageError
from cerebro.train.gang.meeting import Identity
from cerebro.train.gang.place import GangPlace
from cerebro.train.runner import VisitRunner
from cerebro.version import __version__


def identify(runner: VisitRunner, place: GangPlace, rank: int) -> Identity:
    """What a rank says of itself when it comes."""
    _, digest = runner.describe()
    return {
        "rank": rank,
        "host": socket.gethostname(),
        "size": place.size,
        "check_every": place.check_every,
        "task": digest,
        "data": runner.dataset.digest,
        "cerebro": __version__,
        "torch": runner.versions().get("torch", ""),
        "device": runner.device,
        "threads": runner.threads,
        "accelerator": getattr(runner.framework, "accelerator", ""),
    }


def require_join(runner: VisitRunner) -> None:
    """Raise for a framework that cannot be one of several ranks."""
    if not getattr(runner.framework, "can_join", False):
        name, _ = runner.describe()
        raise UsageError(
            f"a trial that several workers train together must be a cerebro.Task for torch, but "
            f"{name} is trained by {runner.task.framework!r}. Use parallel='mop', which gives each "
            "trial one worker at a time."
        )
