"""What the Spark backend does beyond the contract."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter

import psutil
import pytest

from cerebro import Experiment
from cerebro.backend import SparkBackend
from cerebro.backend.base import Done, Failed, Joined, Lost
from cerebro.backend.limits import Limits
from cerebro.errors import RunInterrupted, UsageError, WorkerError
from cerebro.testing.backend_session import Session, fault_at, make_call
from cerebro.testing.toy import ToyTask
from tests.cluster.sparks import session
from tests.experiments import fast_folder, make_toy_data
from tests.processes import count_lines, hold, wait_for
from tests.unit.backend import growing

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark():
    with session("local[2]") as found:
        yield found


@pytest.fixture
def backend(spark):
    backend = SparkBackend(spark)
    yield backend
    backend.stop()


@pytest.fixture
def folder():
    """Where a visit writes its state without waiting for a disk."""
    with fast_folder() as path:
        yield path


def test_a_worker_whose_process_dies_is_lost_and_another_joins_in_its_place(backend, tmp_path):
    opened = Session(backend, tmp_path)
    opened.start(2)
    state = opened.train(0, make_call())
    before = opened.content(state)
    lost = opened.run(1, make_call(1, fail=fault_at(1, "exit")), state)
    assert isinstance(lost, Lost)
    assert lost.call == make_call(1, fail=fault_at(1, "exit"))
    assert "exited" in lost.cause
    assert opened.join().info.worker == 1
    assert opened.content(state) == before
    assert isinstance(opened.run(1, make_call(1), state), Done)


def test_a_process_whose_gpu_has_failed_is_not_used_again(backend, tmp_path):
    opened = Session(backend, tmp_path)
    opened.start(1, growing.SpoiledTask())
    failed = opened.run(0, make_call(is_wrong=True))
    assert isinstance(failed, Failed)
    assert failed.failure.message == "AcceleratorError: device-side assert triggered"
    opened.train(0, make_call())


def test_other_workers_go_on_when_one_is_lost(backend, tmp_path):
    opened = Session(backend, tmp_path)
    opened.start(2)
    backend.submit(0, make_call(fail="exit"), None)
    backend.submit(1, make_call(), None)
    assert {type(event) for event in opened.take(3)} == {Lost, Done, Joined}


def test_the_end_does_not_wait_for_visits_and_leaves_no_thread(backend, tmp_path):
    opened = Session(backend, tmp_path)
    log = tmp_path / "visits"
    opened.start(2, ToyTask(visit_s=10_000, log=str(log)))
    backend.submit(0, make_call(), None)
    backend.submit(1, make_call(fail="hang"), None)
    wait_for(lambda: count_lines(log) == 2, "both visits are under way")
    # They would take longer than this test may.
    backend.stop()
    assert not [t for t in threading.enumerate() if t.name.startswith("cerebro-spark")]


def test_the_context_stays_and_serves_the_next_start(spark, backend, tmp_path):
    for name in ("first", "second"):
        opened = Session(backend, tmp_path / name)
        opened.start(2)
        opened.train(1, make_call())
        backend.stop()
    assert spark.sparkContext.parallelize(range(4)).sum() == 6
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == 0


def test_states_never_pass_through_the_driver(backend, tmp_path):
    opened = Session(backend, tmp_path)
    opened.start(1)
    state = opened.train(0, make_call())
    hop = backend._started.hop(state)
    file, saved = tmp_path / "run" / hop.path, opened.save(state)
    # A second name of the same file: nobody has copied it.
    assert os.stat(file).st_ino == os.stat(tmp_path / "run" / saved.data_path).st_ino
    backend.release(state)
    assert not file.exists()
    backend.stop()
    assert not (tmp_path / "run" / "hops").exists()


def test_what_a_killed_driver_left_on_its_way_is_removed(backend, tmp_path):
    opened = Session(backend, tmp_path)
    opened.store.write("hops/0123456789abcdef-7-1.safetensors", b"old")
    opened.start(1)
    assert not (tmp_path / "run/hops/0123456789abcdef-7-1.safetensors").exists()


def test_a_visit_that_hangs_is_ended_and_told(spark, folder):
    # Long enough for the visit that does not hang.
    backend = SparkBackend(spark, limits=Limits(stall_s=20.0))
    opened = Session(backend, folder)
    try:
        opened.start(1)
        lost = opened.run(0, make_call(fail="hang"))
        assert isinstance(lost, Lost)
        assert lost.cause == "hung: no batch for 20 s"
        opened.join()
        assert isinstance(opened.run(0, make_call()), Done)
    finally:
        backend.stop()


def test_a_cluster_without_room_is_told_in_time(spark, tmp_path):
    backend = SparkBackend(spark, start_timeout=0.5)
    opened = Session(backend, tmp_path)
    over, marks = tmp_path / "over", [tmp_path / "mark0", tmp_path / "mark1"]

    def block(mark):
        mark.touch()
        while not over.exists():
            time.sleep(0.01)

    blocker = threading.Thread(
        target=lambda: spark.sparkContext.parallelize(marks, 2).foreach(block)
    )
    blocker.start()
    try:
        wait_for(lambda: all(mark.exists() for mark in marks), "both cores are taken")
        backend.start(opened.setup(), 1)
        with pytest.raises(WorkerError, match=r"within 0\.5 s.*start_timeout"):
            backend.events()
    finally:
        backend.stop()
        over.touch()
        blocker.join()


def test_workers_use_the_threads_they_were_given(backend, tmp_path):
    opened = Session(backend, tmp_path)
    backend.start(opened.setup(growing.EnvironmentTask()), 1)
    opened.join()
    environment = opened.train(0, make_call()).meta["environment"]
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["PYTHONHASHSEED"] == "0"


def test_workers_use_the_backend_of_keras_that_the_driver_has_chosen(tmp_path):
    # Its own process: workers inherit the environment of the JVM, which begins once.
    code = (
        "import os, sys; from cerebro.backend import SparkBackend; from pathlib import Path\n"
        "from tests.cluster.sparks import session; from tests.unit.backend import growing\n"
        "from cerebro.testing.backend_session import Session, make_call\n"
        "with session('local[1]') as spark:\n"
        "    os.environ['KERAS_BACKEND'] = 'jax'\n"
        "    backend = SparkBackend(spark)\n"
        "    opened = Session(backend, Path(sys.argv[1]))\n"
        "    backend.start(opened.setup(growing.EnvironmentTask()), 1); opened.join()\n"
        "    print(opened.train(0, make_call()).meta['keras'])\n"
        "    backend.stop()"
    )
    environ = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    out = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env=environ,
    )
    assert out.stdout.split() == ["jax"]


def test_more_threads_than_cores_of_a_task_are_refused(backend, tmp_path):
    opened = Session(backend, tmp_path)
    with pytest.raises(UsageError, match=r"threads_per_worker=3 and spark\.task\.cpus=1"):
        backend.start(opened.setup(threads=3), 1)


def test_a_task_that_cannot_be_sent_is_a_usage_error(backend, tmp_path):
    task = ToyTask()
    task.lock = threading.Lock()
    opened = Session(backend, tmp_path)
    with pytest.raises(UsageError, match="ToyTask"):
        backend.start(opened.setup(task), 1)


def test_workers_that_cannot_start_end_the_run(backend, tmp_path):
    dying = tmp_path / "dying.py"
    dying.write_text("import os\nos._exit(3)\n")
    opened = Session(backend, tmp_path)
    backend.start(opened.setup(f"{dying}:Task"), 1)
    with pytest.raises(WorkerError, match="3 in a row could not"):
        backend.events()


def test_a_run_stopped_from_the_keyboard_goes_on_later(spark, tmp_path):
    make_toy_data(tmp_path / "data")
    log = tmp_path / "visits"
    options = {"name": "run", "data": tmp_path / "data", "store": tmp_path / "runs"}
    fit = {"space": {"lr": [0.5, 0.05], "batch_size": 16}, "num_epochs": 3, "progress": False}
    fit |= {"metric": "val_loss", "mode": "min", "stack": False}
    is_over = threading.Event()
    gate = hold(tmp_path, 1)
    timer = threading.Thread(target=_interrupt_after, args=(log, 3, is_over, gate))
    timer.start()
    try:
        with pytest.raises(RunInterrupted):
            Experiment(**options, backend=SparkBackend(spark)).run_fit(
                ToyTask(visit_s=0.6, log=str(log), hold=str(tmp_path / "hold")), **fit
            )
    finally:
        is_over.set()
        timer.join()
    done = count_lines(log)
    result = Experiment(**options, backend=SparkBackend(spark)).run_fit(
        ToyTask(log=str(log)), **fit
    )
    assert result.is_finished
    assert count_lines(log) == 12 >= done


def _interrupt_after(log, visits, is_over, gate):
    """Nobody is there to be interrupted any more but the tests themselves, once it is over."""
    try:
        wait_for(lambda: is_over.is_set() or count_lines(log) >= visits, "visits")
        if not is_over.is_set():
            os.kill(os.getpid(), 2)
    finally:
        # A visit of the second epoch may have begun.
        gate.unlink()


def test_executors_are_free_between_visits(spark, backend, tmp_path):
    opened = Session(backend, tmp_path)
    opened.start(2)
    opened.train(0, make_call())
    assert spark.sparkContext.parallelize(range(8), 4).sum() == 28


def test_workers_need_not_all_run_at_once(spark, tmp_path):
    make_toy_data(tmp_path / "data")
    fit = {"space": {"lr": [0.5, 0.05, 0.005], "batch_size": 16}, "num_epochs": 1}
    fit |= {"metric": "val_loss", "mode": "min", "stack": False, "progress": False}
    digests = [
        Experiment(name=name, data=tmp_path / "data", store=tmp_path / "runs", backend=backend)
        .run_fit(ToyTask(), **fit)
        .digest()
        for name, backend in (("five", SparkBackend(spark, num_workers=5)), ("one", "inline"))
    ]
    assert digests[0] == digests[1]


def test_no_service_of_our_own_listens(backend, tmp_path):
    def listening():
        found = psutil.Process().net_connections("tcp")
        return {each.laddr for each in found if each.status == psutil.CONN_LISTEN}

    before = listening()
    opened = Session(backend, tmp_path)
    opened.start(2)
    opened.train(0, make_call())
    assert listening() == before


def test_one_trial_that_fails_costs_no_other(spark, tmp_path):
    make_toy_data(tmp_path / "data")
    experiment = Experiment(
        name="run", data=tmp_path / "data", store=tmp_path / "runs", backend=SparkBackend(spark)
    )
    result = experiment.run_fit(
        ToyTask(),
        {"lr": [0.5, 0.05], "fail": [None, "raise"], "batch_size": 16},
        num_epochs=2,
        metric="val_loss",
        mode="min",
        stack=False,
        progress=False,
    )
    ends = Counter((trial.params["fail"], str(trial.status)) for trial in result.trials)
    assert ends == {(None, "finished"): 2, ("raise", "failed"): 2}


# What is asked for


def test_without_a_context_it_is_said_how_to_make_one(monkeypatch):
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    with pytest.raises(UsageError, match=r"no active SparkContext.*SparkSession\.builder"):
        SparkBackend()


def test_a_session_is_as_good_as_its_context(spark):
    assert SparkBackend(spark).context is SparkBackend(spark.sparkContext).context
    assert SparkBackend().context is spark.sparkContext


def test_tasks_of_this_machine_run_on_this_python(spark, monkeypatch):
    context = spark.sparkContext
    monkeypatch.setattr(context, "pythonExec", "python3")
    assert SparkBackend(spark).context.pythonExec == "python3"
    monkeypatch.delenv("PYSPARK_PYTHON")
    assert SparkBackend(spark).context.pythonExec == sys.executable


def test_spark_connect_is_refused():
    # Its real class needs packages that nothing else here does.
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(UsageError, match=r"Spark Connect.*instead of \.remote"):
        SparkBackend(session)


def test_something_else_is_refused():
    with pytest.raises(UsageError, match="must be a SparkContext or a SparkSession, but got str"):
        SparkBackend("local[2]")


def test_as_many_workers_as_tasks_run_at_once(spark):
    assert SparkBackend(spark).num_workers == 2
    assert SparkBackend(spark, num_workers=3).num_workers == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_workers", 0), ("start_timeout", -1), ("disk_cache_size_gb", "10")],
)
def test_numbers_that_make_no_sense_are_refused(spark, name, value):
    with pytest.raises(UsageError, match=f"{name}={value!r}"):
        SparkBackend(spark, **{name: value})


@pytest.mark.parametrize("name", ["nics", "num_data_readers", "verbose"])
def test_arguments_of_earlier_versions_are_named(spark, name):
    with pytest.raises(UsageError, match=f"has no {name} any more"):
        SparkBackend(spark, **{name: 1})


def test_a_context_that_was_stopped_is_refused(tmp_path):
    # Its own process: one has one context at a time.
    code = (
        "import sys; from cerebro.backend import SparkBackend; "
        "from tests.cluster.sparks import session; from pathlib import Path; "
        "from cerebro.testing.backend_session import Session\n"
        "with session('local[1]') as spark: backend = SparkBackend(spark)\n"
        "opened = Session(backend, Path(sys.argv[1]))\n"
        "try: backend.start(opened.setup(), 1)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert out.stdout.startswith("UsageError the SparkContext must be running")
