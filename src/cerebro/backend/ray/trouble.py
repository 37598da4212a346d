"""What Ray says when something is gone, in our words."""

from __future__ import annotations

import re

_LENGTH = 300
#: Lines that say nothing about why.
_LABELS = ("class_name:", "actor_id:", "pid:", "name:", "namespace:", "ip:", "The actor never ran")
_NODE = re.compile(r"node (has |was )?(died|dead|removed|terminated)|node failure", re.I)
_MEMORY = re.compile(r"out.?of.?memory|OutOfMemory|memory monitor|OOM", re.I)
_LOST = {
    "ObjectFetchTimedOutError",
    "ObjectFreedError",
    "ObjectLostError",
    "ObjectReconstructionFailedError",
    "OwnerDiedError",
    "ReferenceCountingAssertionError",
}
_ACTOR = {"ActorDiedError", "ActorUnavailableError", "RayActorError", "ActorUnschedulableError"}
_ACTOR |= {"OutOfMemoryError", "NodeDiedError", "WorkerCrashedError", "LocalRayletDiedError"}


def has_lost_state(error: BaseException) -> bool:
    """Whether a call could not be begun because an object that it was given is gone."""
    return _is_any(error, _LOST)


def has_lost_actor(error: BaseException) -> bool:
    """Whether whoever was to answer is gone."""
    return _is_any(error, _ACTOR)


def cause_of(error: BaseException) -> tuple[str, bool]:
    """What became of an actor, to follow "worker 3 ", and whether there was no memory left.

    >>> cause_of(RuntimeError("The actor is dead because its node has died. Node Id: 1a2b"))
    ('was lost: its node died', False)
    """
    text = str(error)
    if type(error).__name__ == "OutOfMemoryError" or "memory monitor" in text:
        return "was killed: out of memory", True
    if _NODE.search(text):
        return "was lost: its node died", False
    if "worker process has died" in text:
        return "was lost: its process died", False
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(_LABELS)]
    return f"was lost: {(told or ['Ray does not say why'])[-1][:_LENGTH]}", False


def _is_any(error: BaseException, names: set[str]) -> bool:
    """Whether an error, or what caused it, is of a class of this name."""
    causes = [error, getattr(error, "cause", None), error.__cause__]
    return any(
        cls.__name__ in names for cause in causes if cause is not None for cls in type(cause).mro()
    )
