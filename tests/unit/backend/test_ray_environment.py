"""What nodes of Ray get and what people are told, decided without Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from cerebro.backend.ray.connection import Wish, check_address, connect
from cerebro.backend.ray.environment import travelling, with_packages
from cerebro.backend.ray.parcel import own_package
from cerebro.backend.ray.places import Place
from cerebro.backend.ray.vacancy import Vacancy, waiting
from cerebro.errors import CerebroError, RunInterrupted, UsageError, WorkerError
from cerebro.storage import DirectoryStore


@pytest.fixture
def requirements(tmp_path):
    path = tmp_path / "requirements.txt"
    path.write_text("einops==0.8\n\n# why\nnltk\n")
    return str(path)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"pip": ["lightly"]}, {"pip": ["einops==0.8", "", "# why", "nltk", "lightly"]}),
        ({"uv": ["lightly"]}, {"uv": ["einops==0.8", "", "# why", "nltk", "lightly"]}),
        (
            {"pip": {"packages": ["lightly"], "pip_check": True}},
            {
                "pip": {
                    "packages": ["einops==0.8", "", "# why", "nltk", "lightly"],
                    "pip_check": True,
                }
            },
        ),
    ],
    ids=["list", "uv", "dict"],
)
def test_requirements_are_installed_besides_what_the_user_installs(requirements, given, found):
    assert with_packages({**given, "env_vars": {"A": "1"}}, requirements) == {
        **found,
        "env_vars": {"A": "1"},
    }


def test_two_files_of_requirements_are_installed_both(requirements, tmp_path):
    (tmp_path / "more.txt").write_text("lightly\n")
    found = with_packages({"pip": str(tmp_path / "more.txt")}, requirements)
    assert found["pip"][-2:] == ["nltk", "lightly"]


@pytest.mark.parametrize("name", ["conda", "image_uri", "container"])
def test_requirements_that_ray_cannot_add_are_refused(requirements, name):
    with pytest.raises(UsageError, match=f"a runtime_env with '{name}', which Ray does not"):
        with_packages({name: "mine"}, requirements)


def test_packages_of_no_known_form_are_refused(requirements):
    with pytest.raises(UsageError, match=r"must be a file, a list of packages or a dict"):
        with_packages({"pip": 3}, requirements)


def test_modules_of_the_user_travel_with_this_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "tasks.py").write_text("x = 1")
    with travelling({"py_modules": ["/mine"], "env_vars": {"A": "1"}}, None) as found:
        assert found["py_modules"] == ["/mine", str(own_package())]
        assert found["env_vars"] == {"A": "1"}
        with open(f"{found['working_dir']}/tasks.py") as file:
            assert file.read() == "x = 1"


def test_a_working_directory_of_the_user_s_is_what_travels_with_this_package():
    with travelling({"working_dir": "/mine"}, None) as found:
        assert found == {"working_dir": "/mine", "py_modules": [str(own_package())]}


def test_an_image_has_everything():
    with travelling({"image_uri": "mine", "env_vars": {}}, None) as found:
        assert found == {"image_uri": "mine", "env_vars": {}}


def connected(address):
    """Ray as a process finds it that is connected to a cluster."""
    return SimpleNamespace(
        get_runtime_context=lambda: SimpleNamespace(gcs_address=address),
        util=SimpleNamespace(get_node_ip_address=lambda: "10.0.0.7"),
    )


@pytest.mark.parametrize(
    "wanted", [None, "auto", "10.0.0.7:6379", "localhost:6379", "127.0.0.1:6379"]
)
def test_a_connection_to_the_cluster_that_is_meant_is_used(wanted):
    check_address(connected("10.0.0.7:6379"), wanted)


@pytest.mark.parametrize("wanted", ["10.0.0.8:6379", "10.0.0.7:6380", "ray://10.0.0.7:6379"])
def test_a_connection_to_another_cluster_is_refused(wanted):
    with pytest.raises(UsageError) as caught:
        check_address(connected("10.0.0.7:6379"), wanted)
    assert f"it must be to {wanted}, " in str(caught.value)
    assert "connected this process to 10.0.0.7:6379." in str(caught.value)


class Failing:
    """Ray, when it cannot be reached or started."""

    def __init__(self, error):
        self.error = error
        self.attempts = 0
        self.is_shut_down = False

    def init(self, **options):
        self.attempts += 1
        os.environ["RAY_TEST_MODE"] = "on"
        raise self.error

    def shutdown(self):
        self.is_shut_down = True


def attempt(ray, address):
    wish = Wish(address=address, resources={}, runtime_env=None, placement_group=None)
    try:
        connect(ray, wish, 1, 1)
    finally:
        assert ray.is_shut_down
        assert "RAY_TEST_MODE" not in os.environ


def test_a_cluster_that_asks_for_a_token_is_told_as_such():
    error = ConnectionError("Failed to connect")
    error.__cause__ = RuntimeError("Last error: InvalidAuthToken: the token is missing")
    with pytest.raises(WorkerError, match=r"answer at h:1, but asks for a token .* RAY_AUTH_TOK"):
        attempt(Failing(error), "h:1")


def test_a_cluster_that_does_not_answer_is_told_with_what_ray_says():
    with pytest.raises(WorkerError, match=r"answer at h:1, but got ConnectionError: no route"):
        attempt(Failing(ConnectionError("no route")), "h:1")


def test_sigterm_while_ray_starts_stops_the_run_in_the_usual_way():
    with pytest.raises(RunInterrupted) as caught:
        attempt(Failing(SystemExit(signal.SIGTERM)), None)
    assert caught.value.exit_code == 75


def test_ray_that_somebody_stops_while_it_starts_is_not_started_again(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for error, attempts in ((RunInterrupted("stopped"), 1), (OSError("too slow"), 3)):
        ray = Failing(error)
        with pytest.raises(CerebroError):
            attempt(ray, None)
        assert ray.attempts == attempts


def test_a_run_without_workers_says_so_at_growing_intervals():
    vacancy = Vacancy()
    told = [now for now in range(200) if vacancy.note(now, is_vacant=True)]
    assert told == [10, 30, 70, 150]
    assert not vacancy.note(200, is_vacant=False)
    assert [now for now in range(300, 340) if vacancy.note(now, is_vacant=True)] == [310, 330]


def test_what_a_run_waits_for_is_told_with_what_to_do():
    cluster = SimpleNamespace(places=0, room="CPU: 1 for each worker, 0 of 0 free", address="h:1")
    told = waiting(cluster, 2, 3)
    assert "6 asked for, and the machines of the Ray cluster have places for 0 (CPU: 1 " in told
    assert "a gang needs that of 3 workers at once" in told
    assert ": `ray start --address=h:1` on another machine adds some. Ctrl-C stops it" in told
    cluster.places = 3
    assert "others may use them, or packages be installed there" in waiting(cluster, 2, 3)


class Silent:
    """Ray, when its head is gone."""

    @property
    def places(self):
        raise ConnectionError("no answer")


def test_a_cluster_that_does_not_answer_is_told_too():
    assert "Ray does not say why there are none (ConnectionError: no answer)" in waiting(
        Silent(), 2, 1
    )


def test_a_place_that_workers_write_to_is_tried(tmp_path):
    store = DirectoryStore(tmp_path / "out")
    store.write("probe", b"1")
    digest = "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"
    assert Place(store.url, "probe", digest, is_written=True).is_seen()
    assert store.list() == ["probe"]


OUTLETS = """
import threading
from cerebro.backend.limits import Limits
from cerebro.backend.ray.arrival import Doorstep
from cerebro.backend.ray.orders import Charter

charter = Charter(opening=b"", threads=1, limits=Limits(), places={}, environment={},
                  cache_bytes=1, machine="another", paths=(), log_dir=None)
doorstep = Doorstep()
ways = {doorstep.prepare(charter, frozenset({"store"}), object()).relay for _ in range(3)}
names = [thread.name for thread in threading.enumerate()]
print(len(ways), names.count("cerebro-outlet"))
"""


def test_processes_of_one_actor_share_its_way_to_the_driver_s_files():
    done = subprocess.run(
        [sys.executable, "-c", OUTLETS], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "1"]
