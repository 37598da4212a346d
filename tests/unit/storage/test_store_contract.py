from __future__ import annotations

import pytest

from cerebro.storage import LocalStore
from cerebro.testing.store_contract import StoreContract


class TestLocalStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        store = LocalStore(tmp_path / "runs")
        yield store
        store.close()


class TestChildOfLocalStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        store = LocalStore(tmp_path).child("runs")
        yield store
        store.close()
