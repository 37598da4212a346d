from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from cerebro.track.files import leaderboard_csv
from cerebro.track.ranking import Criteria, Ranking, TrialRow, leaderboard, rank
from cerebro.track.standings import format_leaderboard
from cerebro.types import Mode, TrialStatus

MIN = Criteria(metric="val_loss", mode=Mode.MIN)
REPEATED = Criteria(metric="val_loss", mode=Mode.MIN, repeats=2)
BOUND = Criteria(metric="val_loss", mode=Mode.MIN, constraints={"val_bytes": 10.0})
TWO = Criteria(metric="val_loss", mode=Mode.MIN, others=(("val_speed", Mode.MAX),))
FAILED = TrialStatus.FAILED


def row(trial: int, value: float | None = None, **fields: Any) -> TrialRow:
    metrics = {**({} if value is None else {"val_loss": value}), **fields.pop("metrics", {})}
    return TrialRow(trial=trial, params={"lr": 0.1}, metric=value, metrics=metrics, **fields)


def pair(first: int, *values: float | None, **fields: Any) -> list[TrialRow]:
    """The repeats of one configuration; None for one that failed."""
    return [
        row(
            first + repeat,
            value,
            proposal=first,
            repeat=repeat,
            status=FAILED if value is None else TrialStatus.FINISHED,
            **fields,
        )
        for repeat, value in enumerate(values)
    ]


def order(ranking: Ranking) -> list[int]:
    return [config.rows[0].trial for config in ranking.configs]


def table(ranking: Ranking) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(leaderboard_csv(ranking))))


# Repeats


def test_configurations_are_ranked_by_the_mean_over_their_repeats() -> None:
    ranking = rank([*pair(0, 0.1, 0.9), *pair(2, 0.4, 0.4)], REPEATED)
    assert order(ranking) == [2, 0]
    assert [config.mean for config in ranking.configs] == [0.4, 0.5]
    assert ranking.configs[1].std == pytest.approx(0.5657, abs=1e-4)
    assert ranking.best is not None
    assert ranking.best.trial == 2


def test_the_best_trial_is_the_best_of_the_best_configuration() -> None:
    ranking = rank([*pair(0, 0.0, 2.0), *pair(2, 0.5, 0.4)], REPEATED)
    assert ranking.best is not None
    assert ranking.best.trial == 3


def test_a_configuration_with_a_failed_repeat_comes_after_all_complete_ones() -> None:
    ranking = rank([*pair(0, 0.1, None), *pair(2, 0.8, 0.8), *pair(4, None, None)], REPEATED)
    assert order(ranking) == [2, 0, 4]
    assert [config.rank for config in ranking.configs] == [1, 2, None]
    assert [config.is_complete for config in ranking.configs] == [True, False, False]
    assert ranking.configs[1].mean == 0.1
    assert ranking.configs[1].std is None


def test_a_configuration_whose_repeats_are_not_all_there_yet_is_incomplete() -> None:
    ranking = rank([*pair(0, 0.1), *pair(2, 0.8, 0.8)], REPEATED)
    assert order(ranking) == [2, 0]


def test_a_trial_that_a_person_added_is_a_complete_configuration_of_its_own() -> None:
    ranking = rank([*pair(0, 0.5, 0.5), row(2, 0.1)], REPEATED)
    assert order(ranking) == [2, 0]
    assert ranking.configs[0].is_complete


def test_the_table_has_a_row_a_trial_to_be_grouped_by_configuration() -> None:
    rows = table(rank([*pair(0, 0.5, None), *pair(2, 0.2, 0.4)], REPEATED))
    assert [(r["rank"], r["trial"], r["config"], r["repeat"]) for r in rows] == [
        ("1", "t0002", "t0002", "0"),
        ("1", "t0003", "t0002", "1"),
        ("2", "t0000", "t0000", "0"),
        ("", "t0001", "t0000", "1"),
    ]
    assert float(rows[0]["mean"]) == pytest.approx(0.3)
    assert float(rows[0]["std"]) == pytest.approx(0.1414, abs=1e-4)
    assert rows[2]["std"] == ""


