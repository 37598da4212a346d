"""What driver and tasks tell each other: over Spark's own channel, and by no other way."""

from __future__ import annotations

import pickle
from typing import Any, cast

import cloudpickle


def encode(value: object) -> bytes:
    """Anything that can travel, code of notebooks too."""
    return cast(bytes, cloudpickle.dumps(value))


def decode(encoded: bytes) -> Any:
    """What was encoded at the other end. Never for what lies in files: reading it may run code."""
    return pickle.loads(encoded)  # noqa: S301
