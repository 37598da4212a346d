"""Spark for tests: sessions on any master, and a standalone cluster on this machine."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyspark
from pyspark.sql import SparkSession

from tests.ports import free_port
from tests.processes import wait_for

ROOT = Path(__file__).resolve().parent.parent.parent
HOME = os.path.dirname(pyspark.__file__)
START_S = 240.0
#: What executors find beside what is installed; these tests may have been given more.
PYTHONPATH = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
#: Read by the JVM when it starts, and by the Python processes of executors.
ENVIRONMENT = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "PYSPARK_PYTHON": sys.executable,
    "PYTHONPATH": PYTHONPATH,
    "OMP_NUM_THREADS": "1",
}
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "512m",
    "spark.executorEnv.PYTHONPATH": PYTHONPATH,
    "spark.executorEnv.OMP_NUM_THREADS": "1",
    "spark.sql.shuffle.partitions": "2",
    "spark.locality.wait": "1s",
}


@contextlib.contextmanager
def session(master: str, **settings: str) -> Iterator[SparkSession]:
    """A session on a master; stopped at the end, with what it has put into the environment."""
    before = dict(os.environ)
    builder: Any = SparkSession.builder.master(master).appName("cerebro-tests")
    for name, value in {**SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()
        for name in os.environ.keys() - before.keys():
            if name.startswith("SPARK_"):
                del os.environ[name]


class Standalone:
    """A master and workers of one core each, all on the loopback interface."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"spark://127.0.0.1:{self.port}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._workers = workers

    def start(self) -> None:
        host = ["--host", "127.0.0.1", "--webui-port", str(free_port())]
        self._spawn("master.Master", "master", [*host, "--port", str(self.port)])
        self._wait_for_log("master", "I have been elected leader", 1)
        for number in range(self._workers):
            name = f"worker{number}"
            place = ["--work-dir", str(self.folder / name), "--cores", "1", "--memory", "1g"]
            host = ["--host", "127.0.0.1", "--webui-port", str(free_port())]
            self._spawn("worker.Worker", name, [*host, *place, self.url])
        self._wait_for_log("master", "Registering worker", self._workers)

    def stop(self) -> None:
        for process in self._processes:
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            process.kill()
            process.wait()

    def _spawn(self, role: str, name: str, arguments: list[str]) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [f"{HOME}/bin/spark-class", f"org.apache.spark.deploy.{role}", *arguments],
                    env={**os.environ, **ENVIRONMENT, "SPARK_DAEMON_MEMORY": "256m"},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def _wait_for_log(self, name: str, text: str, count: int) -> None:
        log = self.folder / f"{name}.log"
        wait_for(
            lambda: len(re.findall(text, log.read_text(errors="replace"))) >= count,
            f"{count} times {text!r} in {log}",
            START_S,
        )


def executors(spark: SparkSession) -> list[psutil.Process]:
    """The JVMs that run this session's tasks."""
    port = spark.sparkContext.getConf().get("spark.driver.port")
    wanted = f"@127.0.0.1:{port}"
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            command = " ".join(process.cmdline())
            if "CoarseGrainedExecutorBackend" in command and wanted in command:
                found.append(process)
    return found
