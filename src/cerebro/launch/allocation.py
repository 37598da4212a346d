"""A run over the nodes of a batch job: Ray on each of them, and the first drives the run.

The processes of the other nodes report to the first, as those of a gang do, and hear from it where
Ray's head listens, and how the run has ended.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import NoReturn, TypeAlias

from cerebro.backend.gang.interface import address_towards
from cerebro.backend.gang.muster import Muster
from cerebro.backend.gang.outcome import exit_code_of, is_stop
from cerebro.backend.gang.post import Post
from cerebro.backend.gang.rendezvous import Rendezvous, find_rendezvous, split_address
from cerebro.backend.gang.seek import find_muster
from cerebro.errors import DiskFullError, RunInterrupted, UsageError, WorkerError
from cerebro.launch.ray_node import READY_S, RayNode, is_listening, read_resources

#: How long the first node waits for the others before the run begins.
JOIN_S = 120.0
#: How long the first node may take to save and end after this one was told to end.
STOP_S = 45.0
_LOOK_S = 0.5
#: What tells a process that it is one of several; a run on Ray is one alone.
_RANK = ("SLURM_PROCID", "SLURM_LOCALID", "PMI_RANK", "PMI_SIZE")
_SAVED = DiskFullError.exit_code

#: How many nodes the Ray cluster at an address has, once it has so many or after so many seconds.
CountNodes: TypeAlias = Callable[[str, int, float], int]

logger = logging.getLogger("cerebro.launch")


def run_over_nodes(run: str, work: Callable[[], int], count_nodes: CountNodes) -> int:
    """Make the nodes of this job's step one Ray cluster, and do the work on the first of them.

    Called by a process on each node; gives the exit code of the first to all.

    Args:
        run: The name of the run.
        work: Done on the first node, with `RAY_ADDRESS` set.
        count_nodes: Asks Ray.
    """
    place = read_place(os.environ)
    for name in _RANK:
        os.environ.pop(name, None)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, _end_saved)
    if place is None:
        return work()
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if not place.is_leading:
        return _follow(place, run)
    return _lead(place, run, work, count_nodes)


def read_place(environ: Mapping[str, str]) -> Rendezvous | None:
    """This process among those of the step; None if it is alone."""
    place = find_rendezvous(environ)
    if place is None or not place.is_spread:
        return None
    if environ.get("SLURM_LOCALID", "0") != "0":
        raise UsageError(
            "with Ray a node has one task, but this is one more of its node. Give srun "
            "--ntasks-per-node=1: Ray starts as many workers as the node has room for."
        )
    if environ.get("RAY_AUTH_MODE", "token") == "token" and not environ.get("RAY_AUTH_TOKEN"):
        raise UsageError(
            "the nodes of a Ray cluster must know one token, but RAY_AUTH_TOKEN is not set. Set it "
            "before srun: export RAY_AUTH_TOKEN=$(openssl rand -hex 32)"
        )
    return place


def _lead(place: Rendezvous, run: str, work: Callable[[], int], count_nodes: CountNodes) -> int:
    muster = Muster(place, run)
    muster.on_failure = lambda error: logger.warning("%s The run goes on without it.", error)
    own, _ = split_address(muster.gang)
    try:
        node = RayNode(muster.gang, own, head=True, resources=read_resources(os.environ))
    except BaseException as error:
        muster.dismiss(exit_code_of(error), is_stopped=is_stop(error))
        raise

    def prepared() -> int:
        node.wait_until_up()
        timeout_s = min(JOIN_S, place.patience_s)
        _tell(count_nodes(muster.gang, place.world, timeout_s), place.world, timeout_s)
        os.environ["RAY_ADDRESS"] = muster.gang
        return work()

    with node:
        return drive(prepared, muster)


def drive(work: Callable[[], int], muster: Muster) -> int:
    """Do the work, and tell the other nodes how it has ended."""
    code, is_stopped = 1, False
    try:
        code = work()
        is_stopped = code in (_SAVED, RunInterrupted.exit_code)
    except BaseException as error:
        code, is_stopped = exit_code_of(error), is_stop(error)
        raise
    finally:
        # Nothing cuts the end short, which is the same whoever asks for it.
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        muster.dismiss(code, is_stopped=is_stopped)
    return code


def _tell(found: int, wanted: int, timeout_s: float) -> None:
    if found >= wanted:
        logger.info("Ray has %d nodes", found)
        return
    logger.warning(
        "%d of %d nodes have joined within %.0f s: the run begins with these, and uses others when "
        "they come.",
        *(found, wanted, timeout_s),
    )


def _follow(place: Rendezvous, run: str) -> int:
    stops = _Stops()
    with find_muster(place, run, stops.check) as post:
        deadline = time.monotonic() + READY_S
        while not is_listening(post.gang):
            stops.check()
            if time.monotonic() > deadline:
                raise WorkerError(
                    f"Ray's head must listen at {post.gang} within {READY_S:.0f} s, but does not. "
                    "The first node says why."
                )
            time.sleep(_LOOK_S)
        own = address_towards(split_address(post.gang)[0])
        resources = read_resources(os.environ)
        with RayNode(post.gang, own, head=False, resources=resources) as node:
            logger.info("node %d of %d on %s", place.first, place.world, socket.gethostname())
            return _serve(post, node, stops)


def _serve(post: Post, node: RayNode, stops: _Stops) -> int:
    """Keep Ray going; the code of the first node."""
    is_kept = True
    while True:
        try:
            word = post.hear(_LOOK_S)
        except EOFError:
            raise WorkerError("the first node is gone without a word: it was killed.") from None
        if word is not None and isinstance(word.get("done"), int):
            return int(word["done"])
        if stops.is_over:
            return _SAVED
        if is_kept and not stops.is_asked:
            try:
                node.keep_up()
            except WorkerError as error:
                # The run needs this process no more, but its end would be taken for the job's.
                is_kept = False
                logger.warning("%s The run goes on without this node.", error)


class _Stops:
    """Requests to end: the first node has them, too, and needs this one while it saves."""

    def __init__(self) -> None:
        self._since: float | None = None
        # The time limit is the first node's business alone.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._note)

    @property
    def is_asked(self) -> bool:
        return self._since is not None

    @property
    def is_over(self) -> bool:
        """Whether the first node has had its time."""
        return self._since is not None and time.monotonic() - self._since > STOP_S

    def check(self) -> None:
        """End if asked to: nothing is under way yet."""
        if self.is_asked:
            raise SystemExit(_SAVED)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._since = self._since or time.monotonic()


def _end_saved(number: int, frame: FrameType | None) -> NoReturn:
    """Batch systems restart what exits with this code; a run has handlers of its own."""
    raise SystemExit(_SAVED)
