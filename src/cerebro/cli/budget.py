"""Whether a time budget will do, told before a run starts."""

from __future__ import annotations

import sys

from cerebro.config.schema import ExperimentConfig
from cerebro.run.recovery import load_history
from cerebro.search.budget import parse_budget
from cerebro.storage import layout, open_store


def warn_of_budget(config: ExperimentConfig, *, is_fresh: bool) -> None:
    """Say so on standard error if the run will take longer than it may, as far as is known."""
    seconds = parse_budget(config.budget).get("seconds")
    if seconds is None:
        return
    # Only here: a run without such a budget starts without all this.
    from cerebro.cli.measuring import find_measured
    from cerebro.cli.plan import expect_s, make_plan, written_duration

    plan = make_plan(config)
    measured, _ = find_measured(config, plan.dataset)
    if measured is None:
        return
    needed_s, left_s = expect_s(plan, measured), seconds
    store = open_store(config.store).child(config.name)
    if store.exists(layout.RUN) and not is_fresh:
        history = load_history(store)[1]
        done = sum(trial.visits for trial in history.trials.values())
        needed_s *= max(0.0, 1 - done / max(1, plan.train_visits))
        left_s -= history.spent_s + history.driver_s
    if needed_s > left_s:
        print(
            f"the budget of {written_duration(seconds)} is not enough: about "
            f"{written_duration(needed_s)} are needed; the run will end when it is used up",
            file=sys.stderr,
        )
