"""Orders of rows."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.data.order import permutation, shuffle
from cerebro.errors import UsageError

GOLDEN_PERMUTATION = [703, 781, 968, 614, 711, 308, 123, 51]
GOLDEN_SHUFFLE = [733, 100, 342, 192, 833, 997, 67, 949]


def test_the_order_is_the_same_on_every_machine_and_in_every_release():
    order = permutation(1000, seed=42, trial=7, epoch=3, shard=5)
    assert order[:8].tolist() == GOLDEN_PERMUTATION
    assert shuffle(1000, seed=42, split="train")[:8].tolist() == GOLDEN_SHUFFLE


@given(rows=st.integers(0, 300), seed=st.integers(0, 2**64 - 1))
def test_every_row_is_there_once(rows, seed):
    order = permutation(rows, seed=seed, trial=0, epoch=0, shard=0)
    assert sorted(order.tolist()) == list(range(rows))


def test_each_of_seed_trial_epoch_and_shard_changes_the_order():
    numbers = itertools.product([0, 1, 2**32, 2**32 + 1], [0, 1], [0, 1], [0, 1])
    orders = {
        tuple(permutation(50, seed=s, trial=t, epoch=e, shard=h).tolist()) for s, t, e, h in numbers
    }
    assert len(orders) == 32


def test_splits_are_shuffled_differently():
    orders = [shuffle(50, seed=0, split=name).tolist() for name in ("train", "val", "test")]
    assert len({tuple(order) for order in orders}) == 3


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(UsageError, match="seed"):
        permutation(3, seed=seed, trial=0, epoch=0, shard=0)


@settings(deadline=None)
@given(st.integers(0, 500), st.integers(1, 64), st.integers(0, 2**64 - 1))
def test_blocks_hold_neighbours_and_every_row_comes_once(rows, block, seed):
    order = permutation(rows, seed=seed, trial=0, epoch=0, shard=0, block=block)
    assert sorted(order.tolist()) == list(range(rows))
    whole = max(0, rows - 2 * (block - 1)) // block * block if block <= rows else 0
    runs = order[:whole].reshape(-1, block)
    assert (np.diff(runs) == 1).all()
    assert len(set((runs[:, 0] % block).tolist())) <= 1


def test_neighbours_change_from_epoch_to_epoch():
    first = {
        int(permutation(640, seed=0, trial=0, epoch=epoch, shard=0, block=16)[0]) % 16
        for epoch in range(20)
    }
    assert len(first) > 5
