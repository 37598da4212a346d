"""R16, R5: a run is resumed only with what it began with, and its journal is all it is."""

from __future__ import annotations

import copy
import json
import logging
import shutil
import signal
from dataclasses import replace

import pytest

from cerebro import Experiment
from cerebro.backend import InlineBackend
from cerebro.backend.base import Setup
from cerebro.data import digits, from_arrays
from cerebro.errors import ResumeMismatchError, RunInterrupted, RunLockedError
from cerebro.run.direction import Direction
from cerebro.run.driver import Driver
from cerebro.run.history import RunHistory
from cerebro.run.orders import Orders
from cerebro.run.recovery import load_history, open_run
from cerebro.run.request import make_conductor
from cerebro.run.spec import read_document
from cerebro.search import make_sampler, parse_space
from cerebro.search.stopper import Endless
from cerebro.storage import DirectoryStore
from cerebro.storage.journal import encode, read
from cerebro.storage.lock import RunLock
from cerebro.testing.history import check
from cerebro.testing.toy import ToyTask
from cerebro.types import Mode
from tests.experiments import (
    STACK,
    content,
    copy_run,
    fit_toy,
    make_toy_data,
    outcome,
    stop_after,
    toy_spec,
)
from tests.tasks import Net


@pytest.fixture
def home(folder):
    """Data, and a run on them that was stopped while both of its trials were unfinished."""
    make_toy_data(folder / "data")
    stop_after(folder / "run", toy_spec(folder / "data"), visits=3)
    return folder


def records(root):
    return read(DirectoryStore(root)).records


def forced(root):
    return {r["field"]: (r["old"], r["new"]) for r in records(root) if r["type"] == "forced"}


def refuse(home, spec, **options):
    """Resume with something changed, which must be refused and change nothing; what it says."""
    before = content(home)
    with pytest.raises(ResumeMismatchError) as caught:
        fit_toy(home / "run", spec, **options)
    assert content(home) == before
    assert caught.value.exit_code == 2
    for remedy in ("--fresh", "--force", "another name"):
        assert remedy in str(caught.value)
    return str(caught.value)


# What decides the results

CHANGES = {
    "seed": {"seed": 7},
    "epochs": {"epochs": 3},
    "batch_size": {"batch_size": 8},
    "metric": {"metric": "val_accuracy"},
    "mode": {"mode": Mode.MAX},
    "threads_per_worker": {"threads_per_worker": 2},
    "space": {"space": {"lr": [0.5, 0.06]}},
    "num_trials": {"search": "random", "num_trials": 2},
}


def changed(home, field):
    changes = dict(CHANGES[field])
    space = changes.pop("space", None)
    data = home / "data"
    return toy_spec(data, **changes) if space is None else toy_spec(data, space, **changes)


@pytest.mark.parametrize("field", CHANGES)
def test_a_resume_with_another_request_is_refused_and_told_what_was_and_is(home, field):
    old, new = toy_spec(home / "data").to_json()[field], changed(home, field).to_json()[field]
    said = refuse(home, changed(home, field))
    assert f"{field} was {json.dumps(old)} and is {json.dumps(new)}" in said


def test_of_a_large_space_what_differs_is_told(home):
    space = {**{f"of_no_use_{number}": [number] for number in range(20)}, "lr": [0.1]}
    fit_toy(home / "large", toy_spec(home / "data", space))
    changed = {**space, "lr": [0.2], "late": [1]}
    with pytest.raises(ResumeMismatchError) as caught:
        fit_toy(home / "large", toy_spec(home / "data", changed))
    was, found, now = str(caught.value).partition("space was {")[2].partition(" and is {")
    assert found
    assert was.startswith('"lr"')
    assert now.startswith('"lr"')
    assert '"late"' in now
    assert "of_no_use" not in was + now


def test_the_refused_run_is_resumed_exactly_with_what_it_began_with(home):
    refuse(home, changed(home, "seed"))
    fit_toy(home / "run", toy_spec(home / "data"))
    fit_toy(home / "whole", toy_spec(home / "data"))
    assert outcome(home / "run") == outcome(home / "whole")
    check(home / "run")


def test_a_resume_on_other_data_is_refused_with_both_digests(home):
    old = toy_spec(home / "data").data_digest
    make_toy_data(home / "data", seed=1)
    new = toy_spec(home / "data")
    assert f'data_digest was "{old}" and is "{new.data_digest}"' in refuse(home, new)


