"""Settings for all tests, and the check that a test leaves nothing behind."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

# Before anything imports torch: two OpenMP pools on a small machine slow each other down tenfold.
os.environ["OMP_NUM_THREADS"] = "1"
# Before anything imports Keras, which would look for TensorFlow.
os.environ.setdefault("KERAS_BACKEND", "torch")

import hypothesis
import psutil
import pytest

#: Of what is left behind alone: on a busy machine the end of a process takes its time.
GRACE_S = 30.0
SHARED_MEMORY = Path("/dev/shm")
ROOT = Path(__file__).resolve().parent.parent
CLUSTER = ROOT / "tests" / "cluster"

# Caches of the tools that run the tests, not traces of a test.
TOOL_CACHES = {".coverage", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
# Set by pytest for each test, and by PyTorch at its first optimizer step.
TOOL_VARIABLES = {"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR"}
# One helper process that Python itself starts at first use and keeps until exit.
PYTHON_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
# One that tests/warm.py keeps; what it forks is no helper.
WARM = "-m tests.warm "

hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed", type=int, default=None, help="seed of the chaos tests (default: a new one)"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.seed is None:
        config.option.seed = secrets.randbelow(2**31)


def pytest_report_header(config: pytest.Config) -> str:
    return f"chaos: --seed={config.option.seed}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Tests that need servers run where they are named: `make test-cluster`."""
    named = [Path(arg.partition("::")[0]).resolve() for arg in config.args]
    is_named = any(CLUSTER in (path, *path.parents) for path in named)
    return True if collection_path == CLUSTER and not is_named else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("CEREBRO_TEST_STACK", "false") != "false":
        for item in items:
            if item.get_closest_marker("alone"):
                item.add_marker(pytest.mark.skip(reason="looks at files of trials alone"))
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this session's random tests; printed, so that a failure can be repeated."""
    value: int = request.config.option.seed
    print(f"--seed={value}")
    return value


class Surroundings(NamedTuple):
    """What a test could leave behind."""

    environ: dict[str, str]
    threads: frozenset[threading.Thread]
    children: frozenset[psutil.Process]
    files: frozenset[Path]


def observe() -> Surroundings:
    return Surroundings(
        environ=observe_environ(),
        threads=frozenset(t for t in threading.enumerate() if not t.daemon and t.is_alive()),
        children=frozenset(psutil.Process().children(recursive=True)),
        files=frozenset(list_files()),
    )


def observe_environ() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in TOOL_VARIABLES}


def list_files() -> Iterator[Path]:
    yield from (path for path in ROOT.iterdir() if path.name not in TOOL_CACHES)
    if SHARED_MEMORY.is_dir():
        yield from SHARED_MEMORY.glob("cerebro*")


def is_running(process: psutil.Process) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        command = " ".join(process.cmdline())
        if WARM in command:
            return process.ppid() != os.getpid()
        return not any(name in command for name in PYTHON_HELPERS)
    except psutil.NoSuchProcess:
        return False


def end(process: psutil.Process) -> str:
    """Kill a process; return what it was."""
    try:
        command = " ".join(process.cmdline())
        process.kill()
    except psutil.NoSuchProcess:
        command = "(just ended)"
    return f"{process.pid}: {command}"


def leaked_children(before: Surroundings) -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [child for child in children if child not in before.children and is_running(child)]


def leaked_threads(before: Surroundings) -> list[threading.Thread]:
    return [t for t in threading.enumerate() if not t.daemon and t not in before.threads]


def leaked_files(before: Surroundings) -> list[Path]:
    return sorted(set(list_files()) - before.files)


def wait_until_none(find: Callable[[], list], grace_s: float) -> list:
    """What `find` still returns after `grace_s`; returns at once when it finds nothing."""
    deadline = time.monotonic() + grace_s
    while (found := find()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def restore_environ(before: Surroundings) -> list[str]:
    now = observe_environ()
    keys = before.environ.keys() | now.keys()
    changed = sorted(key for key in keys if before.environ.get(key) != now.get(key))
    for key in changed:
        if key in before.environ:
            os.environ[key] = before.environ[key]
        else:
            del os.environ[key]
    return changed


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves a process, a thread, an environment variable or a file."""
    before = observe()
    yield
    children = wait_until_none(lambda: leaked_children(before), GRACE_S)
    leaks = {
        "processes": [end(child) for child in children],
        "threads": wait_until_none(lambda: leaked_threads(before), GRACE_S),
        "environment variables": restore_environ(before),
        "files": [str(path) for path in leaked_files(before)],
    }
    found = {kind: things for kind, things in leaks.items() if things}
    if found:
        pytest.fail(f"the test left behind: {found}", pytrace=False)
