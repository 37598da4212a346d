"""Seeds: every random stream of a run is a pure function of what it is for."""

from __future__ import annotations

import hashlib
import random

import numpy as np


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed for the purpose that `parts` name.

    >>> derive_seed("visit", 0, 1) == derive_seed("visit", 0, 1)
    True
    >>> derive_seed("visit", 0, 1) == derive_seed("visit", 1, 0)
    False
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_host(seed: int) -> None:
    """Seed the global generators of Python and NumPy."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
