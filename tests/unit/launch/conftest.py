from __future__ import annotations

import pytest


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A directory of commands that is all of the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder
