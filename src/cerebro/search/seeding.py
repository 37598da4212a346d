"""What all samplers share: streams of random numbers by name, and checks of their arguments."""

from __future__ import annotations

import hashlib
import json
import random

from cerebro.errors import UsageError


def stream(seed: int, number: int, name: str) -> random.Random:
    """A generator that depends on its three arguments alone, and on each of them.

    >>> stream(0, 7, "lr").random() == stream(0, 7, "lr").random()
    True
    """
    key = json.dumps([seed, number, name]).encode()
    return random.Random(hashlib.sha256(key).digest())  # noqa: S311  # repeatable on purpose


def check_num_trials(num_trials: int) -> int:
    """Give the number of trials back; UsageError where there would be none."""
    if num_trials < 1:
        raise UsageError(f"`num_trials >= 1` must hold, but got num_trials={num_trials}.")
    return num_trials


def check_proposal(number: int) -> None:
    """UsageError where no proposal can have this number."""
    if number < 0:
        raise UsageError(f"`number >= 0` must hold, but got number={number}.")
