"""`cerebro start`, `url`, `restart` and `shutdown` with real processes on real ports."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from cerebro.errors import RunLockedError, UsageError
from cerebro.launch import local, processes
from cerebro.launch.local import LocalLauncher
from cerebro.launch.service import MODULE
from cerebro.storage import DirectoryStore
from cerebro.storage.lock import RunLock
from cerebro.storage.workspace import LOCK, SERVICES, Services, read_services, write_services
from cerebro.track.notebook_link import tensorboard_link
from tests.integration.services import ask, cerebro, processes_of, settle_ports, token_of, urls_in
from tests.processes import is_alive, wait_for

HOST = socket.gethostname()
NAMES = ["jupyter", "tensorboard", "reports"]
PAGES = {"jupyter": "/api/contents", "tensorboard": "/data/runs", "reports": "/digits/report.html"}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A workspace with a run, whose services are down in the end."""
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "runs" / "digits").mkdir(parents=True)
    (folder / "runs" / "digits" / "report.html").write_text("the report")
    # Python finds such files first, unless it is told not to.
    (folder / "json.py").write_text("raise SystemExit('shadowed')")
    settle_ports(folder)
    yield folder
    cerebro("shutdown", folder)
    for process in processes_of(folder):
        process.kill()


@pytest.fixture(scope="module")
def started(workspace):
    return cerebro("start", "--workers", "3", workspace)


@pytest.fixture(scope="module")
def urls(started) -> dict[str, str]:
    assert started.returncode == 0, started.stdout + started.stderr
    return urls_in(started.stdout)


def services_of(workspace: Path):
    known = read_services(workspace)
    assert known is not None
    return known.services


def test_start_prints_an_address_for_each_service_and_the_way_from_another_machine(started, urls):
    assert list(urls) == NAMES
    ports = [urlsplit(url).port for url in urls.values()]
    assert len(set(ports)) == 3
    forwards = " ".join(f"-L {port}:127.0.0.1:{port}" for port in ports)
    assert f"ssh -N {forwards} " in started.stdout


@pytest.mark.usefixtures("urls")
def test_a_new_workspace_has_a_template(started, workspace):
    assert "experiment.ipynb is a template to begin with" in started.stdout
    assert (workspace / "experiment.ipynb").exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_service_answers_its_own_token_alone(urls, name):
    others = [token_of(urls[other]) for other in NAMES if other != name]
    path, token = PAGES[name], token_of(urls[name])
    assert len(token) >= 40
    assert ask(urls[name], path, token)[0] == 200
    assert [ask(urls[name], path, wrong)[0] for wrong in [None, "", *others]] == [403] * 4


