"""What was measured, in sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cerebro.bench.cases import gather
from cerebro.bench.measurement import Measurement
from cerebro.bench.sweep import Setting, Sweep
from cerebro.bench.words import sentences
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
        "3 nodes took 1.40x as long as 1 node at the same global batch (64), so more nodes made it "
        "slower: 61 % of the step was communication;"
    )
    assert line.endswith(
        "Simulated: all nodes were on one machine; the processes share the machine's 2 cores."
    )


def test_more_nodes_that_are_faster_are_told_so() -> None:
    lines = told(measured(ONE, 10.0), measured(THREE, 4.0), is_simulated=False)
    line = about(lines, "3 nodes")
    assert "took 0.40x the time of 1 node at the same global batch (64), so more nodes" in line
    assert "made it faster (2.50x as fast)" in line
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


def test_on_a_busy_machine_nodes_bring_nothing_that_is_told() -> None:
    lines = told(disturbed(measured(ONE, 10.0)), measured(THREE, 14.0))
    line = about(lines, "3 nodes")
    assert line.startswith(
        "3 nodes took 1.40x as long as 1 node at the same global batch (64), so it was slower, but "
        "what more nodes bring cannot be told, for other programs were busy meanwhile: "
    )


def test_on_a_busy_machine_many_comparisons_are_doubted_as_well() -> None:
    cases = [(n, p) for n in (1, 2, 3) for p in (1, 2)]
    runs = [measured(Setting(nodes=n, procs=p, batch=64), 10.0 * n * p) for n, p in cases]
    lines = told(disturbed(runs[0]), *runs[1:])
    assert not any("slower" in line for line in lines)
    nodes = about(lines, "At the same global batch what more nodes bring cannot be told, for other")
    assert "meanwhile: 2 nodes took 2.0 times" in nodes
    assert "what more processes bring cannot be told" in about(lines, "1 node with 2")


def test_what_is_told_of_nodes_is_told_of_those_that_had_the_machine() -> None:
    cases = [(n, b) for n in (1, 2, 3) for b in (32, 64)]
    runs = [measured(Setting(nodes=n, batch=b), 10.0 * n) for n, b in cases]
    line = about(told(disturbed(runs[0]), *runs[1:], measured(Setting(nodes=4, batch=64))), "At")
    assert "more nodes made it slower in 2 of 5 cases and neither slower nor faster in 1," in line
    assert (
        "in 1, and of 2 others nothing can be told, for other programs were busy meanwhile: 2 nodes"
    ) in line


def test_on_a_busy_machine_batches_bring_nothing_that_is_told() -> None:
    runs = [disturbed(measured(Setting(batch=b), s)) for b, s in ((32, 12.0), (256, 7.0))]
    assert about(told(*runs), "Batch 256").endswith(
        "of one core; what batches bring cannot be told, for other programs were busy meanwhile."
    )


def swept(*times: tuple[int, str, float], batch: int | None = 64) -> list[Measurement]:
    """Nodes, a number of threads that is swept, seconds."""
    return [
        measured(Setting(nodes=n, batch=batch, changes=(("device.intra_threads", t),)), s)
        for n, t, s in times
    ]


def test_sentences_say_which_value_of_a_key_they_are_about() -> None:
    lines = told(*swept((1, "1", 10), (2, "1", 17), (1, "2", 16), (2, "2", 4)))
    slower, faster = (line for line in lines if line.startswith("2 nodes took"))
    assert (
        "1.70x as long as 1 node at the same global batch (64), device.intra_threads=1," in slower
    )
    assert (
        "0.25x the time of 1 node at the same global batch (64), device.intra_threads=2," in faster
    )
    results = [line for line in lines if "val_accuracy" in line]
    assert ["(64), device.intra_threads=1 reached" in line for line in results] == [True, False]
    assert ["(64), device.intra_threads=2 reached" in line for line in results] == [False, True]


def test_where_no_batch_is_known_the_value_of_a_key_is_said_as_well() -> None:
    line = about(told(*swept((1, "1", 10), (2, "1", 17), batch=None)), "2 nodes")
    assert "as long as 1 node with device.intra_threads=1, so more nodes" in line


def test_many_comparisons_name_all_values_of_a_key() -> None:
    runs = swept(*((n, t, 10.0 * n) for n in (1, 2, 3, 4) for t in ("1", "4")))
    line = about(told(*runs), "At the same global batch")
    assert "as long as 1 node, with batches of 64 and device.intra_threads of 1 and 4." in line


def test_many_comparisons_of_a_batch_that_is_not_known_are_whole_sentences() -> None:
    line = about(told(*(measured(Setting(nodes=n), 10.0 * n) for n in range(1, 7))), "With what")
    assert "6 nodes 6.0 times as long as 1 node. Slowest, 6.00x" in line


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


@pytest.mark.parametrize(
    ("procs", "threads", "said"),
    [
        (2, 1, "Each process computes with 1 thread."),
        (3, 1, "The processes share the machine's 2 cores."),
        (2, 2, "The processes share the machine's 2 cores."),
    ],
)
def test_processes_share_cores_where_they_have_more_threads(
    procs: int, threads: int, said: str
) -> None:
    shared = measured(Setting(procs=procs, batch=64), 20.0, threads=threads)
    line = about(told(measured(ONE, threads=threads), shared), "1 node with")
    assert line.endswith(f" {said}")


def test_processes_of_other_machines_are_not_said_to_share_cores() -> None:
    runs = measured(ONE), measured(Setting(procs=3, batch=64), 20.0)
    line = about(told(*runs, is_simulated=False), "1 node with")
    assert line.endswith("Each process computes with 1 thread.")


def test_processes_that_were_given_fewer_threads_are_said_so() -> None:
    runs = measured(ONE, threads=2), measured(Setting(procs=2, batch=64), 20.0)
    line = about(told(*runs), "1 node with")
    assert line.endswith("Each process computes with 1 thread instead of 2.")


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
    assert "as long as 1 node at the same batch each, with batches of 32 to 256: more" in line
    assert "more processes made it slower in all cases." in line
    assert "communication, and each process computes with 1 thread. Slowest" in line
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
