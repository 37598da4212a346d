from __future__ import annotations

import contextlib
import json
import logging
import signal
import socket
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cerebro import __version__
from cerebro.backend.gang import muster, seek
from cerebro.backend.gang.muster import mustered
from cerebro.backend.gang.rendezvous import Kind, Rendezvous, read_flags
from cerebro.backend.limits import START, Limits
from cerebro.errors import UsageError
from tests.ports import free_port
from tests.processes import wait_for


def spots(nodes: int = 2) -> list[Rendezvous]:
    """The places of some machines, all at a free port of this one."""
    address = f"127.0.0.1:{free_port()}"
    return [read_flags(nodes=nodes, procs=1, node=n, master=address) for n in range(nodes)]


class Caller:
    """A process that talks to a muster."""

    def __init__(self, address: str, **hello: object) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 60)
        self.lines = self.socket.makefile("rb")
        if hello:
            self.say(**hello)

    def say(self, **message: object) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def hear(self) -> dict[str, object]:
        with contextlib.suppress(ConnectionError):
            found: dict[str, object] = json.loads(self.lines.readline() or b"{}")
            return found
        return {}

    def close(self) -> None:
        self.lines.close()
        self.socket.close()


HELLO = {
    "cerebro": __version__,
    "key": "",
    "run": "cifar",
    "world": 2,
    "first": 1,
    "local": 1,
    "host": "n1",
}


def test_an_agent_hears_where_the_gang_meets_and_how_the_run_ends():
    leading, _ = spots()
    with mustered(leading, "cifar") as place:
        caller = Caller(place.address, **HELLO)
        assert caller.hear() == {"gang": place.gang, "threads": 1}
        assert place.gang != place.address
        place.word = "best t0000"
    assert caller.hear() == {"done": 0, "word": "best t0000"}
    caller.close()


@pytest.mark.parametrize(
    ("error", "code"),
    [(UsageError("wrong"), 2), (KeyboardInterrupt(), 130), (SystemExit(75), 75), (OSError(), 1)],
    ids=["usage", "Ctrl-C", "saved", "other"],
)
def test_agents_end_with_the_code_of_rank_0(error, code):
    leading, _ = spots()
    callers = []

    def end_with_it() -> None:
        with mustered(leading, "cifar") as place:
            callers.append(Caller(place.address, **HELLO))
            callers[0].hear()
            raise error

    with pytest.raises(type(error)):
        end_with_it()
    assert callers[0].hear()["done"] == code
    callers[0].close()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"run": "mnist"},
            "the name of the run must be 'cifar' as on rank 0, but got 'mnist' on n1",
        ),
        ({"world": 3}, "the number of ranks (-n times -np) must be 2"),
        ({"cerebro": "0.0"}, "the version of cerebro must be"),
        ({"key": "SLURM 7.0 0"}, "the start that a process belongs to"),
        ({"first": 2}, "ranks 1 to 1 are waited for, but got rank 2"),
        ({"first": 0}, "ranks 1 to 1 are waited for, but got rank 0"),
        ({"local": 0}, "must have ranks"),
        ({"first": None}, "no agent of cerebro"),
    ],
    ids=["run", "world", "version", "start", "too high", "rank 0", "none", "no number"],
)
def test_who_does_not_belong_is_sent_away(changed, message):
    leading, _ = spots()
    with mustered(leading, "cifar") as place:
        caller = Caller(place.address, **{**HELLO, **changed})
        assert message in str(caller.hear()["refused"])
        assert caller.hear() == {}
    caller.close()


def test_a_rank_comes_once_and_may_come_again_when_it_is_gone():
    leading, _ = spots()
    with mustered(leading, "cifar") as place:
        first = Caller(place.address, **HELLO)
        assert "gang" in first.hear()
        second = Caller(place.address, **HELLO)
        assert "must come once" in str(second.hear()["refused"])
        first.close()
        second.close()

        def is_taken() -> bool:
            again = Caller(place.address, **HELLO)
            answer = again.hear()
            again.close()
            return "gang" in answer

        wait_for(is_taken, "the place of the one that is gone")


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x80\x04pickle\n",
        b"[]\n",
        b"x" * 10_000,
        b"[" * 2000 + b"\n",
        json.dumps({**HELLO, "first": float("inf")}).encode() + b"\n",
        json.dumps({**HELLO, "first": 10**4000}).encode() + b"\n",
        json.dumps({**HELLO, "host": ["n1"]}).encode() + b"\n",
    ],
    ids=["HTTP", "pickle", "list", "long", "brackets", "infinite", "large", "no name"],
)
def test_noise_is_answered_with_a_refusal_or_not_at_all(line):
    leading, _ = spots()
    with mustered(leading, "cifar") as place:
        caller = Caller(place.address)
        caller.socket.sendall(line)
        assert set(caller.hear()) <= {"refused"}
        well = Caller(place.address, **HELLO)
        assert "gang" in well.hear()
    well.close()
    caller.close()


