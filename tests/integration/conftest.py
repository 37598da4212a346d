from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.experiments import fast_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder, in memory where possible."""
    with fast_folder() as path:
        yield path