def test_a_resume_on_the_same_data_elsewhere_goes_on(home):
    shutil.move(home / "data", home / "moved")
    fit_toy(home / "run", toy_spec(home / "moved"))
    check(home / "run")


@pytest.mark.parametrize("field", ["toy", "numpy", "device"])
def test_a_resume_with_another_version_or_device_is_refused(home, field):
    pretend(home / "run", **{field: "before"})
    assert f'{field} was "before" and is ' in refuse(home, toy_spec(home / "data"))


@pytest.mark.parametrize("field", ["python", "cerebro"])
def test_versions_that_decide_no_bit_may_change(home, field):
    pretend(home / "run", **{field: "0.0.1"})
    fit_toy(home / "run", toy_spec(home / "data"))
    check(home / "run")


def pretend(root, **versions):
    """Let the run have begun with other versions."""
    store = DirectoryStore(root)
    document = read_document(store)
    replace(document, environment={**document.environment, **versions}).write(store)


def test_a_torch_run_is_not_resumed_with_another_torch(folder):
    import torch

    columns = {name: column[:200] for name, column in digits().items()}
    from_arrays(folder / "data", train=columns, shards=2, validation=0.2)
    with pytest.raises(RunInterrupted):
        fit_net(folder, StoppingNet())
    pretend(folder / "runs" / "net", torch="1.0.0")
    before = content(folder / "runs" / "net")
    with pytest.raises(ResumeMismatchError) as caught:
        fit_net(folder)
    assert f'torch was "1.0.0" and is "{torch.__version__}"' in str(caught.value)
    assert content(folder / "runs" / "net") == before
    assert fit_net(folder, force=True).is_finished
    assert forced(folder / "runs" / "net") == {"torch": ("1.0.0", torch.__version__)}


def fit_net(folder, task=None, **options):
    experiment = Experiment(
        name="net", data=folder / "data", store=folder / "runs", backend="inline", workers=1
    )
    return experiment.run_fit(
        task or Net(),
        {"lr": [0.01], "width": 16},
        num_epochs=1,
        batch_size=32,
        metric="val_loss",
        mode="min",
        progress=False,
        **options,
    )


class StoppingNet(Net):
    """As if Ctrl-C was pressed in its first visit."""

    has_stopped = False

    def loss(self, model, batch, params):
        if not self.has_stopped:
            self.has_stopped = True
            signal.raise_signal(signal.SIGINT)
        return super().loss(model, batch, params)


# Force


@pytest.mark.parametrize("field", CHANGES)
def test_force_goes_on_and_the_journal_says_what_changed(home, field):
    spec = changed(home, field)
    old = toy_spec(home / "data").to_json()[field]
    fit_toy(home / "run", spec, force=True)
    recorded = forced(home / "run")
    assert recorded[field] == (old, json.loads(json.dumps(spec.to_json()[field])))
    assert set(recorded) <= {field, "search"}
    check(home / "run")


def test_what_was_forced_once_is_the_request_from_then_on(home):
    fit_toy(home / "run", changed(home, "seed"), force=True)
    count = len(records(home / "run"))
    fit_toy(home / "run", changed(home, "seed"))
    assert len(records(home / "run")) == count
    assert "seed was 7 and is 0" in refuse(home, toy_spec(home / "data"))


def test_more_epochs_by_force_give_what_they_would_have_given_from_the_start(home):
    fit_toy(home / "run", changed(home, "epochs"), force=True)
    fit_toy(home / "whole", changed(home, "epochs"))
    assert outcome(home / "run") == outcome(home / "whole")


def test_force_on_other_data_goes_on_but_not_with_another_number_of_shards(home):
    make_toy_data(home / "data", shards=3)
    assert "train_shards was 2 and is 3" in refuse(home, toy_spec(home / "data"), force=True)
    make_toy_data(home / "data", seed=1)
    fit_toy(home / "run", toy_spec(home / "data"), force=True)
    assert set(forced(home / "run")) == {"data_digest"}
    check(home / "run")


def test_force_without_a_change_records_nothing(home):
    fit_toy(home / "run", toy_spec(home / "data"), force=True)
    assert forced(home / "run") == {}


# Task code


class Renamed(ToyTask):
    """Other code than that of the run's task, with the same results."""


def test_changed_task_code_is_one_warning(home, caplog):
    with caplog.at_level(logging.WARNING, logger="cerebro"):
        fit_toy(home / "run", toy_spec(home / "data"), task=Renamed())
    assert len(caplog.messages) == 1
    assert "Renamed have changed since the run began" in caplog.messages[0]
    fit_toy(home / "whole", toy_spec(home / "data"))
    assert outcome(home / "run") == outcome(home / "whole")


