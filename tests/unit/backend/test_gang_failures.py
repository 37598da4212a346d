"""Whose fault it is when a GPU has failed."""

from __future__ import annotations

import pytest
import torch

from cerebro.backend.base import Failure, FailureKind
from cerebro.backend.gang.ends import RankFailed, pack_failure, unpack_failure
from cerebro.backend.worker import own_failure

ASSERT = "CUDA error: device-side assert triggered"


def caught(error: Exception) -> Failure:
    try:
        raise error
    except Exception as raised:
        return own_failure(raised)


class Stream:
    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def query(self) -> bool:
        if self._error is not None:
            raise self._error
        return False


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream(error))


def test_an_error_after_which_a_gpu_is_of_no_use_is_told_as_that(monkeypatch):
    on_a_gpu(monkeypatch, torch.AcceleratorError(ASSERT))
    failure = caught(RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling cublas"))
    assert failure.message == f"AcceleratorError: {ASSERT}"
    assert failure.error == "AcceleratorError"
    assert "CUBLAS_STATUS_NOT_INITIALIZED" in failure.traceback


def test_an_error_is_told_as_it_is_where_the_gpu_works(monkeypatch):
    on_a_gpu(monkeypatch, None)
    assert caught(ValueError("x")).message == "ValueError: x"


def test_the_gpu_of_a_leader_has_not_failed_where_that_of_another_rank_has():
    failed = caught(torch.AcceleratorError(ASSERT))
    told = unpack_failure(pack_failure(failed), 1)
    assert told.message == f"AcceleratorError: {ASSERT} (rank 1)"
    assert (told.kind, told.signature) == (FailureKind.ERROR, failed.signature)
    assert caught(RankFailed(1, told)).error == "RankFailed"
