"""R20: whatever states are lost, and when, a run ends as if none had been.

And what its journal called durable is not trained again.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest

from cerebro.backend import InlineBackend, LocalBackend
from cerebro.backend.base import Job, Source
from cerebro.errors import RunInterrupted
from cerebro.results import Result
from cerebro.run.spec import Checkpointing, RunSpec
from cerebro.run.unit import LOSSES
from cerebro.search.domain import LogUniform
from cerebro.testing.history import check
from cerebro.testing.lossy import LossyBackend, Rule, lose_always, lose_at, lose_randomly
from cerebro.train.visit import VisitCall
from cerebro.types import TrialStatus
from tests.experiments import StoppedAfter, fit_toy, make_toy_data, outcome, toy_spec
from tests.kills import Visits, assert_exact_from_every_state, durable_visits

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

OPERATIONS = ["save", "submit"]
SPACE = {"lr": LogUniform(1e-3, 1.0)}
SICK = {"lr": [0.5, 0.05], "fail": [None, {"kind": "nan_loss", "epoch": 1}]}
HALVING = {"search": "random", "num_trials": 4, "stopper": {"name": "halving", "eta": 2}}
ASHA = {**HALVING, "stopper": {"name": "asha", "eta": 2}}

#: Name -> changes of the spec.
CASES: dict[str, dict[str, Any]] = {
    "alone": {},
    "stacked": {"stack": 2},
    "by-epoch": {"checkpoint": Checkpointing.EPOCH},
    "by-epoch-stacked": {"checkpoint": Checkpointing.EPOCH, "stack": 2},
    "off": {"checkpoint": Checkpointing.OFF},
    "off-stacked": {"checkpoint": Checkpointing.OFF, "stack": 2},
    "sick-stacked": {"space": SICK, "stack": 4},
    "sick-by-epoch-stacked": {"space": SICK, "stack": 4, "checkpoint": Checkpointing.EPOCH},
    "asha": {"space": SPACE, **ASHA},
    "asha-stacked": {"space": SPACE, **ASHA, "stack": 2},
    "halving": {"space": SPACE, **HALVING},
    "halving-stacked": {"space": SPACE, **HALVING, "stack": 4},
    "halving-by-epoch": {"space": SPACE, **HALVING, "checkpoint": Checkpointing.EPOCH},
    "halving-off": {"space": SPACE, **HALVING, "checkpoint": Checkpointing.OFF},
    "pbt": {"space": SPACE, **HALVING, "stopper": {"name": "pbt", "interval": 1}},
}


class Watched(LossyBackend):
    """Sees to it that nothing is trained that is durable already."""

    def __init__(self, root: Path, rule: Rule, **options: Any) -> None:
        super().__init__(InlineBackend(), rule, **options)
        self._root = root
        self._seen: Visits = set()
        self.trained = 0

    def submit(
        self, worker: int, call: VisitCall | Job, source: Source, *, consume: bool = False
    ) -> None:
        if isinstance(call, VisitCall) and call.is_training:
            visits = {(trial, call.epoch, call.step) for trial in call.trials}
            again = visits & self._seen
            assert not again or not again & durable_visits(self._root)
            self._seen |= visits
            self.trained += 1
        super().submit(worker, call, source, consume=consume)


@pytest.fixture
def data(folder):
    return make_toy_data(folder / "data", shards=3).path


def spec_of(case: str, data: Path) -> RunSpec:
    changes = {"stack": False, **CASES[case]}
    return toy_spec(data, changes.pop("space", {"lr": [0.5, 0.05, 0.2]}), **changes)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("case", CASES)
def test_any_state_may_be_lost(folder, data, case, operation):
    assert_exact_after_every_loss(folder, spec_of(case, data), operation)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("case", ["alone", "by-epoch-stacked", "off", "halving-by-epoch"])
def test_all_states_of_a_node_may_be_lost_at_once(folder, data, case, operation):
    assert_exact_after_every_loss(folder, spec_of(case, data), operation, nodes=2)


@pytest.mark.parametrize("case", ["alone", "by-epoch-stacked", "asha-stacked"])
def test_a_state_that_can_be_saved_is_not_made_again(folder, data, case):
    """It is on its way to the store when a visit cannot have it, or there already."""
    assert_exact_after_every_loss(folder, spec_of(case, data), "submit", can_save=True)


def assert_exact_after_every_loss(
    folder: Path,
    spec: RunSpec,
    operation: str,
    nodes: int | None = None,
    *,
    can_save: bool = False,
) -> None:
    """n = 1, 2, 3 ... until a run has fewer such operations."""
    workers = nodes or 1
    fit_toy(folder / "whole", spec, workers=workers)
    expected = outcome(folder / "whole")
    root = folder / "run"
    whole = Watched(root, lambda *_: False)
    fit_toy(root, spec, backend=whole, workers=workers)
    shutil.rmtree(root)
    for n in itertools.count(1):
        backend = Watched(root, lose_at(operation, n), nodes=nodes, can_save=can_save)
        fit_toy(root, spec, backend=backend, workers=workers)
        if backend.counts[operation] < n:
            has_none = spec.checkpoint is Checkpointing.OFF and operation == "save"
            assert n == 1 if has_none else n > 2
            return
        assert backend.losses, f"nothing was lost at {operation} {n}"
        assert outcome(root) == expected, f"another result after a loss at {operation} {n}"
        check(root)
        if nodes is None and spec.checkpoint is Checkpointing.VISIT:
            # The one that was not durable, and the one that was to begin with it.
            assert backend.trained <= whole.trained + (1 if can_save else 2)
        shutil.rmtree(root)


@pytest.mark.parametrize("threaded", [False, True], ids=["inline", "threaded"])
@pytest.mark.parametrize("case", ["alone", "stacked", "by-epoch", "off", "halving", "pbt"])
@pytest.mark.parametrize("share", [0.1, 0.2])
def test_so_may_many(folder, data, case, share, threaded, seed):
    spec = spec_of(case, data)
    fit_toy(folder / "whole", spec)
    is_often = spec.checkpoint is Checkpointing.VISIT
    rule = lose_randomly(seed, share if is_often else share / 3)
    backend = LossyBackend(InlineBackend(), rule)
    fit_toy(folder / "run", spec, backend=backend, workers=2, threaded=threaded)
    check(folder / "run")
    statuses = {trial.status for trial in Result.open(folder / "run").trials}
    # Few seeds make a trial lose its state too often in a row.
    if TrialStatus.FAILED not in statuses:
        assert outcome(folder / "run") == outcome(folder / "whole")


def test_so_may_those_of_processes(folder, data):
    spec = spec_of("by-epoch", data)
    fit_toy(folder / "whole", spec)
    backend = LossyBackend(LocalBackend(), lose_at("submit", 3, 7, 12), nodes=2)
    fit_toy(folder / "run", spec, backend=backend, workers=2, threaded=True)
    assert backend.losses
    check(folder / "run")
    assert outcome(folder / "run") == outcome(folder / "whole")


@pytest.mark.parametrize(
    "case", ["alone", "by-epoch", "by-epoch-stacked", "off", "halving-by-epoch"]
)
def test_one_that_is_stopped_and_cannot_save_resumes_from_what_is_durable(folder, data, case):
    spec = spec_of(case, data)
    fit_toy(folder / "whole", spec)
    for count in (2, 5):
        for rule in (lose_always("save"), lose_at("save", 1), lose_always("submit", 4)):
            root = folder / "run"
            with contextlib.suppress(RunInterrupted):
                fit_toy(root, spec, backend=LossyBackend(StoppedAfter(count), rule), workers=2)
            check(root)
            fit_toy(root, spec)
            check(root)
            assert outcome(root) == outcome(folder / "whole")
            shutil.rmtree(root)


@pytest.mark.parametrize("case", ["stacked", "off"])
def test_one_that_is_killed_after_losses_resumes_exactly(folder, data, case, seed):
    def work(root, spec, **settings):
        rule = lose_at("submit" if case == "off" else "save", 2, 5)
        fit_toy(root, spec, backend=LossyBackend(InlineBackend(), rule), **settings)

    states = assert_exact_from_every_state(
        folder, spec_of(case, data), first=seed % 4, stride=4, work=work
    )
    assert states > 20


def test_a_stopped_run_tells_what_could_not_be_saved(folder, data):
    spec = spec_of("by-epoch", data)
    backend = LossyBackend(StoppedAfter(2), lose_always("save"))
    with pytest.raises(RunInterrupted, match=r"0 visits are saved, [1-9] more could not be"):
        fit_toy(folder / "run", spec, backend=backend)


@pytest.mark.parametrize("case", ["alone", "stacked", "by-epoch", "off"])
def test_a_unit_that_always_loses_its_state_ends_with_the_reason(folder, data, case):
    spec = spec_of(case, data)
    rule = lose_always("submit" if case == "off" else "save")
    fit_toy(folder / "run", spec, backend=LossyBackend(InlineBackend(), rule))
    check(folder / "run")
    for trial in Result.open(folder / "run").trials:
        assert trial.status is TrialStatus.FAILED
        assert trial.error is not None
        assert f"its state was lost {LOSSES} times" in trial.error