def test_the_printed_table_has_a_line_a_configuration_with_mean_and_deviation() -> None:
    rows = [*pair(0, 0.2, 0.4), *pair(2, None, 0.9, error="no luck")]
    lines = format_leaderboard(rank(rows, REPEATED)).splitlines()
    assert lines[0].split() == ["rank", "trials", "val_loss", "lr", "status"]
    assert "t0000..t0001  0.3 ± 0.14  0.1  finished" in lines[1]
    assert lines[2].endswith("1 failed, 1 finished: no luck")


# Constraints


def test_what_breaks_a_constraint_comes_after_what_keeps_it_and_says_so() -> None:
    rows = [
        row(0, 0.1, metrics={"val_bytes": 12.0}),
        row(1, 0.9, metrics={"val_bytes": 10.0}),
        row(2, 0.2),
        row(3, status=FAILED),
    ]
    ranking = rank(rows, BOUND)
    assert order(ranking) == [1, 0, 2, 3]
    assert [config.rank for config in ranking.configs] == [1, 2, 3, None]
    assert [each["feasible"] for each in leaderboard(ranking)] == [True, False, False, False]
    text = format_leaderboard(ranking)
    assert "pending; val_bytes 12 > 10" in text
    assert "pending; val_bytes - > 10" in text


# Several objectives


def test_the_front_has_those_that_nobody_beats_in_everything() -> None:
    values = {0: (0.1, 1.0), 1: (0.2, 3.0), 2: (0.3, 2.0), 3: (0.4, 4.0), 4: (0.1, 0.5)}
    rows = [row(n, loss, metrics={"val_speed": speed}) for n, (loss, speed) in values.items()]
    ranking = rank([*rows, row(5, 0.0), row(6, 0.0, status=FAILED)], TWO)
    assert [c.rows[0].trial for c in ranking.configs if c.is_on_front] == [0, 1, 3]
    assert [each["pareto"] for each in leaderboard(ranking)].count(True) == 3


def test_equal_ones_are_all_on_the_front() -> None:
    rows = [row(n, 0.1, metrics={"val_speed": 1.0}) for n in range(2)]
    assert all(config.is_on_front for config in rank(rows, TWO).configs)


def test_what_breaks_a_constraint_is_not_on_the_front() -> None:
    criteria = Criteria(
        metric="val_loss", mode=Mode.MIN, others=TWO.others, constraints={"val_loss": 0.5}
    )
    rows = [row(0, 0.4, metrics={"val_speed": 1.0}), row(1, 0.6, metrics={"val_speed": 9.0})]
    assert [config.is_on_front for config in rank(rows, criteria).configs] == [True, False]


def test_the_printed_table_shows_all_objectives_and_marks_the_front() -> None:
    rows = [row(0, 0.1, metrics={"val_speed": 5.0}), row(1, 0.2, metrics={"val_speed": 4.0})]
    header, first, second = format_leaderboard(rank(rows, TWO)).splitlines()
    assert header.split()[2:6] == ["val_loss", "epoch", "val_speed", "pareto"]
    assert first.split()[2:6] == ["0.1", "-", "5", "*"]
    assert "*" not in second


# Copies


def test_a_copy_names_its_parent() -> None:
    ranking = rank([row(0, 0.5), row(1, 0.4, parent=0, parent_epochs=4)], MIN)
    first, second = table(ranking)
    assert (first["parent"], first["parent_epochs"]) == ("t0000", "4")
    assert (second["parent"], second["parent_epochs"]) == ("", "")
    assert "t0000, epoch 4" in format_leaderboard(ranking)


def test_a_run_without_such_things_has_no_columns_for_them() -> None:
    (found,) = leaderboard(rank([row(0, 0.5)], MIN))
    assert list(found) == [
        *("rank", "trial", "status", "val_loss", "epoch", "epochs", "params.lr", "error")
    ]


def test_statuses_are_told_in_words() -> None:
    rows = [
        row(0, 0.1, status=TrialStatus.PAUSED),
        row(1, 0.2, status=TrialStatus.PAUSED, is_held=True),
        row(2, status=TrialStatus.OUT_OF_MEMORY, error="needs 9 GB"),
    ]
    _, *lines = format_leaderboard(rank(rows, MIN)).splitlines()
    words = ["waiting", "paused", "out of memory: needs 9 GB"]
    assert [line.split("0.1  ")[-1] for line in lines] == words