def test_services_listen_on_the_loopback_interface_only(workspace, urls):
    found = [
        connection.laddr
        for service in services_of(workspace)
        for connection in psutil.Process(service.pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert {address.ip for address in found} == {"127.0.0.1"}
    assert {address.port for address in found} == {urlsplit(url).port for url in urls.values()}


def test_tokens_are_in_no_log_no_argument_and_no_environment(workspace, urls):
    places = [path.read_text() for path in (workspace / ".cerebro" / "logs").iterdir()]
    for service in services_of(workspace):
        process = psutil.Process(service.pid)
        places += [" ".join(process.cmdline()), str(process.environ())]
    told = "\n".join(places)
    assert [name for name in NAMES if token_of(urls[name]) in told] == []


@pytest.mark.usefixtures("urls")
def test_the_file_that_has_the_tokens_is_its_owners_alone(workspace):
    assert stat.S_IMODE((workspace / SERVICES).stat().st_mode) == 0o600


def test_starting_again_changes_nothing(workspace, urls):
    before = services_of(workspace)
    again = cerebro("start", cwd=workspace)
    assert (again.returncode, urls_in(again.stdout)) == (0, urls)
    assert services_of(workspace) == before


def test_jupyterlab_asks_nobody_about_news(urls):
    status, page = ask(urls["jupyter"], "/lab", token_of(urls["jupyter"]))
    assert status == 200
    assert '"disabledExtensions": ["@jupyterlab/apputils-extension:announcements"]' in page


def test_url_prints_the_same_again(workspace, urls):
    assert urls_in(cerebro("url", workspace).stdout) == urls


def test_tensorboard_answers_posts(urls):
    url = urls["tensorboard"]
    path = "/data/plugin/scalars/scalars_multirun"
    assert ask(url, path, None, method="POST", body="tag=x&runs=y")[0] == 403
    assert ask(url, path, token_of(url), method="POST", body="tag=x&runs=y")[0] != 403


def test_an_experiment_in_the_workspace_shows_a_button(workspace, urls):
    page = tensorboard_link(DirectoryStore(workspace / "runs" / "digits"))
    assert f'href="{urls["tensorboard"]}"' in page


@pytest.mark.usefixtures("urls")
def test_workers_are_remembered(workspace):
    settings = json.loads((workspace / ".cerebro" / "workspace.json").read_text())
    assert settings["workers"] == 3


def test_restart_keeps_the_ports_and_changes_the_tokens(workspace, urls):
    before = [service.pid for service in services_of(workspace)]
    again = urls_in(cerebro("restart", workspace).stdout)
    assert [urlsplit(url).port for url in again.values()] == [
        urlsplit(url).port for url in urls.values()
    ]
    assert set(again.values()).isdisjoint(urls.values())
    assert [pid for pid in before if psutil.pid_exists(pid)] == []
    assert ask(again["reports"], "/", token_of(urls["reports"]))[0] == 403


@pytest.mark.usefixtures("urls")
def test_shutdown_ends_services_and_kernels_and_nothing_else(workspace):
    url = urls_in(cerebro("url", workspace).stdout)["jupyter"]
    status, said = ask(url, "/api/kernels", token_of(url), method="POST", body="{}")
    assert status == 201, said
    own = processes_of(workspace)
    assert len(own) == 4
    with subprocess.Popen(
        [sys.executable, "-c", "input()", MODULE, "reports", str(workspace)],
        stdin=subprocess.PIPE,
    ) as bystander:
        done = cerebro("shutdown", workspace)
        assert bystander.poll() is None
        bystander.kill()
    assert done.stdout.split("\n")[:3] == [f"{name} ended" for name in NAMES]
    assert [process for process in own if is_alive(process)] == []
    assert not (workspace / SERVICES).exists()
    assert "no service" in cerebro("shutdown", workspace).stdout
    assert cerebro("url", workspace).returncode == 2


# From here on with the pages of runs alone: JupyterLab takes its seconds to start.


@pytest.fixture
def launcher(tmp_path):
    """A launcher that finds no optional package; what it started is down in the end."""
    launcher = LocalLauncher(tmp_path, has_package=lambda name: False)
    yield launcher
    launcher.stop()
    assert processes_of(tmp_path) == []


def only(launcher: LocalLauncher):
    (service,) = services_of(launcher.workspace)
    return service


def end_by_force(pid: int) -> None:
    process = psutil.Process(pid)
    process.kill()
    process.wait()


def test_what_is_not_installed_is_told_and_the_rest_started(launcher):
    overview = launcher.start()
    assert [endpoint.name for endpoint in overview.endpoints] == ["reports"]
    assert overview.notes == (
        "jupyter is not installed: pip install 'cerebro[notebook]'",
        "tensorboard is not installed: pip install 'cerebro[notebook]'",
    )


def test_a_service_that_died_is_told_and_started_on_its_port(launcher):
    settle_ports(launcher.workspace)
    port = launcher.start().endpoints[0].port
    end_by_force(only(launcher).pid)
    overview = launcher.url()
    assert overview.endpoints == ()
    assert "reports had ended by itself" in overview.notes[0]
    assert launcher.start().endpoints[0].port == port


def test_a_pid_that_is_somebody_elses_by_now_is_left_alone(launcher):
    launcher.start()
    service = only(launcher)
    end_by_force(service.pid)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        created_s = psutil.Process(other.pid).create_time()
        for begun_s in (service.created_s, created_s):
            stale = replace(service, pid=other.pid, created_s=begun_s)
            write_services(launcher.workspace, Services(host=HOST, services=(stale,)))
            assert "had ended by itself" in launcher.stop().notes[0]
            assert other.poll() is None
        other.kill()


@pytest.mark.parametrize("command", ["start", "stop"])
def test_after_a_damaged_file_nothing_stays_behind(launcher, command):
    launcher.start()
    lost = only(launcher)
    path = launcher.workspace / SERVICES
    path.write_text(path.read_text()[:-40])
    overview = getattr(launcher, command)()
    assert overview.notes[0].startswith(f"{SERVICES} was damaged")
    assert f"ended process {lost.pid}, which nothing told of" in overview.notes
    assert [each.name for each in overview.endpoints] == (["reports"] if command == "start" else [])


def test_damaged_settings_are_told_and_written_anew(launcher):
    launcher.start(workers=5)
    path = launcher.workspace / ".cerebro" / "workspace.json"
    path.write_text("{")
    assert "was damaged" in launcher.start().notes[0]
    assert json.loads(path.read_text())["workers"] is None


def test_a_port_that_is_taken_is_changed_and_told(launcher):
    settle_ports(launcher.workspace)
    port = launcher.start().endpoints[0].port
    launcher.stop()
    with socket.create_server(("127.0.0.1", port)):
        overview = launcher.start()
    assert overview.endpoints[0].port != port
    assert f"reports had port {port}, which is taken now" in overview.notes


def test_a_port_that_is_taken_between_choice_and_use_is_changed(launcher, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        choices = iter([{"reports": taken}])
        monkeypatch.setattr(
            local,
            "choose_ports",
            lambda names: next(choices, None) or processes.choose_ports(names),
        )
        overview = launcher.start()
    assert overview.endpoints[0].port != taken
    assert f"port {taken} of reports was taken meanwhile" in overview.notes


def test_a_service_that_cannot_start_is_told_with_its_log(launcher, monkeypatch):
    broken = [sys.executable, "-c", "raise SystemExit('no luck')"]
    monkeypatch.setattr(processes, "command", lambda name, workspace: broken)
    overview = launcher.start()
    assert (overview.endpoints, overview.failed) == ((), ("reports",))
    log = launcher.workspace / ".cerebro" / "logs" / "reports.log"
    assert overview.notes[-1] == f"reports did not come up: see {log}"
    assert log.read_text() == "no luck\n"
    assert not (launcher.workspace / SERVICES).exists()


def test_an_interrupted_start_leaves_nothing_behind(launcher, monkeypatch):
    def interrupt(service):
        raise KeyboardInterrupt

    monkeypatch.setattr(local, "is_answering", interrupt)
    with pytest.raises(KeyboardInterrupt):
        launcher.start()
    assert processes_of(launcher.workspace) == []
    assert not (launcher.workspace / SERVICES).exists()


def test_services_of_another_machine_are_not_touched(launcher):
    launcher.start()
    known = Services(host="elsewhere", services=services_of(launcher.workspace))
    write_services(launcher.workspace, known)
    for command in (launcher.start, launcher.url, launcher.stop):
        with pytest.raises(UsageError, match="were started on elsewhere"):
            command()
    write_services(launcher.workspace, Services(host=HOST, services=known.services))


def test_while_one_command_works_another_is_refused(launcher):
    launcher.start()
    with RunLock(DirectoryStore(launcher.workspace), LOCK):
        for command in (launcher.start, launcher.url, launcher.stop):
            with pytest.raises(RunLockedError, match="Wait until it is done"):
                command()


START = """\
import sys
from dataclasses import replace
from pathlib import Path
from cerebro.errors import RunLockedError
from cerebro.launch.local import LocalLauncher
from cerebro.launch.service import MODULE
print("ready", flush=True)
input()
try:
    LocalLauncher(Path(sys.argv[1]), has_package=lambda name: False).start()
except RunLockedError:
    print("refused")
"""


def test_two_starts_at_once_start_each_service_once(launcher):
    pipe = subprocess.PIPE
    starts = [
        subprocess.Popen(
            [sys.executable, "-c", START, str(launcher.workspace)], stdin=pipe, stdout=pipe
        )
        for _ in range(3)
    ]
    for start in starts:
        assert start.stdout is not None
        assert start.stdout.readline() == b"ready\n"
    for start in starts:
        assert start.stdin is not None
        start.stdin.write(b"\n")
        start.stdin.flush()
    said = [start.communicate(timeout=60)[0] for start in starts]
    assert [start.returncode for start in starts] == [0, 0, 0]
    assert said.count(b"refused\n") <= 2
    assert len(processes_of(launcher.workspace)) == 1
    assert len(launcher.url().endpoints) == 1


def test_a_start_that_is_killed_leaves_what_the_next_one_finds(launcher):
    with subprocess.Popen(
        [sys.executable, "-c", START, str(launcher.workspace)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    ) as start:
        assert start.stdin is not None
        start.stdin.write(b"\n")
        start.stdin.flush()
        wait_for(lambda: processes_of(launcher.workspace), "a service is there")
        start.kill()
    launcher.start()
    assert len(processes_of(launcher.workspace)) == 1


def test_runs_may_lie_elsewhere(launcher, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("scratch")
    (elsewhere / "far").mkdir()
    (elsewhere / "far" / "report.html").write_text("the far report")
    url = launcher.start(runs=str(elsewhere)).endpoints[0].url
    assert ask(url, "/far/report.html", token_of(url)) == (200, "the far report")


def test_where_nothing_was_started_nothing_is_made(tmp_path):
    assert "no service" in cerebro("shutdown", tmp_path).stdout
    assert cerebro("url", tmp_path).returncode == 2
    assert os.listdir(tmp_path) == []


def test_requests_that_cannot_be_carried_out(tmp_path):
    (tmp_path / "file").write_text("")
    refused = cerebro("start", tmp_path / "file")
    assert (refused.returncode, "must be a directory" in refused.stderr) == (2, True)
    remote = cerebro("start", tmp_path, "--on", "k8s")
    assert (remote.returncode, "not on 'k8s' yet" in remote.stderr) == (2, True)
    assert cerebro("start", tmp_path, "--workers", "0").returncode == 2
    assert os.listdir(tmp_path) == ["file"]
