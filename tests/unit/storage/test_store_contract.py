from __future__ import annotations

import uuid

import pytest

from cerebro.storage import DirectoryStore, open_store
from cerebro.testing import bucket
from cerebro.testing.store_contract import StoreContract


class TestDirectoryStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        store = DirectoryStore(tmp_path / "runs")
        yield store
        store.close()


class TestChildOfDirectoryStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        store = DirectoryStore(tmp_path).child("runs")
        yield store
        store.close()


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self):
        store = open_store(f"memory://contract-{uuid.uuid4().hex}/runs")
        yield store
        store.close()


class TestBucketStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        bucket.register()
        store = open_store(f"bucket://{tmp_path}/runs")
        yield store
        store.close()


class TestChildOfBucketStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        bucket.register()
        store = open_store(f"bucket://{tmp_path}").child("runs")
        yield store
        store.close()
