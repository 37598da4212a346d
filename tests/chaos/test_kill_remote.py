"""R1 on a remote store: killed before or after any request, a run resumes exactly.

The store is a bucket without a server; tests/cluster has the same on real ones.
"""

from __future__ import annotations

import itertools
import os
import signal

import pytest

from cerebro.storage import open_store
from cerebro.storage.journal import read
from cerebro.storage.remote_objects import open_objects
from cerebro.storage.remote_store import RemoteStore
from cerebro.testing import bucket
from cerebro.testing.faults import FaultyObjects, KillAfter, KillBefore
from cerebro.testing.history import check
from cerebro.testing.toy import ToyTask
from tests.experiments import fit_toy, in_child, make_toy_data, outcome, toy_spec
from tests.kills import RecordingObjects, keep_states, started_visits

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]


@pytest.fixture
def spec(folder):
    bucket.register()
    make_toy_data(folder / "data")
    return toy_spec(folder / "data")


def fit_remote(url, spec, **settings):
    fit_toy(url, spec, store=open_store(url), **settings)


def was_killed(url, spec, rule, **settings):
    """Whether a run was killed by the rule; if not, it came to its end."""
    objects = FaultyObjects(open_objects(url)[0], rule)
    status = in_child(lambda: fit_toy(url, spec, store=RemoteStore(url, objects), **settings))
    if status == 0:
        return False
    assert os.WIFSIGNALED(status), f"the run failed instead of being killed: {rule}"
    assert os.WTERMSIG(status) == signal.SIGKILL
    return True


def durable_visits(url):
    store = open_store(url)
    if not store.exists("journal.jsonl"):
        return set()
    found = [r for r in read(store).records if r["type"] == "visit" and r.get("checkpoint")]
    return {
        (trial, r["epoch"], r["step"]) for r in found for trial in r.get("trials") or [r["trial"]]
    }


def assert_resumes_exactly(url, spec, log, expected, what):
    check(url, is_settled=False)
    durable = durable_visits(url)
    log.unlink(missing_ok=True)
    fit_remote(url, spec, task=ToyTask(log=str(log)))
    assert outcome(url) == expected, f"another result after {what}"
    check(url)
    assert not durable & started_visits(log), f"a durable visit again after {what}"


def states_of(root, spec, **settings):
    """What a kill at any request could leave of a run in a bucket."""
    url = f"bucket://{root}"

    def work(states):
        objects = RecordingObjects(open_objects(url)[0], states)
        fit_toy(url, spec, store=RemoteStore(url, objects), **settings)

    return keep_states(root, work)


@pytest.fixture
def expected(folder, spec):
    fit_toy(folder / "whole", spec)
    return outcome(folder / "whole")


def test_a_run_killed_at_any_request_resumes_exactly(folder, spec, expected):
    log = folder / "visits"
    states = states_of(folder / "run", spec, task=ToyTask(log=str(log)))
    for state in states:
        assert_resumes_exactly(f"bucket://{state}", spec, log, expected, state.name)
    assert len(states) > 40


@pytest.mark.parametrize("kill", [KillBefore, KillAfter])
def test_however_it_was_killed(folder, spec, expected, kill, seed):
    """With real kills, at every fifth request, from another one on in each session."""
    log = folder / "visits"
    for n in itertools.count(1 + seed % 5, 5):
        url = f"bucket://{folder}/run{n}"
        if not was_killed(url, spec, kill(n), task=ToyTask(log=str(log))):
            break
        assert_resumes_exactly(url, spec, log, expected, f"{kill(n)}")
    assert n > 60


def test_a_run_killed_again_while_it_is_resumed_resumes_exactly(folder, spec, expected):
    assert was_killed(f"bucket://{folder}/run", spec, KillAfter(50))
    states = states_of(folder / "run", spec)
    for state in states:
        url = f"bucket://{state}"
        fit_remote(url, spec)
        assert outcome(url) == expected, f"another result after {state.name}"
        check(url)
    assert len(states) > 20
