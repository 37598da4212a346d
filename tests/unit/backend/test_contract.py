from __future__ import annotations

from cerebro.backend import Backend, InlineBackend, LocalBackend
from cerebro.testing.backend_contract import BackendContract
from cerebro.testing.process_contract import ProcessBackendContract


class TestInlineBackend(BackendContract):
    def make(self) -> Backend:
        return InlineBackend()


class TestLocalBackend(ProcessBackendContract):
    def make(self) -> Backend:
        return LocalBackend()
