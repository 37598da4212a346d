"""The learning-rate rules against a table worked out by hand, and against a second reading."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cerebro.errors import UsageError
from cerebro.zoo.rates import Cosine, Decay, RateRule, Scaling, lr_at, make_rule, parse_decay

EXACT = {"rel": 1e-12, "abs": 0.0}

IMAGENET = (
    Decay(5, 30, 1.0),
    Decay(30, 60, 1e-1),
    Decay(60, 80, 1e-2),
    Decay(80, None, 1e-3),
)


def rate(batch: int, *, steps: int = 97, n: int = 8, lr: float = 1e-4, **rule: Any) -> float:
    return lr_at(batch, steps, n, lr, RateRule(**rule)).lr


# by hand: n = 8 ranks, W = 5 epochs of warm-up, 97 steps an epoch, so W * steps = 485


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (0, 1e-4 * (1 + 7 / 485)),
        (1, 1e-4 * (1 + 14 / 485)),
        (96, 1e-4 * (1 + 7 * 97 / 485)),
        (97, 1e-4 * (1 + 7 * 98 / 485)),
        (242, 1e-4 * (1 + 7 * 243 / 485)),
        (483, 1e-4 * (1 + 7 * 484 / 485)),
        (484, 8e-4),
        (485, 8e-4),
        (10_000, 8e-4),
    ],
)
def test_linear_warm_up_from_the_nominal_rate_to_n_times_it(batch, expected):
    assert rate(batch, warmup_epochs=5) == pytest.approx(expected, **EXACT)


@pytest.mark.parametrize(
    ("scaling", "first", "last"),
    [
        (Scaling.LINEAR, 1e-4 * (1 + 7 / 485), 8e-4),
        # Below the nominal rate: lr / sqrt(n).
        (Scaling.SQRT, 1e-4 / math.sqrt(8) * (1 + 7 / 485), 1e-4 * math.sqrt(8)),
        (Scaling.NONE, 1e-4 / 8 * (1 + 7 / 485), 1e-4),
    ],
)
def test_each_scaling_warms_up_to_its_own_rate(scaling, first, last):
    assert rate(0, warmup_epochs=5, scaling=scaling) == pytest.approx(first, **EXACT)
    assert rate(484, warmup_epochs=5, scaling=scaling) == pytest.approx(last, **EXACT)


def test_the_end_of_the_warm_up_is_the_scaled_rate_to_the_bit():
    assert lr_at(484, 97, 8, 1.0, RateRule(warmup_epochs=5)).lr == 8.0


@pytest.mark.parametrize("batch", [0, 1, 96, 97, 484, 485])
def test_warm_up_of_one_rank_changes_nothing(batch):
    assert lr_at(batch, 97, 1, 0.3, RateRule(warmup_epochs=5)) == (0.3, 1.0)


# the ImageNet recipe: SGD 0.0125, momentum 0.9, warm-up 5, decay at 5 / 30 / 60 / 80


@pytest.mark.parametrize(
    ("epoch", "multiple"),
    [(5, 1), (29, 1), (30, 0.1), (59, 0.1), (60, 0.01), (79, 0.01), (80, 0.001), (99, 0.001)],
)
@pytest.mark.parametrize("place", [0, 1, 499])
def test_imagenet_decay_is_absolute(epoch, multiple, place):
    found = rate(500 * epoch + place, steps=500, lr=0.0125, warmup_epochs=5, decay=IMAGENET)
    assert found == pytest.approx(0.0125 * 8 * multiple, **EXACT)


def test_momentum_is_corrected_for_the_batch_that_changes_the_rate():
    rule = RateRule(warmup_epochs=5, decay=IMAGENET)
    momentum = {b: 0.9 * lr_at(b, 500, 8, 0.0125, rule).momentum for b in range(81 * 500)}
    first, last = 30 * 500, 80 * 500
    assert momentum[first] == pytest.approx(0.9 * 0.1, **EXACT)
    assert momentum[60 * 500] == pytest.approx(0.9 * 0.1, **EXACT)
    assert momentum[last] == pytest.approx(0.9 * 0.1, **EXACT)
    assert momentum[first - 1] == momentum[first + 1] == 0.9
    # An optimizer is made with the scaled rate: the first batch of the warm-up takes it down.
    assert momentum[0] == pytest.approx(0.9 * (1 + 7 / 2500) / 8, **EXACT)
    assert momentum[1] == pytest.approx(0.9 * (2500 + 14) / (2500 + 7), **EXACT)
    assert momentum[2499] == pytest.approx(0.9 * 20000 / (20000 - 7), **EXACT)
    assert momentum[2500] == 0.9


def test_momentum_stays_without_correction():
    rule = RateRule(warmup_epochs=5, decay=IMAGENET, momentum_correction=False)
    assert {lr_at(b, 10, 8, 1.0, rule).momentum for b in range(1000)} == {1.0}


def test_a_rate_of_zero_stays_zero_and_leaves_the_momentum_finite():
    rule = RateRule(warmup_epochs=2, decay=(Decay(2, 3, 0.0), Decay(3, None, 1.0)))
    rates = [lr_at(batch, 4, 8, 0.0, rule) for batch in range(20)]
    assert {each.lr for each in rates} == {0.0}
    assert all(math.isfinite(each.momentum) for each in rates)


# overlaps and gaps: a second reading, batch by batch as the callbacks ran


def replay(rule: RateRule, *, steps: int, epochs: int, n: int) -> list[float]:
    """Callbacks in their order at every batch: warm-up, then the entries as listed."""
    rates, current = [], 1.0
    for epoch in range(epochs):
        for batch in range(steps):
            if epoch < rule.warmup_epochs:
                seen = epoch + batch / steps + 1 / steps
                current = 1 / n * (seen * (n - 1) / rule.warmup_epochs + 1)
            for entry in rule.decay:
                inside = entry.end_epoch is None or epoch < entry.end_epoch
                if batch == 0 and epoch >= entry.start_epoch and inside:
                    current = entry.multiplier
            rates.append(current)
    return rates


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("n", [1, 3, 8])
@pytest.mark.parametrize("warmup", [0, 1, 3])
@pytest.mark.parametrize(
    "decay",
    [
        (),
        (Decay(2, 4, 0.5), Decay(6, 7, 0.25)),
        (Decay(6, 7, 0.25), Decay(2, 4, 0.5)),
        (Decay(0, 5, 0.5), Decay(3, None, 0.1)),
        (Decay(3, None, 0.1), Decay(0, 5, 0.5)),
        (Decay(0, 1, 0.5),),
    ],
    ids=["none", "gap", "gap-turned", "overlap", "overlap-turned", "first"],
)
def test_overlaps_and_gaps_are_as_the_callbacks_had_them(steps, n, warmup, decay):
    rule = RateRule(warmup_epochs=warmup, decay=decay, scaling=Scaling.NONE)
    expected = replay(rule, steps=steps, epochs=9, n=n)
    found = [lr_at(batch, steps, n, 1.0, rule) for batch in range(9 * steps)]
    assert [each.lr for each in found] == pytest.approx(expected, **EXACT)
    before = [1.0, *expected]
    ratios = [new / old for old, new in zip(before, expected, strict=False)]
    assert [each.momentum for each in found] == pytest.approx(ratios, rel=1e-12)


# cosine


def test_cosine_by_batch_over_fractional_epochs():
    rule = RateRule(cosine=Cosine(end_epoch=4, floor=0.05), scaling=Scaling.NONE)
    found = [rate_of.lr for rate_of in (lr_at(b, 10, 1, 0.01, rule) for b in range(45))]
    assert found[0] == 0.01
    assert found[20] == pytest.approx(0.01 * (0.05 + 0.95 / 2), **EXACT)
    assert found[13] == pytest.approx(
        0.01 * (0.05 + 0.95 * (1 + math.cos(math.pi * 1.3 / 4)) / 2), **EXACT
    )
    assert found[40:] == pytest.approx([0.0005] * 5, **EXACT)
    assert found == sorted(found, reverse=True)


def test_cosine_begins_where_the_warm_up_ends_and_may_end_within_an_epoch():
    rule = RateRule(warmup_epochs=1, cosine=Cosine(end_epoch=1.5))
    assert rate(9, steps=10, n=4, lr=1.0, warmup_epochs=1, cosine=rule.cosine) == 4.0
    assert rate(10, steps=10, n=4, lr=1.0, warmup_epochs=1, cosine=rule.cosine) == 4.0
    assert rate(15, steps=10, n=4, lr=1.0, warmup_epochs=1, cosine=rule.cosine) == 0.0
    assert {lr_at(b, 10, 4, 1.0, rule).momentum for b in range(10, 30)} == {1.0}


# what people write


def test_a_rule_is_made_of_what_a_recipe_says():
    entries = [entry._asdict() for entry in IMAGENET]
    rule = make_rule(lr_warmup_epochs=5, lr_schedule=entries, lr_scaling="sqrt", n_epochs=100)
    assert rule == RateRule(scaling=Scaling.SQRT, warmup_epochs=5, decay=IMAGENET)
    assert make_rule(lr_schedule="cosine", n_epochs=7).cosine == Cosine(7.0, 0.0)
    given = {"name": "cosine", "floor": 0.1, "end_epoch": 1.15}
    assert make_rule(lr_schedule=given, n_epochs=7).cosine == Cosine(1.15, 0.1)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("step", "must be a list of entries"),
        ([{"start_epoch": 0, "multiplier": 1}, 5], r"lr_schedule\[1\]: an entry is a mapping"),
        ([{"start_epoch": 0}], r"lr_schedule\[0\]: the key 'multiplier' is missing"),
        ([{"multiplier": 1}], "the key 'start_epoch' is missing"),
        ([{"start_epoch": -1, "multiplier": 1}], "start_epoch must be a whole number"),
        ([{"start_epoch": 1.5, "multiplier": 1}], "start_epoch must be a whole number"),
        ([{"start_epoch": True, "multiplier": 1}], "start_epoch must be a whole number"),
        ([{"start_epoch": 3, "end_epoch": 2, "multiplier": 1}], "`end_epoch > start_epoch`"),
        ([{"start_epoch": 3, "multiplier": -1}], "multiplier must be a number of at least 0"),
        ([{"start_epoch": 3, "multiplier": math.nan}], "multiplier must be a number"),
        ([{"start_epoch": 3, "multiplier": 1, "end": 4}], "unknown key 'end'. Known: start_epoch"),
    ],
    ids=str,
)
def test_bad_entries_are_refused(entries, message):
    with pytest.raises(UsageError, match=message):
        parse_decay(entries)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr_scaling": "cubic"}, "lr_scaling must be one of linear, sqrt, none"),
        ({"lr_warmup_epochs": 2.5}, "lr_warmup_epochs must be a whole number"),
        ({"lr_schedule": "sine"}, "unknown lr_schedule 'sine'"),
        ({"lr_schedule": {"name": "cosine", "warm": 1}}, "unknown key 'warm'"),
        ({"lr_schedule": {"name": "cosine", "floor": 2}}, "`0 <= floor <= 1`, but got floor=2"),
        ({"lr_schedule": "cosine", "lr_warmup_epochs": 9}, "`end_epoch > lr_warmup_epochs`"),
        ({"momentum_correction": 1}, "momentum_correction must be true or false"),
    ],
    ids=str,
)
def test_bad_rules_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        make_rule(**options, n_epochs=9)


@pytest.mark.parametrize("counts", [(-1, 1, 1), (0, 0, 1), (0, 1, 0)], ids=str)
def test_counts_must_be_possible(counts):
    with pytest.raises(UsageError, match="must hold"):
        lr_at(*counts, 0.1, RateRule())
