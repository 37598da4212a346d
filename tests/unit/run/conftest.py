from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.experiments import fast_folder, make_toy_data


@pytest.fixture(scope="session")
def data() -> Iterator[Path]:
    """A dataset of two train shards and one validation shard; nobody writes to it."""
    with fast_folder() as path:
        make_toy_data(path / "data")
        yield path / "data"


@pytest.fixture
def folder() -> Iterator[Path]:
    with fast_folder() as path:
        yield path
