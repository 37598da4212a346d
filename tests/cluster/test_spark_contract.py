"""What every backend must do, on Spark."""

from __future__ import annotations

import pytest

from cerebro.backend import Backend, SparkBackend
from cerebro.testing.backend_contract import BackendContract
from tests.cluster.sparks import session

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True, scope="module")
def spark():
    with session("local[2]") as found:
        yield found


class TestSparkBackend(BackendContract):
    def make(self) -> Backend:
        return SparkBackend()
