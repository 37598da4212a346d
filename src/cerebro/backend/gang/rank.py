"""What a follower's process does: come to the leader, do what it says, leave."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import pickle
import signal
import sys
import traceback
from dataclasses import replace
from typing import Any, cast

from cerebro.backend.base import Failure, FailureKind, Setup
from cerebro.backend.failure import describe_failure, own_failure
from cerebro.backend.gang.ends import pack_failure
from cerebro.backend.gang.follower import AGAIN, FAILED, REFUSED, STOPPED
from cerebro.backend.gang.identity import identify, require_join
from cerebro.backend.gang.interface import address_towards
from cerebro.backend.gang.message import unpack_call
from cerebro.backend.gang.rendezvous import split_address
from cerebro.backend.worker import STOP_SIGNALS, die_with_parent
from cerebro.errors import UsageError, WorkerError
from cerebro.train.gang.group import Gang, GangBroken
from cerebro.train.gang.meeting import Visitor
from cerebro.train.gang.place import GangPlace
from cerebro.train.runner import VisitRunner
from cerebro.train.torch.buffer import allocate_pages
from cerebro.train.visit import Diverged, State


def main(told: str) -> None:
    """Be a rank until the leader says that it is over, or the gang breaks."""
    given = json.loads(told)
    for fd in (given["setup_fd"], given["lifeline_fd"]):
        os.set_inheritable(fd, False)
    die_with_parent(given["lifeline_fd"], given["parent"])
    _leave_stopping_to_the_leader()
    faulthandler.enable()
    try:
        code = _follow(given)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        code = REFUSED
    except WorkerError as error:
        print(f"error: {error}", file=sys.stderr)
        code = FAILED
    except GangBroken:
        code = AGAIN
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else FAILED
    except BaseException:
        traceback.print_exc()
        code = FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: threads and finalisers of user code must not keep it alive.
    os._exit(code)


def _follow(given: dict[str, Any]) -> int:
    fd, rank = given["setup_fd"], given["rank"]
    opening = pickle.loads(os.pread(fd, os.fstat(fd).st_size, 0))  # noqa: S301
    os.close(fd)
    setup = opening if isinstance(opening, Setup) else cast(Setup, opening.unpack())
    place = cast(GangPlace, setup.gang)
    runner: VisitRunner | None = None
    failure: Failure | None = None
    try:
        runner = VisitRunner(
            setup.task,
            setup.data,
            data_digest=setup.data_digest,
            store=setup.store,
            device=setup.device,
            threads=setup.threads,
            worker=given["seat"],
            ranks=place.size,
        )
        require_join(runner)
    except Exception as error:
        failure = describe_failure(error)
    host, port = split_address(given["address"])
    visitor = Visitor(host.strip("[]"), port, rank, given["join_s"])
    if runner is None or failure is not None:
        return _say_why_not(visitor, cast(Failure, failure))
    gradients = visitor.come(identify(runner, place, rank))
    try:
        gang = visitor.connect(
            place.size,
            own_host=address_towards(host),
            check_every=place.check_every,
            gradients=gradients,
        )
    except GangBroken as error:
        # The leader knows no more than that this rank has ended.
        print(f"cerebro: rank {rank} cannot join: {error}", file=sys.stderr)
        raise
    cast(Any, runner.framework).join(gang)
    return _serve(runner, gang, visitor, is_first=given["seat"] == 0)


def _say_why_not(visitor: Visitor, failure: Failure) -> int:
    """The leader is told, and whoever reads the output of this process."""
    print(f"error: {failure.message}", file=sys.stderr, flush=True)
    with contextlib.suppress(GangBroken, UsageError):
        visitor.come({"failure": pack_failure(failure)})
    return REFUSED if failure.kind is FailureKind.USAGE else FAILED


def _serve(runner: VisitRunner, gang: Gang, visitor: Visitor, *, is_first: bool) -> int:
    while (heard := gang.receive()) is not None:
        message, state = heard
        if "free" in message:
            runner.free()
            continue
        try:
            with gang.whole():
                _visit(runner, message, state, is_first=is_first)
        except Diverged:
            # All ranks have seen it, at the same step; the leader reports it.
            continue
        except GangBroken:
            raise
        except Exception as error:
            visitor.tell(pack_failure(own_failure(error)))
            return AGAIN
        sys.stdout.flush()
        sys.stderr.flush()
    return STOPPED


def _visit(
    runner: VisitRunner, message: dict[str, Any], state: State | None, *, is_first: bool
) -> None:
    """Take part in a visit; what comes of it is the leader's to keep."""
    call = unpack_call(message["visit"])
    if not is_first:
        # Another rank of this machine reads the same bytes.
        call = replace(call, verify=False)

    # What was received is this process's own: it is trained in.
    own = [] if state is None else [state.buffer]

    def allocate(size: int) -> memoryview:
        return own.pop() if own and own[0].nbytes == size else allocate_pages(size)

    runner.run(call, state, allocate)


def _leave_stopping_to_the_leader() -> None:
    """Batch systems and terminals signal every process; what the task forks is spared this."""

    def undo() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, lambda *_: None) for number in STOP_SIGNALS}
    os.register_at_fork(after_in_child=undo)
