"""Whose fault it is when a GPU has failed."""

from __future__ import annotations

from typing import cast

import pytest
import torch

from cerebro.backend.base import Failed, Failure, FailureKind
from cerebro.backend.failure import own_failure
from cerebro.backend.gang.ends import RankFailed, pack_failure, unpack_failure
from cerebro.errors import ReplicaError
from cerebro.run.answers import fatal_error
from cerebro.train.visit import OutOfMemory, VisitCall

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
    assert failure.is_spent
    assert "CUBLAS_STATUS_NOT_INITIALIZED" in failure.traceback


def test_an_error_is_told_as_it_is_where_the_gpu_works(monkeypatch):
    on_a_gpu(monkeypatch, None)
    failure = caught(ValueError("x"))
    assert (failure.message, failure.is_spent) == ("ValueError: x", False)


def test_a_gpu_without_memory_works(monkeypatch):
    on_a_gpu(monkeypatch, None)
    error = OutOfMemory("the device is full")
    error.__cause__ = torch.AcceleratorError("CUDA error: out of memory")
    failure = caught(error)
    assert (failure.kind, failure.is_spent) == (FailureKind.MEMORY, False)


def test_older_versions_of_pytorch_have_no_name_for_it(monkeypatch):
    on_a_gpu(monkeypatch, RuntimeError(ASSERT))
    assert caught(RuntimeError(ASSERT)).is_spent


def test_the_gpu_of_a_leader_has_not_failed_where_that_of_another_rank_has():
    failed = caught(torch.AcceleratorError(ASSERT))
    told = unpack_failure(pack_failure(failed), 1)
    assert told.message == f"AcceleratorError: {ASSERT} (rank 1)"
    assert (told.kind, told.signature) == (FailureKind.ERROR, failed.signature)
    assert failed.is_spent
    assert not caught(RankFailed(1, told)).is_spent


def test_replicas_that_differ_are_told_as_that_by_whichever_rank():
    told = unpack_failure(pack_failure(caught(ReplicaError("a row is missing"))), 1)
    call = cast(VisitCall, None)
    error = fatal_error(Failed(0, call, caught(RankFailed(1, told))), is_probing=False)
    assert isinstance(error, ReplicaError)
    assert str(error) == "a row is missing (rank 1)"
