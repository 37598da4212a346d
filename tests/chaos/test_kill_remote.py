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


def started_visits(log):
    if not log.exists():
        return set()
    lines = log.read_text().splitlines()
    log.unlink()
    return {tuple(map(int, line.split()[:3])) for line in lines}


@pytest.mark.parametrize("kill", [KillBefore, KillAfter])
def test_a_run_killed_at_any_request_resumes_exactly(folder, spec, kill):
    fit_toy(folder / "whole", spec)
    expected = outcome(folder / "whole")
    log = folder / "visits"
    task = ToyTask(log=str(log))
    for n in itertools.count(1):
        url = f"bucket://{folder}/run{n}"
        if not was_killed(url, spec, kill(n), task=task):
            break
        check(url, is_settled=False)
        durable = durable_visits(url)
        log.unlink(missing_ok=True)
        fit_remote(url, spec, task=task)
        assert outcome(url) == expected, f"another result after {kill(n)}"
        check(url)
        assert not durable & started_visits(log), f"a durable visit again after {kill(n)}"
    assert n > 60


def test_a_run_killed_again_while_it_is_resumed_resumes_exactly(folder, spec):
    first = 50
    fit_toy(folder / "whole", spec)
    expected = outcome(folder / "whole")
    for n in itertools.count(1):
        url = f"bucket://{folder}/run{n}"
        assert was_killed(url, spec, KillAfter(first))
        if not was_killed(url, spec, KillBefore(n)):
            break
        fit_remote(url, spec)
        assert outcome(url) == expected, f"another result after {first} and {n}"
        check(url)
    assert n > 30