def test_what_befalls_an_agent_reaches_rank_0():
    leading, _ = spots()
    stops = []
    failures = []
    with mustered(leading, "cifar") as place:
        place.on_stop = stops.append
        place.on_failure = failures.append
        caller = Caller(place.address, **HELLO)
        caller.hear()
        caller.say(stop=int(signal.SIGUSR1))
        caller.say(stop=int(signal.SIGUSR1))
        caller.say(stop=9)
        caller.say(failed="rank 1 cannot \x1b[2J join")
        wait_for(lambda: failures, "the failure")
    assert stops == [signal.SIGUSR1]
    assert str(failures[0]) == "n1: rank 1 cannot ?[2J join"
    caller.close()


def test_what_befalls_an_agent_early_is_kept_for_rank_0(caplog):
    caplog.set_level(logging.INFO, "cerebro.gang")
    leading, _ = spots()
    stops = []
    failures = []
    with mustered(leading, "cifar") as place:
        caller = Caller(place.address, **HELLO)
        caller.hear()
        caller.say(failed="rank 1 cannot join")
        caller.say(stop=int(signal.SIGTERM))
        wait_for(lambda: "n1 was asked to stop" in caplog.text, "the muster to hear it")
        place.on_stop = stops.append
        place.on_failure = failures.append
        assert [str(error) for error in failures] == ["n1: rank 1 cannot join"]
        wait_for(lambda: stops, "the stop")
    assert stops == [signal.SIGTERM]
    caller.close()


def test_who_lost_a_rank_is_told_on_rank_0(caplog):
    leading, _ = spots()
    with mustered(leading, "cifar") as place:
        caller = Caller(place.address, **HELLO)
        caller.hear()
        caller.say(again="rank 1 starts again: it was \x1b[2J killed by SIGKILL.")
        told = "n1: rank 1 starts again: it was ?[2J killed by SIGKILL."
        wait_for(lambda: told in caplog.text, "the loss")
    caller.close()


def test_what_befell_an_agent_is_told_to_who_listens_next_too():
    leading, _ = spots()
    first, second = [], []
    with mustered(leading, "cifar") as place:
        place.on_stop = first.append
        caller = Caller(place.address, **HELLO)
        caller.hear()
        caller.say(stop=int(signal.SIGTERM))
        wait_for(lambda: first, "the stop")
        # It may have come when the first had heard all that it wanted to hear.
        place.hold()
        place.on_stop = second.append
        assert second == [signal.SIGTERM]
    caller.close()


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


@pytest.mark.skipif(not has_ipv6(), reason="needs IPv6")
def test_an_address_may_be_of_the_new_kind():
    leading = replace(spots()[0], address=f"[::1]:{spots()[0].address.rpartition(':')[2]}")
    with mustered(leading, "cifar") as place:
        assert place.address == leading.address
        assert place.gang.startswith("[::1]:")
        caller = Caller(place.address.replace("[::1]", "::1"), **HELLO)
        assert caller.hear() == {"gang": place.gang, "threads": 1}
    caller.close()


def test_a_launched_process_that_is_gone_ends_the_run():
    leading = replace(spots()[0], kind=Kind.SLURM)
    failures = []
    with mustered(leading, "cifar") as place:
        place.on_failure = failures.append
        caller = Caller(place.address, **HELLO)
        caller.hear()
        caller.close()
        wait_for(lambda: failures, "the failure")
    assert "n1 has left with rank 1" in str(failures[0])


def start_of_job(kind: Kind) -> list[Rendezvous]:
    return [replace(spot, kind=kind, key="job 7") for spot in spots()]


