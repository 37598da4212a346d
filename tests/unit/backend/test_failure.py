from __future__ import annotations

import pickle
import re

import pytest

from cerebro.backend.base import Failure, FailureKind
from cerebro.backend.failure import describe_failure
from cerebro.errors import (
    CheckpointCorruptError,
    ShardCorruptError,
    TrialError,
    UnknownParamError,
    UsageError,
)
from cerebro.train.visit import Diverged, OutOfMemory


def caught(error: BaseException) -> Failure:
    try:
        raise error
    except BaseException as raised:
        return describe_failure(raised)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("x"), FailureKind.ERROR),
        (MemoryError(), FailureKind.MEMORY),
        (OutOfMemory("x"), FailureKind.MEMORY),
        (SystemExit(3), FailureKind.ERROR),
        (TrialError("x"), FailureKind.ERROR),
        (Diverged("x"), FailureKind.DIVERGED),
        (UsageError("x"), FailureKind.USAGE),
        (UnknownParamError("x"), FailureKind.USAGE),
        (CheckpointCorruptError("x"), FailureKind.CORRUPT),
        (ShardCorruptError("x"), FailureKind.FATAL),
    ],
    ids=lambda value: str(value) if isinstance(value, FailureKind) else type(value).__name__,
)
def test_every_error_has_a_kind(error, kind):
    assert caught(error).kind is kind


def test_the_message_of_a_foreign_error_starts_with_its_class():
    assert caught(KeyError("lr")).message == "KeyError: 'lr'"


def test_the_message_of_our_own_error_is_a_sentence():
    assert caught(UsageError("`lr > 0` must hold.")).message == "`lr > 0` must hold."


def test_a_lack_of_memory_names_what_was_used_and_what_there_is():
    message = caught(MemoryError("cannot allocate 8 GiB")).message
    assert re.search(r"at most \d+\.\d GiB of the host's \d+\.\d GiB", message)
    assert "MemoryError: cannot allocate 8 GiB" in message
    assert "batch_size" in message


def test_a_lack_of_memory_is_known_by_where_memory_was_asked_for():
    def fail(error):
        try:
            raise error
        except BaseException as cause:
            raise OutOfMemory("out of memory", is_splittable=True) from cause

    with pytest.raises(OutOfMemory) as info:
        fail(KeyError("x"))
    failure = describe_failure(info.value)
    assert failure.error == "KeyError"
    assert failure.signature.startswith("KeyError@")
    assert failure.is_splittable


def test_the_traceback_shows_the_line_and_its_causes():
    def fail():
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    with pytest.raises(ValueError, match="outer") as info:
        fail()
    text = describe_failure(info.value).traceback
    assert "inner" in text
    assert 'raise ValueError("outer")' in text


def failing(value):
    if value > 1:
        raise ValueError(f"bad value {value}")
    raise ValueError(f"small value {value}")


def failure_of(value):
    with pytest.raises(ValueError, match="value") as info:
        failing(value)
    return describe_failure(info.value)


def test_the_signature_is_the_same_for_the_same_line():
    assert failure_of(2).signature == failure_of(3).signature


def test_the_signature_differs_from_line_to_line():
    assert failure_of(1).signature != failure_of(2).signature


def test_the_signature_differs_from_class_to_class():
    assert caught(ValueError()).signature != caught(TypeError()).signature


def test_an_error_that_was_never_raised_can_be_described():
    assert describe_failure(ValueError("x")).signature == "ValueError@?"


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no")


def test_an_error_that_cannot_be_shown_is_described():
    failure = caught(Unprintable())
    assert failure.error == "Unprintable"
    assert "cannot be shown" in failure.message


def test_a_failure_travels_by_pickle():
    failure = caught(Unprintable())
    assert pickle.loads(pickle.dumps(failure)) == failure