def test_unchanged_task_code_is_none(home, caplog):
    with caplog.at_level(logging.WARNING, logger="cerebro"):
        fit_toy(home / "run", toy_spec(home / "data"))
    assert caplog.messages == []


# Finished and fresh runs


@pytest.fixture
def finished(home):
    fit_toy(home / "run", toy_spec(home / "data"))
    return home


def test_a_finished_run_returns_at_once_and_trains_nothing(finished):
    before = content(finished)
    task = ToyTask(log=str(finished / "visits"))
    fit_toy(finished / "run", toy_spec(finished / "data"), task=task)
    assert content(finished) == before


def test_a_finished_run_with_another_request_is_refused_too(finished):
    refuse(finished, changed(finished, "seed"))


def test_fresh_moves_the_old_run_aside_whole_and_starts_anew(finished):
    old = content(finished / "run")
    for number in (1, 2):
        visits = finished / f"visits{number}"
        task = ToyTask(log=str(visits))
        fit_toy(finished / "run", toy_spec(finished / "data"), task=task, fresh=True)
        assert len(visits.read_text().splitlines()) == 8
        check(finished / "run")
    assert content(finished / "run.1") == old
    assert outcome(finished / "run") == outcome(finished / "run.1") == outcome(finished / "run.2")


def test_fresh_takes_another_request_without_force(finished):
    fit_toy(finished / "run", changed(finished, "seed"), fresh=True)
    assert forced(finished / "run") == {}
    assert outcome(finished / "run") != outcome(finished / "run.1")


def test_fresh_does_not_move_a_run_that_has_a_driver(finished):
    with RunLock(DirectoryStore(finished / "run")):
        before = content(finished)
        with pytest.raises(RunLockedError):
            fit_toy(finished / "run", toy_spec(finished / "data"), fresh=True)
        assert content(finished) == before


# The journal


def test_a_run_cut_back_to_any_record_of_its_journal_resumes_exactly(finished):
    expected, whole = outcome(finished / "run"), records(finished / "run")
    found = {record["type"] for record in whole} - ({"stacks"} if STACK else set())
    assert found == {"driver", "trial", "visit", "epoch", "trial_end", "done"}
    for count in range(len(whole)):
        root = copy_run(finished / "run", finished / "cut")
        (root / "journal.jsonl").write_bytes(b"".join(map(encode, whole[:count])))
        fit_toy(root, toy_spec(finished / "data"))
        assert outcome(root) == expected, f"another result after the first {count} records"
        check(root)


def test_replaying_a_journal_gives_the_history_of_the_driver_that_wrote_it(home):
    """Whenever anything happens in a resumed run, its driver holds what a prefix gives."""
    spec = toy_spec(home / "data")
    moments = watch_history(home / "run", spec)
    found = records(home / "run")
    prefixes = [replay(found[:count], spec) for count in range(len(found) + 1)]
    place = 0
    for moment in moments:
        assert moment in prefixes[place:], "no prefix of its journal gives what the driver holds"
        place = prefixes.index(moment, place)
    assert len({prefixes.index(moment) for moment in moments}) > (6 if STACK else 8)
    assert load_history(DirectoryStore(home / "run"))[1] == prefixes[-1] == moments[-1]


def replay(found, spec):
    return RunHistory.replay(
        found, steps=spec.train_shards, epochs=spec.epochs, metric=spec.metric, mode=spec.mode
    )


def direct(spec, run):
    """A search that proposes nothing more than there is."""
    space = parse_space(spec.space)
    conductor = make_conductor(spec, make_sampler(spec.search, space), Endless())
    found = Direction(conductor, steps=spec.train_shards, epochs=spec.epochs, is_gated=False)
    found.begin(run.journal.records)
    return found


def watch_history(root, spec):
    """Resume a run; copies of its driver's history at every record for trackers, and at the end."""
    moments = []
    with open_run(DirectoryStore(root), spec, fresh=False, force=False) as run:
        driver = Driver(
            spec,
            run,
            InlineBackend(),
            workers=2,
            threaded=False,
            memory_bytes=None,
            ready=lambda info: run.append({"type": "driver", "number": run.history.drivers}),
            track=lambda record: moments.append(copy.deepcopy(run.history)),
            direction=direct(spec, run),
            orders=Orders(spec, run.history),
        )
        driver.execute(Setup(task=ToyTask(), data=spec.data, store=str(root)))
        return [*moments, copy.deepcopy(run.history)]
