"""What was measured, in sentences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cerebro.bench.cases import gather
from cerebro.bench.measurement import Measurement
from cerebro.bench.sweep import Rule, Setting, Sweep
from cerebro.bench.words import sentences
from cerebro.types import Mode
from tests.unit.bench.made import failed, measured

ONE = Setting(batch=64)
THREE = Setting(nodes=3, batch=64)


def told(*runs: Measurement, is_simulated: bool = True) -> list[str]:
    return sentences(gather(runs), cores=2, is_simulated=is_simulated)


def about(lines: list[str], start: str) -> str:
    (line,) = [line for line in lines if line.startswith(start) and "took" in line]
    return line


def test_more_nodes_that_are_slower_are_told_with_the_reason() -> None:
    lines = told(measured(ONE, 10.0), measured(THREE, 14.0, communication=0.61))
    line = about(lines, "3 nodes")
    assert line.startswith(
        "3 nodes took 1.40x as long as 1 node at the same global batch (64): 61 % of the step was "
        "communication;"
    )
    assert line.endswith("Simulated: all nodes shared the 2 cores of one machine.")


def test_more_nodes_that_are_faster_are_told_so() -> None:
    lines = told(measured(ONE, 10.0), measured(THREE, 4.0), is_simulated=False)
    line = about(lines, "3 nodes")
    assert "took 0.40x the time of 1 node" in line
    assert "(2.50x as fast)" in line
    assert "Simulated" not in line


def test_a_difference_within_chance_is_called_none() -> None:
    lines = told(measured(ONE, 10.0), measured(THREE, 10.5))
    assert "took about as long as 1 node" in about(lines, "3 nodes")


def test_repeats_that_agree_make_small_differences_count() -> None:
    runs = [measured(s, t) for s, t in ((ONE, 10.0), (THREE, 10.8))]
    again = [
        measured(Setting(batch=64, repeat=1), 10.1),
        measured(Setting(nodes=3, batch=64, repeat=1), 10.9),
    ]
    assert "took 1.08x as long" in about(told(*runs, *again), "3 nodes")


def test_a_setting_that_failed_is_told_first() -> None:
    lines = told(measured(ONE), failed(THREE, "node 1 ended with 2: no route"))
    assert lines[0] == "3 nodes, batch 64 in all failed: node 1 ended with 2: no route"


def result(lines: list[str]) -> str:
    (line,) = [line for line in lines if "val_accuracy" in line]
    return line


def test_fewer_steps_explain_a_lower_result() -> None:
    each = Setting(nodes=3, batch=64, rule=Rule.RANK)
    lines = told(measured(ONE, best=0.88), measured(each, steps=34, best=0.75))
    assert result(lines).endswith(
        "reached a lower val_accuracy than 1 node: 0.75 against 0.88, for it made 34 steps instead "
        "of 100 over the same rows."
    )


def test_a_higher_result_is_called_higher_and_not_explained_by_fewer_steps() -> None:
    each = Setting(nodes=3, batch=64, rule=Rule.RANK)
    line = result(told(measured(ONE, best=0.55), measured(each, steps=34, best=0.78)))
    assert line.endswith("reached a higher val_accuracy than 1 node: 0.78 against 0.55.")


def test_a_lower_loss_needs_no_excuse() -> None:
    changes: dict[str, Any] = {"metric": "val_loss", "mode": Mode.MIN}
    each = Setting(nodes=3, batch=64, rule=Rule.RANK)
    before = replace(measured(ONE, best=0.9), **changes)
    after = replace(measured(each, steps=34, best=0.6), **changes)
    (line,) = [line for line in told(before, after) if "val_loss" in line]
    assert "a lower val_loss than 1 node" in line
    assert "steps" not in line


@pytest.mark.parametrize(
    ("rows", "said"), [(1000, "as good as"), (100_000, "lower"), (None, "low")]
)
def test_few_validation_rows_tell_little(rows: int | None, said: str) -> None:
    lines = told(
        measured(ONE, best=0.919, valid_rows=rows), measured(THREE, best=0.906, valid_rows=rows)
    )
    assert said in result(lines)


def test_where_nothing_was_learned_nobody_is_praised() -> None:
    flat: dict[str, Any] = {"best": 0.113, "rise": (1.0, 0.99, 1.0), "valid_rows": 1000}
    line = result(told(measured(ONE, **flat), measured(THREE, **flat)))
    assert line.startswith("Nothing was learned by 2 settings with batches of 64 in so few epochs")
    assert line.endswith("which says nothing about convergence.")


def test_a_result_that_was_good_at_once_was_learned() -> None:
    flat: dict[str, Any] = {"best": 0.98, "rise": (1.0, 1.0, 1.0), "valid_rows": 1000}
    assert "as good as that of 1 node" in result(
        told(measured(ONE, **flat), measured(THREE, **flat))
    )


def test_the_cost_of_saving_is_told() -> None:
    lines = told(
        measured(Setting(batch=64, checkpoint=False), 10.0),
        measured(Setting(batch=64, checkpoint=True), 12.0),
    )
    assert "Saving the state (1 node, batch 64) made it 20.0 % longer." in lines


def saving(*times: tuple[int, float, float]) -> list[Measurement]:
    """Pairs: batch, seconds without, seconds with."""
    return [
        measured(Setting(batch=batch, checkpoint=is_saved), seconds)
        for batch, without, saved in times
        for is_saved, seconds in ((False, without), (True, saved))
    ]


def test_saving_that_seems_to_make_it_faster_is_chance() -> None:
    lines = told(*saving((64, 10.0, 8.0)))
    assert any("cost nothing that can be told from chance (-20.0 %)" in line for line in lines)


def test_what_seems_to_be_won_in_one_pair_is_chance_in_the_others() -> None:
    (line,) = [line for line in told(*saving((32, 10, 7.7), (64, 10, 11.4))) if "Saving" in line]
    assert "cost nothing that can be told from chance (-23.0 to +14.0 %)" in line
    (line,) = [line for line in told(*saving((32, 10, 9.5), (64, 10, 11.4))) if "Saving" in line]
    assert "14.0 % longer in 1 of 2 pairs, most with 1 node, batch 64" in line


def test_on_a_busy_machine_saving_has_no_cost_that_is_told() -> None:
    lines = told(*map(disturbed, saving((64, 10.0, 14.0))))
    (line,) = [line for line in lines if "Saving" in line]
    assert "+40.0 %; what it costs cannot be told" in line


def test_batch_sizes_are_compared_with_the_smallest() -> None:
    lines = told(measured(Setting(batch=256), 7.0), measured(Setting(batch=32), 12.0))
    (line,) = [line for line in lines if line.startswith("Batch 256 took")]
    assert "0.58x the time of batch 32" in line


def test_several_batch_sizes_are_one_sentence() -> None:
    lines = told(*(measured(Setting(batch=b), s) for b, s in ((32, 12.0), (64, 9.0), (256, 6.0))))
    (line,) = [line for line in lines if "rows/s" in line]
    assert line.startswith("Batch 64 took 0.75x and batch 256 0.50x the time of batch 32")


def disturbed(run: Measurement) -> Measurement:
    """The same while others had a core."""
    busy = {
        what: (times, (190.0,) * len(times) if what == "cpu/system" else values)
        for what, (times, values) in run.nodes[0].series.items()
    }
    return replace(run, nodes=(replace(run.nodes[0], series=busy), *run.nodes[1:]))


def test_a_busy_machine_is_a_doubt() -> None:
    assert any(
        line.startswith("Other programs took up to 100 % of one core")
        for line in told(disturbed(measured(ONE)))
    )


def test_samples_that_are_missing_are_a_doubt() -> None:
    run = measured(THREE, 10.0)
    lines = told(replace(run, nodes=run.nodes[:1]), is_simulated=False)
    assert [line for line in lines if "the samples of 2 nodes are missing" in line]
    assert not any("missing" in line for line in told(run, is_simulated=False))


def test_processes_of_one_machine_are_said_to_share_it() -> None:
    line = about(told(measured(ONE), measured(Setting(procs=2, batch=64), 20.0)), "1 node with 2")
    assert line.endswith("The processes of one machine share its cores.")


def test_a_large_sweep_is_told_in_a_dozen_sentences() -> None:
    sweep = Sweep(nodes=(1, 2, 3), procs=(1, 2), batches=(32, 64, 256), checkpoint=True)
    runs = [
        measured(s, 10.0 * s.ranks + s.nodes, communication=1 - 1 / s.ranks, shards=(750,) * 8)
        for s in sweep.settings()
    ]
    lines = told(*runs)
    assert len(lines) <= 12
    assert sum("Simulated" in line for line in lines) == 1
    (line,) = [line for line in lines if line.startswith("At the same global batch more nodes")]
    assert "made it slower in all cases: 2 nodes took 2.0 times, 3 nodes 3.0 times" in line
    assert "as long as 1 node, with batches of 32 to 256." in line
    assert "Slowest, 5.73x: 3 nodes x 2 processes, batch 256 in all, where 83 % of the step" in line
    (line,) = [line for line in lines if line.startswith("1 node with 2 processes took 1.9 times")]
    assert "share its cores" in line
    (line,) = [line for line in lines if "larger than a shard" in line]
    assert line.startswith("Batches of 768, 1024 and 1536 in all are")
    assert "8 shards of 750 rows" in line


def test_one_comparison_of_nodes_among_many_of_processes_stands_alone() -> None:
    settings = [Setting(procs=procs, batch=64) for procs in range(1, 7)]
    runs = [measured(setting, 10.0 * setting.procs) for setting in settings]
    lines = told(*runs, measured(Setting(nodes=2, batch=64), 30.0))
    assert about(lines, "2 nodes").startswith("2 nodes took 3.00x as long as 1 node at the same")
    assert "and 1 node with 6 processes 6.0 times as long as 1 node" in about(lines, "1 node with")


def test_nodes_that_differ_in_what_they_bring_are_counted() -> None:
    times = {(1, 32): 10, (2, 32): 12, (3, 32): 15, (1, 64): 10, (2, 64): 5, (3, 64): 10}
    times |= {(1, 128): 10, (2, 128): 5, (3, 128): 4}
    runs = [measured(Setting(nodes=n, batch=b), s) for (n, b), s in times.items()]
    line = about(told(*runs), "At the same global batch")
    assert "slower in 2 of 6 cases, faster in 3 and neither slower nor faster in 1" in line
    assert "2 nodes took 0.5 to 1.2 times" in line
    assert "Fastest, 0.40x: 3 nodes, batch 128 in all" in line
