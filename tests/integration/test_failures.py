"""R10, R13, R17: one bad trial, or a bad tracker, harms nothing but itself."""

from __future__ import annotations

import logging
import threading
import time

import numpy as np
import pytest

from cerebro import Experiment, Result
from cerebro.backend import LocalBackend
from cerebro.data import digits, from_arrays
from cerebro.errors import UsageError, WorkerError
from cerebro.testing.history import check
from cerebro.track.files import FileTracker
from cerebro.track.tensorboard import TensorBoardTracker
from cerebro.track.tracker import CLOSE_TIMEOUT_S
from cerebro.types import TrialStatus
from tests.experiments import fit_toy, learnt, make_toy_data, outcome, toy_spec, trial_files
from tests.tasks import FragileNet
from tests.unit.backend.growing import SpoiledTask

LRS = [0.5, 0.05]
#: Trials 0 and 1 are healthy, 2 and 3 are not.
SICK = (2, 3)


@pytest.fixture
def data(folder):
    make_toy_data(folder / "data")
    return folder / "data"


def run_sick(folder, data, fail, *, local=False, workers=2, **options):
    """A run whose trials 2 and 3 fail; it must be finished, and trials 0 and 1 be unharmed."""
    if local:
        options |= {"backend": LocalBackend(log_dir=str(folder / "logs")), "threaded": True}
    sick = toy_spec(data, {"fail": [None, fail], "lr": LRS})
    fit_toy(folder / "sick", sick, workers=workers, **options)
    fit_toy(folder / "well", toy_spec(data, {"fail": [None], "lr": LRS}))
    check(folder / "sick")
    found, healthy = learnt(folder / "sick"), learnt(folder / "well")
    assert {number: found[number] for number in healthy} == healthy
    assert sorted(found) == [0, 1, *SICK]
    return Result.open(folder / "sick")


def assert_ended(result, status, *texts):
    """The sick trials are last on the leaderboard, with their params and what went wrong."""
    rows = list(result.leaderboard())[-len(SICK) :]
    assert [row["trial"] for row in rows] == ["t0002", "t0003"]
    for row, lr in zip(rows, LRS, strict=True):
        assert (row["status"], row["params.lr"]) == (status, lr)
        for text in texts:
            assert text in row["error"]


@pytest.mark.parametrize("local", [False, True], ids=["inline", "local"])
def test_a_trial_that_raises_fails_after_two_attempts_and_says_where(folder, data, local):
    result = run_sick(folder, data, {"kind": "raise", "epoch": 1, "step": 1}, local=local)
    assert_ended(
        result, "failed", "ValueError: this trial raises on purpose", "2 attempts", "epoch 1"
    )
    assert "in strike" in result.trials[2].traceback


@pytest.mark.parametrize("local", [False, True], ids=["inline", "local"])
def test_a_failed_trial_keeps_the_checkpoint_of_its_last_good_visit(folder, data, local):
    result = run_sick(folder, data, {"kind": "raise", "epoch": 1, "step": 1}, local=local)
    # Visits 1 and 2 are the first epoch, and its best; visit 3 is the last good one.
    names = ["v000002-a0.json", "v000002-a0.safetensors", "v000003-a0.json"]
    assert trial_files(folder / "sick", 2) == [*names, "v000003-a0.safetensors"]
    model = result.load(2, which="final")
    assert np.isfinite(model.weight).all()


@pytest.mark.parametrize("local", [False, True], ids=["inline", "local"])
def test_an_exception_that_cannot_be_pickled_is_reported_as_any_other(folder, data, local):
    result = run_sick(folder, data, "unpicklable", local=local)
    assert_ended(result, "failed", "UnpicklableError: this trial raises what cannot be pickled")


@pytest.mark.parametrize("kind", ["raise", "exit"])
def test_a_visit_that_fails_once_is_tried_again_and_the_result_is_the_same(folder, data, kind):
    spec = toy_spec(data, {"fail": {"constant": {"kind": kind, "step": 1, "attempts": 1}}, "lr": 1})
    fit_toy(folder / "once", spec, backend=LocalBackend(), workers=2, threaded=True)
    spec = toy_spec(data, {"fail": [None], "lr": 1})
    fit_toy(folder / "never", spec)
    check(folder / "once")
    assert learnt(folder / "once")[0][1:] == learnt(folder / "never")[0][1:]
    assert learnt(folder / "once")[0][1] is TrialStatus.FINISHED