@pytest.mark.parametrize("run", ["cifar", "mnist"])
def test_a_launched_process_that_is_sent_away_for_good_ends_the_run(run, monkeypatch):
    """Nobody would start it again, and all would wait for it."""
    leading, other = start_of_job(Kind.SLURM)
    monkeypatch.setattr(seek, "REFUSED_S", 0.0)
    monkeypatch.setattr(muster, "LINGER_S", 0.0)
    failures = []
    with mustered(leading, "cifar") as place:
        place.on_failure = failures.append
        if run == "cifar":
            other = replace(other, world=3)
        with pytest.raises(UsageError, match="rank 0 refuses this process: the n"):
            seek.find_muster(other, run, lambda: None)
        wait_for(lambda: failures, "the failure")
    assert "rank 1 cannot take part: the n" in str(failures[0])


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        (Kind.FLAGS, {"run": "mnist", "last": True}),
        (Kind.SLURM, {"run": "mnist", "last": False}),
        (Kind.SLURM, {"run": "mnist", "last": True, "key": "job 8"}),
    ],
    ids=["started by people", "asks again", "of another start"],
)
def test_others_that_are_sent_away_do_not_end_it(kind, changed, monkeypatch, caplog):
    leading, _ = start_of_job(kind)
    monkeypatch.setattr(muster, "LINGER_S", 0.0)
    failures = []
    with mustered(leading, "cifar") as place:
        place.on_failure = failures.append
        caller = Caller(place.address, **{**HELLO, "key": "job 7", **changed})
        assert "refused" in caller.hear()
        assert caller.hear() == {}
    caller.close()
    assert not failures
    assert "a process is sent away: the" in caplog.text


def test_a_process_whose_rank_is_not_needed_hears_so_and_may_leave(caplog):
    caplog.set_level(logging.INFO, "cerebro.gang")
    leading = replace(spots()[0], kind=Kind.SLURM)
    failures = []
    with mustered(leading, "cifar") as place:
        place.on_failure = failures.append
        caller = Caller(place.address, **HELLO)
        caller.hear()
        place.spare()
        assert caller.hear() == {"spare": True}
        caller.close()
        wait_for(lambda: "n1 has left with rank 1: it was not needed" in caplog.text, "its leaving")
    assert not failures


@pytest.mark.parametrize("is_early", [True, False])
def test_a_process_that_is_not_needed_may_fail(is_early, caplog):
    caplog.set_level(logging.INFO, "cerebro.gang")
    failures = []
    with mustered(replace(spots()[0], kind=Kind.SLURM), "cifar") as place:
        caller = Caller(place.address, **HELLO)
        caller.hear()
        if not is_early:
            place.spare()
            place.on_failure = failures.append
        caller.say(failed="rank 1 cannot take part: no data here.")
        caller.say(again="it is heard")
        wait_for(lambda: "n1: it is heard" in caplog.text, "what the caller says")
        if is_early:
            place.spare()
            place.on_failure = failures.append
        assert "n1: rank 1 cannot take part: no data here. It is not needed." in caplog.text
    assert not failures
    caller.close()


@pytest.mark.parametrize(
    ("kind", "missing"),
    [(Kind.FLAGS, "machines 2, 3 (-nr) with ranks 2, 3 did"), (Kind.SLURM, "but ranks 2, 3 did")],
)
def test_who_has_not_come_when_patience_is_over_is_named(kind, missing, monkeypatch):
    ahead_s, slept_s = [0.0], []

    def sleep(seconds):
        slept_s.append(seconds)
        time.sleep(seconds)

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead_s[0], sleep=sleep)
    monkeypatch.setattr(muster, "time", clock)
    failures = []
    place = muster.Muster(replace(spots(4)[0], kind=kind), "cifar", patience_s=1800.0)
    place.on_failure = failures.append
    caller = Caller(place.address, **{**HELLO, "world": 4})
    caller.hear()
    ahead_s[0] = 1801.0
    wait_for(lambda: failures, "the failure")
    place.dismiss(1, is_stopped=False)
    caller.close()
    assert missing in str(failures[0])
    assert sum(slept_s) < 1.0, "nobody waits for them any longer"


@pytest.mark.parametrize("patience_s", [1.0, 1800.0, 86_400.0])
def test_a_leader_waits_longer_than_its_driver_has_patience(patience_s, monkeypatch):
    """The driver names the machines that are missing, the leader ranks alone."""
    monkeypatch.delenv(START, raising=False)
    with mustered(replace(spots()[0], patience_s=patience_s), "cifar"):
        limits = Limits.from_environment()
    assert patience_s < limits.gather_s < limits.start_s


def test_the_address_must_be_of_this_machine():
    leading = replace(spots()[0], address="192.0.2.7:29500")
    with (
        pytest.raises(UsageError, match=r"no address of this one|no way to"),
        mustered(leading, "x"),
    ):
        pass


def test_a_port_that_is_taken_is_told():
    leading, _ = spots()
    with (
        mustered(leading, "cifar") as place,
        pytest.raises(UsageError, match=f"listen at {leading.address}.*--master"),
        mustered(leading, "cifar"),
    ):
        pass
    assert place.address == leading.address
