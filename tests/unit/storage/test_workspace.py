from __future__ import annotations

import json
import os
import stat

import pytest

from cerebro.config.machine import default_workers
from cerebro.errors import UsageError
from cerebro.storage.workspace import (
    FOLDER,
    SERVICES,
    SETTINGS,
    Service,
    Services,
    Settings,
    find_workspace,
    make_private,
    read_services,
    read_settings,
    write_services,
    write_settings,
)

SERVICE = Service(name="reports", pid=4711, created_s=12.5, port=8080, token="t0ken")
KNOWN = Services(host="here", services=(SERVICE,))


@pytest.fixture
def workspace(tmp_path):
    make_private(tmp_path)
    return tmp_path


def mode_of(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_services_are_read_as_they_were_written(workspace):
    write_services(workspace, KNOWN)
    assert read_services(workspace) == KNOWN


def test_a_file_with_tokens_is_its_owners_alone(workspace):
    old = os.umask(0)
    try:
        write_services(workspace, KNOWN)
    finally:
        os.umask(old)
    assert mode_of(workspace / SERVICES) == 0o600
    assert mode_of(workspace / FOLDER) == 0o700
    assert sorted(path.name for path in (workspace / FOLDER).iterdir()) == ["logs", "services.json"]


def test_a_directory_that_others_may_read_is_closed(tmp_path):
    (tmp_path / FOLDER).mkdir(mode=0o755)
    make_private(tmp_path)
    assert mode_of(tmp_path / FOLDER) == 0o700


def test_no_services_leave_no_file(workspace):
    write_services(workspace, KNOWN)
    write_services(workspace, Services(host="here"))
    assert read_services(workspace) is None
    assert not (workspace / SERVICES).exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"format": 1, "host": "h", "services": [{"name": "rep',
        "[]",
        "null",
        '{"format": 2}',
        '{"format": 1}',
        '{"format": 1, "host": "h", "services": 3}',
        '{"format": 1, "host": "h", "services": [{}]}',
        '{"format": 1, "host": "h", "services": [{"name": "reports", "pid": "1", "created_s": 1.0,'
        ' "port": 1, "token": ""}]}',
        # Signals to these would go to all processes of the user, or to a whole group.
        '{"format": 1, "host": "h", "services": [{"name": "reports", "pid": -1, "created_s": 1.0,'
        ' "port": 1, "token": ""}]}',
        '{"format": 1, "host": "h", "services": [{"name": "reports", "pid": 0, "created_s": 1.0,'
        ' "port": 1, "token": ""}]}',
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_refused(workspace, text):
    (workspace / SERVICES).write_text(text)
    with pytest.raises(UsageError, match="not as it was written"):
        read_services(workspace)


def test_the_representation_of_a_service_hides_its_token():
    assert "t0ken" not in repr(KNOWN)


def test_settings_are_read_as_they_were_written(workspace):
    settings = Settings(workers=3, runs="/scratch/runs", ports={"jupyter": 8888})
    write_settings(workspace, settings)
    assert read_settings(workspace) == settings


@pytest.mark.parametrize(
    "change", [{"workers": 0}, {"workers": "2"}, {"workers": True}, {"runs": ""}, {"ports": [1]}]
)
def test_damaged_settings_are_refused(workspace, change):
    content = {"format": 1, "workers": None, "runs": "runs", "ports": {}, **change}
    (workspace / SETTINGS).write_text(json.dumps(content))
    with pytest.raises(UsageError, match="not as it was written"):
        read_settings(workspace)


def test_a_link_is_no_workspace(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / FOLDER).symlink_to("elsewhere")
    with pytest.raises(UsageError, match="must be a directory of your own"):
        make_private(tmp_path)
    assert find_workspace(tmp_path) is None


def test_the_nearest_workspace_is_found_from_below(workspace):
    below = workspace / "notebooks" / "first"
    below.mkdir(parents=True)
    assert find_workspace(below) == workspace
    make_private(below)
    assert find_workspace(below) == below


def test_in_a_directory_that_is_gone_there_is_none(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert find_workspace() is None


def test_a_workspace_decides_how_many_workers_experiments_in_it_have(workspace, monkeypatch):
    (workspace / "deep").mkdir()
    monkeypatch.chdir(workspace / "deep")
    without = default_workers("cpu", 1)
    write_settings(workspace, Settings(workers=7))
    assert default_workers("cpu", 1) == default_workers("auto", 4) == 7
    write_settings(workspace, Settings())
    assert default_workers("cpu", 1) == without
