"""What was measured, in sentences."""

from __future__ import annotations

from cerebro.bench.cases import gather
from cerebro.bench.sweep import Rule, Setting
from cerebro.bench.words import sentences
from tests.unit.bench.made import failed, measured

ONE = Setting(batch=64)
THREE = Setting(nodes=3, batch=64)


def told(*runs: object, is_simulated: bool = True) -> list[str]:
    return sentences(gather(runs), cores=2, is_simulated=is_simulated)  # type: ignore[arg-type]


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


def test_fewer_steps_explain_another_result() -> None:
    each = Setting(nodes=3, batch=64, rule=Rule.RANK)
    lines = told(measured(ONE, best=0.88), measured(each, steps=34, best=0.75))
    (line,) = [line for line in lines if "did not reach" in line]
    assert line.endswith(
        "0.75 against 0.88, for it made 34 steps instead of 100 over the same rows."
    )


def test_the_cost_of_saving_is_told() -> None:
    lines = told(
        measured(Setting(batch=64, checkpoint=False), 10.0),
        measured(Setting(batch=64, checkpoint=True), 12.0),
    )
    assert "Saving the state (1 node, batch 64) made it 20.0 % longer." in lines


def test_saving_that_seems_to_make_it_faster_is_chance() -> None:
    lines = told(
        measured(Setting(batch=64, checkpoint=False), 10.0),
        measured(Setting(batch=64, checkpoint=True), 8.0),
    )
    assert any("cost nothing that can be told from chance (-20.0 %)" in line for line in lines)


def test_batch_sizes_are_compared_with_the_smallest() -> None:
    lines = told(measured(Setting(batch=256), 7.0), measured(Setting(batch=32), 12.0))
    (line,) = [line for line in lines if line.startswith("Batch 256 took")]
    assert "0.58x the time of batch 32" in line


def test_a_busy_machine_is_a_doubt() -> None:
    busy = measured(ONE)
    series = dict(busy.nodes[0].series)
    series["cpu/system"] = (series["cpu/tree"][0], (190.0,) * len(series["cpu/tree"][0]))
    object.__setattr__(busy.nodes[0], "series", series)
    assert any(
        line.startswith("Other programs took up to 100 % of one core") for line in told(busy)
    )
