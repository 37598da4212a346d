"""The benchmark of Ray compares like with like, and counts all bytes."""

from __future__ import annotations

import socket
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import ray as bench
from benchmarks import ray_cases
from benchmarks.ray_bytes import Moved, Received, count_hops
from benchmarks.ray_work import Loop, Took, Work
from benchmarks.report import Report
from benchmarks.workload import BareLoop, difference, load_pictures, load_weights, save_weights

CASE = replace(ray_cases.SHORT, trials=2, epochs=2, hidden=8, batch=16)


class OneStepASecond:
    """Stands for the processes that measure how long a step takes."""

    def call(self, command, path):
        assert command == "load"

    def seconds_per_step(self, trial):
        return CASE.visit_s / 3


def took(seconds: float, efficiency: float = 0.9) -> Took:
    return Took(
        call_s=seconds, setup_s=1.0, train_s=seconds, efficiency=efficiency, visit_s=seconds / 4
    )


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    made = ray_cases.make_work(CASE, OneStepASecond(), load_pictures(None), folder)
    return replace(made, weights=str(folder))


def test_the_plain_loop_does_what_our_visits_do(work):
    arrays, bare = work.load_arrays(), BareLoop(work.data)
    for trial, params in enumerate(work.params):
        loop = Loop(arrays, work, trial)
        for epoch in range(work.epochs):
            loop.train_epoch(epoch)
        loop.save(work.weights_file(trial))
        weights, _ = bare.train(trial, params, epochs=work.epochs)
        assert difference(load_weights(work.weights_file(trial)), weights[-1]) == 0.0


def test_every_trial_sees_every_row_once_an_epoch(work):
    arrays = work.load_arrays()
    rows = len(arrays["y"])
    for order in arrays["orders"]:
        for epoch in order.reshape(work.epochs, -1):
            assert np.array_equal(np.sort(epoch), np.arange(rows))


def test_work_travels_as_a_file(work, tmp_path):
    work.save(tmp_path / "work.json")
    assert Work.load(tmp_path / "work.json") == work


@pytest.mark.parametrize("case", [ray_cases.SHORT, ray_cases.LONG, ray_cases.BIG, ray_cases.SMALL])
def test_a_case_has_as_many_trials_as_it_says(case):
    for each in (case, case.shortened()):
        assert len(ray_cases.trials_of(each.space)) == each.trials


def test_ratios_are_to_our_time_and_bounds_are_those_of_tune(capsys):
    report = Report()
    sides = {"ours": [took(10.0)], "tune": [took(25.0)], "local": [took(8.0)]}
    bench.tell(ray_cases.SHORT, sides, report, is_gated=True)
    assert report.values["vs_tune_1s"] == 2.5
    assert report.values["vs_local_1s"] == 0.8
    assert report.finish(as_json=False) == 1
    assert "vs_tune_1s 2.5, must be at least 3" in capsys.readouterr().out


def test_sides_whose_weights_are_apart_are_refused(tmp_path):
    for name, weight in (("ours", 1.0), ("tune", 1.0 + 1e-7), ("local", 1.0)):
        place = tmp_path / CASE.name / f"{name}-weights"
        place.mkdir(parents=True)
        for trial in range(CASE.trials):
            save_weights(place / f"{trial}.npz", {"w": np.array([weight])})
    bench.check(CASE, ["ours", "tune", "local"], tmp_path)
    save_weights(tmp_path / CASE.name / "ours-weights" / "1.npz", {"w": np.array([1.0 + 1e-7])})
    with pytest.raises(SystemExit, match="ours, 1s: weights differ"):
        bench.check(CASE, ["ours", "tune", "local"], tmp_path)


def test_bytes_over_tcp_are_counted_when_their_socket_is_closed_too():
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
        with sender, receiver, Received() as received:
            sender.sendall(bytes(30_000))
            assert len(receiver.recv(30_000, socket.MSG_WAITALL)) == 30_000
            received.look()
            receiver.close()
    # An end counts as a byte.
    assert received.bytes in (30_000, 30_001)


def test_a_hop_is_a_visit_at_another_worker_than_the_one_before():
    visits = [{"trial": t, "worker": w} for t, w in [(0, 0), (1, 1), (0, 1), (1, 1), (0, 0)]]
    assert count_hops(visits) == 2


def test_a_driver_that_had_one_state_is_found_out():
    moved = Moved(
        state=1000,
        visits=4,
        hops=1,
        objects=5,
        stored=5050,
        driver_stored=700,
        driver_received=299,
    )
    assert (moved.per_object, moved.driver_states) == (1010.0, 0)
    assert replace(moved, driver_received=300).driver_states == 1
