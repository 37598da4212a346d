"""What `cerebro plan` tells before a run, and `cerebro run` of its budget."""

from __future__ import annotations

import re
import signal

from tests.integration.project import interrupt


def test_plan_counts_and_writes_nothing(project):
    before = project.content()
    done = project.cerebro("plan", "experiment.yaml", "space.lr=[1, 2, 3, 4, 5, 6, 7]")
    assert done.returncode == 0, done.stderr
    assert "visits       56: 42 train + 14 eval" in done.stdout
    assert "… and 2 more" in done.stdout
    assert "checkpoints  42 writes" in done.stdout
    assert "unknown until a run of this store has trained a visit on this data" in done.stdout
    assert "; 28 visits per worker" in done.stdout
    assert "tasks:Toy (not imported" in done.stdout
    assert project.content() == before


def test_plan_estimates_from_the_run_of_the_same_name(finished):
    before = finished.content()
    done = finished.cerebro("plan", "experiment.yaml", "epochs=200")
    assert re.search(r"time         (about \d+ s|under 1 s) from the first visit", done.stdout)
    assert "ms a training visit in the run of this name; " in done.stdout
    assert "a run of this name differs in epochs: `cerebro run` refuses" in done.stdout
    assert finished.content() == before


def test_plan_of_a_new_name_estimates_from_another_run_on_the_same_data(finished):
    (finished.folder / "runs" / "a b").mkdir()
    done = finished.cerebro("plan", "experiment.yaml", "name=new")
    assert "ms a training visit in run toy; " in done.stdout
    done = finished.cerebro("plan", "experiment.yaml", "name=new", "task=tasks:Other")
    assert "ms a training visit in run toy, which has another task; " in done.stdout


def test_plan_tells_that_a_finished_run_returns_at_once(finished):
    done = finished.cerebro("plan", "experiment.yaml")
    assert "finished: `cerebro run` returns at once" in done.stdout


def test_plan_tells_what_a_stopped_run_has_left(longer):
    interrupt(longer, signal.SIGINT)
    done = longer.cerebro("plan", "experiment.yaml")
    assert "of 18 training visits: `cerebro run` resumes it" in done.stdout


def test_plan_tells_what_ends_trials_and_the_run(project):
    done = project.cerebro(
        *("plan", "experiment.yaml", "epochs=9", "stopper={name: asha, eta: 4}"),
        *("goal={target: 0.97}", "budget={time: 90m, epochs: 12}"),
    )
    assert done.returncode == 0, done.stderr
    assert "stopper      asha (eta 4, " in done.stdout
    assert "goal         val_accuracy >= 0.97 ends the run" in done.stdout
    assert "budget       1h30m and 12 epochs" in done.stdout
    assert "visits       at most 48: 36 train + 12 eval" in done.stdout


def test_plan_measures_and_leaves_nothing_behind(project):
    before = project.content()
    done = project.cerebro("plan", "experiment.yaml", "--measure", "stack=false")
    assert done.returncode == 0, done.stderr
    assert "ms a training visit in 2 trials tried out just now; " in done.stdout
    assert project.content() == before


def test_plan_plays_a_search_through(finished):
    options = ("search={name: random, trials: 27}", "space.lr={uniform: [0.01, 0.2]}")
    stopper = ("stopper=asha", "epochs=9", "name=new")
    done = finished.cerebro("plan", "experiment.yaml", "--search", *options, *stopper)
    assert done.returncode == 0, done.stderr
    assert re.search(r"search       about \d+ epochs of 27 trials, about ", done.stdout)
    assert "simulated with the learning curves of run toy" in done.stdout
    assert re.search(r"trials that come to epoch 1: 27, 3: \d+, 9: \d+", done.stdout)


def test_plan_of_a_search_with_nothing_to_go_by_makes_curves_up(project):
    done = project.cerebro("plan", "experiment.yaml", "--search", "stopper=median")
    assert done.returncode == 0, done.stderr
    assert "training visits; workers are busy " in done.stdout
    assert "simulated with made-up learning curves" in done.stdout


def test_run_tells_that_its_time_is_not_enough(finished):
    done = finished.cerebro(
        "run", "experiment.yaml", "name=new", "epochs=200", "budget=0.01s", "-q"
    )
    assert done.returncode == 0, done.stderr
    assert "the budget of 0.01s is not enough: about " in done.stderr
    assert "are needed; the run will end when it is used up\n" in done.stderr


def test_run_says_nothing_of_a_budget_that_will_do(finished):
    done = finished.cerebro("run", "experiment.yaml", "name=new", "budget=1h", "-q")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
