from __future__ import annotations

import pytest

from cerebro.mop.failures import Budget, Cause, Decision, History, decide, explain


@pytest.mark.parametrize(
    ("history", "cause", "decision"),
    [
        (History(("a",)), Cause.ERROR, Decision.RETRY),
        (History(("a", "b")), Cause.ERROR, Decision.RETRY),
        (History(("a", "a")), Cause.ERROR, Decision.FAIL),
        (History(("a", "b", "c")), Cause.ERROR, Decision.FAIL),
        (History(deaths=2), Cause.LOST, Decision.RETRY),
        (History(deaths=3), Cause.LOST, Decision.QUARANTINE),
        (History(("a", "b"), deaths=2), Cause.LOST, Decision.RETRY),
        (History(("nan",)), Cause.DIVERGED, Decision.DIVERGED),
        (History(memory=1), Cause.MEMORY, Decision.RETRY),
        (History(("a",), deaths=1, memory=2), Cause.MEMORY, Decision.TOO_LARGE),
        (History(("a", "b"), deaths=2, memory=1, again=9), Cause.AGAIN, Decision.RETRY),
    ],
)
def test_the_decision_follows_the_budget(
    history: History, cause: Cause, decision: Decision
) -> None:
    assert decide(history, cause, Budget()) is decision


def test_a_budget_bounds_the_attempts_of_any_mix_of_failures() -> None:
    history, budget = History(), Budget()
    for number in range(budget.attempts):
        causes = [Cause.LOST] * (budget.deaths - 1) + [Cause.MEMORY] * (budget.memory - 1)
        cause = [*causes, *[Cause.ERROR] * budget.errors][number]
        history = history.after(cause, str(number))
        decision = decide(history, cause, budget)
        assert (decision is Decision.RETRY) == (number < budget.attempts - 1)


def test_the_reason_names_the_last_error() -> None:
    assert "KeyError: 'y'" in explain(Decision.FAIL, History(("a", "KeyError: 'y'")))


def test_the_reason_of_a_quarantine_counts_the_deaths() -> None:
    assert explain(Decision.QUARANTINE, History(deaths=3)).startswith("quarantined: 3 workers")


def test_an_attempt_that_does_not_count_has_a_number_all_the_same() -> None:
    history = History().after(Cause.AGAIN).after(Cause.MEMORY)
    assert history.attempts == 2


def test_the_reason_of_a_lack_of_memory_says_how_often() -> None:
    assert explain(Decision.TOO_LARGE, History(memory=2)).startswith("out of memory 2 times")


def test_a_divergence_without_detail_is_called_diverged() -> None:
    assert explain(Decision.DIVERGED, History(("",))) == "diverged"
