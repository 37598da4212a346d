"""Tables of what was measured."""

from __future__ import annotations

from cerebro.bench.cases import gather
from cerebro.bench.sweep import Setting
from cerebro.bench.tables import comparison_table, times_table
from tests.unit.bench.made import failed, measured

ONE = measured(Setting(batch=64), 10.0, threads=2)
TWO = measured(Setting(nodes=2, batch=64), 13.0)
LOST = failed(Setting(nodes=3, batch=64), "no route")


def column(table: list[list[str]], name: str) -> list[str]:
    place = table[0].index(name)
    return [row[place] for row in table[1:]]


def test_times_are_put_against_others_of_the_same_batch_alone() -> None:
    cases = gather([ONE, TWO])
    assert column(comparison_table(cases), "time against the first") == ["1.00x", "1.30x"]
    everything = times_table(cases)
    assert not any("against" in name for name in everything[0])
    assert "1.30x" not in everything[2]


def test_a_table_says_with_how_many_threads_each_process_computed() -> None:
    assert column(times_table(gather([ONE, TWO])), "threads") == ["2", "1"]


def test_rows_are_as_wide_as_the_header_though_one_has_failed() -> None:
    cases = gather([ONE, LOST])
    for table in (times_table(cases), comparison_table(cases)):
        assert len({len(row) for row in table}) == 1
        assert column(table, "completion s") == ["15", "failed"]