@pytest.mark.parametrize(
    ("kind", "cause"),
    [("exit", "exited with code 1"), ("segfault", "SIGSEGV"), ("kill", "SIGKILL")],
)
def test_a_trial_that_kills_three_workers_is_quarantined(folder, data, kind, cause):
    result = run_sick(folder, data, {"kind": kind, "epoch": 1}, local=True)
    assert_ended(result, "failed", cause, "quarantined: 3 workers died")
    assert trial_files(folder / "sick", 2) == ["v000002-a0.json", "v000002-a0.safetensors"]


@pytest.mark.parametrize("batch", [0, 1, 2], ids=["first", "middle", "last"])
def test_a_loss_that_is_nan_ends_the_trial_as_diverged(folder, data, batch):
    result = run_sick(folder, data, {"kind": "nan_loss", "epoch": 1, "batch": batch})
    assert_ended(result, "diverged", f"loss is nan at step {batch} of the visit")
    assert np.isfinite(result.load(2, which="final").weight).all()


@pytest.mark.parametrize("local", [False, True], ids=["inline", "local"])
def test_weights_that_are_not_finite_are_never_saved(folder, data, local):
    last_batch = {"kind": "nan_state", "epoch": 1, "step": 1, "batch": 2}
    result = run_sick(folder, data, last_batch, local=local)
    assert_ended(result, "diverged", "not finite")
    assert np.isfinite(result.load(2, which="final").weight).all()
    assert max(visits for visits, _ in result.states(2)) == 3


@pytest.mark.parametrize("local", [False, True], ids=["inline", "local"])
def test_a_metric_that_is_nan_ends_the_trial_as_diverged(folder, data, local):
    result = run_sick(folder, data, {"kind": "nan_metric", "epoch": 1}, local=local)
    assert_ended(result, "diverged", "val_accuracy is nan")
    assert len(result.history(2)) == 1


def test_a_trial_after_which_a_gpu_is_of_no_use_fails_alone(folder, data):
    experiment = Experiment(name="run", data=data, store=folder, workers=1, backend="local")
    space = {"lr": LRS, "is_wrong": [True, False], "batch_size": 16}
    settings = {"metric": "val_loss", "mode": "min", "stack": False, "progress": False}
    result = experiment.run_fit(SpoiledTask(), space, 2, **settings)
    check(folder / "run")
    for trial in result.trials:
        assert trial.status == ("failed" if trial.params["is_wrong"] else "finished")
        assert ("device-side assert" in (trial.error or "")) == trial.params["is_wrong"]


def test_a_resumed_run_does_not_try_a_failed_trial_again(folder, data):
    run_sick(folder, data, "raise")
    before = (folder / "sick" / "journal.jsonl").read_bytes()
    fit_toy(folder / "sick", toy_spec(data, {"fail": [None, "raise"], "lr": LRS}), workers=2)
    assert (folder / "sick" / "journal.jsonl").read_bytes() == before


def test_a_run_in_which_every_trial_fails_is_finished_and_has_no_best(folder, data):
    fit_toy(folder / "run", toy_spec(data, {"fail": ["raise"], "lr": LRS}))
    check(folder / "run")
    result = Result.open(folder / "run")
    assert [row["status"] for row in result.leaderboard()] == ["failed", "failed"]
    with pytest.raises(UsageError, match="this trial raises on purpose"):
        _ = result.best


def test_workers_that_cannot_start_end_the_run_with_their_words(folder, data):
    class Broken:
        def __reduce__(self):
            return eval, ("__import__('os')._exit(3)",)

    with pytest.raises(WorkerError, match="exited with code 3"):
        fit_toy(
            folder / "run",
            toy_spec(data),
            backend=LocalBackend(log_dir=str(folder / "logs")),
            task=Broken(),
            threaded=True,
        )
    assert not (folder / "run").exists()


