from __future__ import annotations

import random

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cerebro.train.seeds import derive_seed, seed_host

parts = st.lists(st.integers() | st.text(max_size=6), min_size=1, max_size=4)


def test_seeds_never_change_between_versions():
    assert derive_seed("visit", 0, 1, 2, 3) == 3825484256955806101


@settings(max_examples=50)
@given(parts)
def test_a_seed_fits_63_bits(purpose):
    assert 0 <= derive_seed(*purpose) < 2**63


@settings(max_examples=100)
@given(parts, parts)
def test_two_purposes_have_two_seeds(one, other):
    assume(one != other)
    assert derive_seed(*one) != derive_seed(*other)


def test_a_number_and_its_text_are_two_purposes():
    assert derive_seed("a", 1) != derive_seed("a", "1")


def test_neighbouring_numbers_do_not_run_together():
    assert derive_seed("visit", 1, 23) != derive_seed("visit", 12, 3)


def test_seeding_fixes_the_generators_of_python_and_numpy():
    drawn = []
    for _ in range(2):
        seed_host(derive_seed("visit", 0))
        drawn.append((random.random(), np.random.rand()))
    assert drawn[0] == drawn[1]


def test_two_seeds_give_two_streams():
    drawn = []
    for seed in (1, 2):
        seed_host(seed)
        drawn.append((random.random(), np.random.rand()))
    assert drawn[0][0] != drawn[1][0]
    assert drawn[0][1] != drawn[1][1]
