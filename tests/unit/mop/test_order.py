from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cerebro.mop.order import shard_at, visits
from cerebro.mop.visit import Phase


@given(start=st.integers(0, 99), epoch=st.integers(0, 99), shards=st.integers(1, 20))
def test_an_epoch_visits_every_shard_once(start: int, epoch: int, shards: int) -> None:
    seen = [shard_at(start, epoch, step, shards) for step in range(shards)]
    assert sorted(seen) == list(range(shards))


def test_an_epoch_begins_one_shard_after_the_one_before() -> None:
    assert [shard_at(5, epoch, 0, 4) for epoch in range(4)] == [1, 2, 3, 0]


def test_visits_lists_train_before_eval_in_every_epoch() -> None:
    phases = [phase for _, phase, _, _ in visits(0, 2, 2, 1)]
    assert phases == [Phase.TRAIN, Phase.TRAIN, Phase.EVAL] * 2