# PyTorch


@pytest.fixture(scope="module")
def net_home(tmp_path_factory):
    home = tmp_path_factory.mktemp("fragile")
    columns = {name: column[:400] for name, column in digits().items()}
    from_arrays(home / "data", train=columns, shards=2, validation=0.2)
    return home


def run_net(home, name, fails):
    experiment = Experiment(
        name=name, data=home / "data", store=home / "runs", backend="inline", workers=1
    )
    result = experiment.run_fit(
        FragileNet(),
        {"fail": fails, "lr": 0.01, "width": 16},
        num_epochs=2,
        batch_size=32,
        metric="val_loss",
        mode="min",
        progress=False,
    )
    check(home / "runs" / name)
    return result


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        ({"kind": "loss", "batch": 0}, "loss is nan at step 0"),
        ({"kind": "loss", "batch": 2}, "loss is nan at step 2"),
        ({"kind": "loss", "batch": 4}, "loss is nan at step 4"),
        ({"kind": "gradient", "batch": 0}, "nan"),
        ({"kind": "gradient", "batch": 4}, "not finite after the visit"),
        ({"kind": "metric"}, "val_accuracy is nan"),
    ],
)
def test_nan_anywhere_in_a_torch_trial_makes_it_diverged(net_home, fail, message):
    name = f"{fail['kind']}{fail.get('batch', '')}"
    result = run_net(net_home, name, [None, fail])
    assert result.trials[1].status == "diverged"
    assert message in result.trials[1].error
    well = run_net(net_home, f"{name}-well", [None])
    assert learnt(net_home / "runs" / name)[0] == learnt(net_home / "runs" / f"{name}-well")[0]
    assert outcome(net_home / "runs" / f"{name}-well").leaderboard[0]["trial"] == "t0000"
    assert well.best.params["fail"] is None


# Trackers


class RaisingTracker:
    def record(self, record):
        raise RuntimeError("no space on the tracker's disk")

    def close(self):
        raise RuntimeError("still none")


class BlockingTracker:
    def __init__(self):
        self.is_over = threading.Event()

    def record(self, record):
        self.is_over.wait()

    def close(self):
        self.is_over.wait()


def test_a_tracker_that_raises_costs_one_warning_and_nothing_else(folder, data, caplog):
    with caplog.at_level(logging.WARNING, logger="cerebro"):
        fit_toy(folder / "run", toy_spec(data), trackers=[RaisingTracker()])
    fit_toy(folder / "without", toy_spec(data))
    check(folder / "run")
    assert outcome(folder / "run") == outcome(folder / "without")
    warnings = [r.getMessage() for r in caplog.records if "RaisingTracker" in r.getMessage()]
    assert len(warnings) == 1


def test_a_tracker_that_blocks_delays_the_end_by_five_seconds_at_most(folder, data, caplog):
    tracker = BlockingTracker()
    began = time.monotonic()
    with caplog.at_level(logging.WARNING, logger="cerebro"):
        fit_toy(folder / "run", toy_spec(data), trackers=[tracker])
    took_s = time.monotonic() - began
    tracker.is_over.set()
    fit_toy(folder / "without", toy_spec(data))
    assert outcome(folder / "run") == outcome(folder / "without")
    # What the run itself takes is more on a busy machine.
    assert took_s < CLOSE_TIMEOUT_S + 30.0
    assert "BlockingTracker was still busy" in caplog.text


@pytest.mark.parametrize("tracker", [FileTracker, TensorBoardTracker])
def test_a_tracker_that_cannot_write_is_dropped_with_one_warning(folder, data, tracker, caplog):
    (folder / "file").write_text("not a directory")
    with caplog.at_level(logging.WARNING, logger="cerebro"):
        fit_toy(folder / "run", toy_spec(data), trackers=[tracker(folder / "file")])
    fit_toy(folder / "without", toy_spec(data))
    assert outcome(folder / "run") == outcome(folder / "without")
    assert len(caplog.messages) == 1
    assert f"{tracker.__name__} failed and was dropped" in caplog.messages[0]
