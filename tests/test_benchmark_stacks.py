"""The benchmark of stacks and the example of a sweep work, small as they are here."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import stacks_work
from benchmarks.report import Report
from benchmarks.stacks import Bench
from benchmarks.stacks_cases import CPU, CUDA, Case
from benchmarks.stacks_measure import Bound, Measured, hold, loss_deviation

ROOT = Path(__file__).parents[1]


@pytest.fixture
def short_visits(monkeypatch):
    nets = {name: replace(net, steps=2) for name, net in stacks_work.NETS.items()}
    monkeypatch.setattr(stacks_work, "NETS", nets)
    monkeypatch.setattr("benchmarks.stacks.NETS", nets)
    monkeypatch.setattr("benchmarks.stacks_measure.NETS", nets)


def run(case: Case, monkeypatch: pytest.MonkeyPatch) -> Report:
    report = Report()
    bench = Bench("cpu", None, is_quick=True, report=report)
    monkeypatch.setattr(bench, "_rounds", 1)
    bench.run(case)
    return report


@pytest.mark.slow
def test_a_case_compares_results_before_it_tells_times(short_visits, monkeypatch, capsys):
    report = run(replace(CPU["mlp32_b32"], quick_sizes=(1, 2), trials=2), monkeypatch)
    assert report.values["cpu_mlp32_b32_weights_off"] < 1e-5
    assert report.values["cpu_mlp32_b32_first_losses_off"] < 1e-5
    assert report.values["cpu_mlp32_b32_loss_off"] < 1e-3
    assert report.values["cpu_mlp32_b32_k2_us"] > 0
    assert "auto picks" in capsys.readouterr().out


@pytest.mark.slow
def test_each_precision_is_compared_with_its_own_loop(short_visits, monkeypatch):
    net = replace(stacks_work.NETS["cnn_b128"], batch=4)
    monkeypatch.setitem(stacks_work.NETS, "cnn_b128", net)
    report = run(replace(CUDA["cnn_b128"], quick_sizes=(2,), compiled=(False,)), monkeypatch)
    assert {"cpu_cnn_b128_k2_bf16_vs_eager", "cpu_cnn_b128_k2_bf16_vs_eager_tf32"} <= set(
        report.values
    )


def test_a_bound_takes_the_best_of_its_sides(capsys):
    found = Measured({"eager": [8.0], "k1": [2.0], "k1_compiled": [1.0]})
    report = Report()
    hold(Bound("alone", ("k1", "k1_compiled"), 5, 10), found, report)
    assert report.values["alone"] == 8.0
    told = capsys.readouterr().out
    assert "k1_compiled" in told
    assert "must be >= 5, met; aim >= 10, missed" in told


def test_a_bound_that_was_not_measured_is_told_as_such():
    report = Report()
    hold(Bound("jax", ("k256",), 0.8, against="jax"), Measured({"k256": [1.0]}), report)
    assert report.values == {"jax": None}


def test_a_loss_that_is_no_number_is_off():
    assert loss_deviation(Measured(losses={"eager": 1.0, "k1": float("nan")})) == float("inf")


@pytest.mark.slow
def test_the_example_sweeps_the_digits(tmp_path):
    given = ["--trials=3", "--epochs=1", f"--folder={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "examples.thousand_models", *given],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "val_accuracy" in done.stdout
    assert "3 networks in" in done.stdout


def test_the_example_is_short():
    assert len((ROOT / "examples/thousand_models.py").read_text().splitlines()) < 60
