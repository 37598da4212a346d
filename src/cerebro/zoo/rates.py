"""Learning-rate rules: a rate, and a factor for the momentum, for every batch of a training.

Pure arithmetic, driven by fractional epochs: batches seen / batches of an epoch. With n workers on
a trial the rate is first scaled. Then warm-up, decay and cosine give multiples of the scaled rate:

* warm-up over W epochs, at each batch: (1/n) * (e * (n - 1) / W + 1), where e is the fractional
  epoch at the end of the batch: from nearly 1/n up to 1 at the end of epoch W;
* decay entries {start_epoch, end_epoch, multiplier}: at the first batch of each epoch in
  [start_epoch, end_epoch) the multiple becomes `multiplier`, whatever it was before;
* cosine, at each batch after the warm-up: from 1 down to a floor.

Where several of these speak of the same batch the last wins: warm-up, then the entries as they are
listed. So an entry that begins during the warm-up is in force for the first batch of an epoch and
gives way at the second. Where none speaks, the multiple stays as it is. These are the rules of
Horovod's Keras callbacks up to version 0.22.1.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cerebro.errors import UsageError

_ENTRY_KEYS = ("start_epoch", "end_epoch", "multiplier")
_COSINE_KEYS = ("name", "floor", "end_epoch")


class Scaling(enum.StrEnum):
    """How the rate grows with the number of workers that train a trial together."""

    LINEAR = "linear"
    SQRT = "sqrt"
    NONE = "none"


class Decay(NamedTuple):
    """From the first batch of `start_epoch` on, up to that of `end_epoch`, so much of the rate."""

    start_epoch: int
    end_epoch: int | None
    multiplier: float


class Cosine(NamedTuple):
    """Half a cosine from the end of the warm-up to `end_epoch`, down to `floor` of the rate."""

    end_epoch: float
    floor: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RateRule:
    """What the rate does over a training, apart from the rate itself.

    >>> RateRule(warmup_epochs=5).scaled(0.1, workers=4)
    0.4
    """

    scaling: Scaling = Scaling.LINEAR
    warmup_epochs: int = 0
    decay: tuple[Decay, ...] = ()
    cosine: Cosine | None = None
    #: Multiply the momentum by new rate / old rate for the batch at which warm-up or decay move it.
    momentum_correction: bool = True

    def scaled(self, base_lr: float, *, workers: int) -> float:
        """The rate that `workers` workers begin with."""
        factors = {Scaling.LINEAR: workers, Scaling.SQRT: math.sqrt(workers), Scaling.NONE: 1}
        return base_lr * factors[self.scaling]

    def moves_momentum(self, workers: int) -> bool:
        """Whether the momentum is ever other than it was given."""
        is_warmed_up = self.warmup_epochs > 0 and workers > 1
        return self.momentum_correction and (is_warmed_up or bool(self.decay))


class Rate(NamedTuple):
    """Of one batch: its learning rate, and what the optimizer's momentum is multiplied by."""

    lr: float
    momentum: float


def lr_at(batch: int, steps_per_epoch: int, workers: int, base_lr: float, rule: RateRule) -> Rate:
    """The rate of a batch, counted from 0 over the whole training.

    Args:
        batch: Its number.
        steps_per_epoch: Batches that all workers of a trial together take in an epoch.
        workers: How many train the trial together.
        base_lr: The rate of one worker.
        rule: What becomes of it.

    >>> rule = RateRule(warmup_epochs=5)
    >>> lr_at(0, 97, 8, 1e-4, rule).lr / (1e-4 * (1 + 7 / 485))
    1.0
    >>> lr_at(5 * 97 - 1, 97, 8, 1e-4, rule)
    Rate(lr=0.0008, momentum=1.0018073...)
    """
    _check_counts(batch, steps_per_epoch, workers)
    now = _multiple_at(batch, steps_per_epoch, workers, rule)
    scaled = rule.scaled(base_lr, workers=workers)
    return Rate(scaled * now, _momentum_at(batch, steps_per_epoch, workers, rule, now))


def _momentum_at(batch: int, steps: int, workers: int, rule: RateRule, now: float) -> float:
    if not rule.moves_momentum(workers) or _is_cosine(batch, steps, rule):
        return 1.0
    # An optimizer is made with the scaled rate.
    before = 1.0 if batch == 0 else _multiple_at(batch - 1, steps, workers, rule)
    return now / before if before else 1.0


def _multiple_at(batch: int, steps: int, workers: int, rule: RateRule) -> float:
    """Of the scaled rate."""
    if rule.cosine is not None and _is_cosine(batch, steps, rule):
        return _cosine_at(batch / steps, rule.warmup_epochs, rule.cosine)
    epoch = _last_spoken_of(batch // steps, rule)
    if epoch is None:
        return 1.0
    # In an epoch that nobody speaks of, what the last batch of the last such epoch had.
    place = batch % steps if epoch == batch // steps else steps - 1
    entries = [entry for entry in rule.decay if _covers(entry, epoch)]
    if entries and (place == 0 or epoch >= rule.warmup_epochs):
        return entries[-1].multiplier
    seen = epoch + (place + 1) / steps
    return (seen * (workers - 1) / rule.warmup_epochs + 1) / workers


def _is_cosine(batch: int, steps: int, rule: RateRule) -> bool:
    return rule.cosine is not None and batch // steps >= rule.warmup_epochs


def _cosine_at(epoch: float, start: int, cosine: Cosine) -> float:
    part = min(1.0, (epoch - start) / (cosine.end_epoch - start))
    return cosine.floor + (1 - cosine.floor) * (1 + math.cos(math.pi * part)) / 2


def _last_spoken_of(epoch: int, rule: RateRule) -> int | None:
    """The last epoch up to this one of which warm-up or an entry speaks."""
    found = [min(epoch, rule.warmup_epochs - 1)] if rule.warmup_epochs else []
    for entry in rule.decay:
        if entry.start_epoch <= epoch:
            last = epoch if entry.end_epoch is None else entry.end_epoch - 1
            found.append(min(epoch, last))
    return max(found, default=None)


def _covers(entry: Decay, epoch: int) -> bool:
    return entry.start_epoch <= epoch and (entry.end_epoch is None or epoch < entry.end_epoch)


def _check_counts(batch: int, steps: int, workers: int) -> None:
    least = {"batch": (batch, 0), "steps_per_epoch": (steps, 1), "workers": (workers, 1)}
    for name, (value, bound) in least.items():
        if value < bound:
            raise UsageError(f"`{name} >= {bound}` must hold, but got {name}={value}.")


def make_rule(
    *,
    lr_scaling: object = Scaling.LINEAR,
    lr_warmup_epochs: object = 0,
    lr_schedule: object = None,
    momentum_correction: object = True,
    n_epochs: int,
) -> RateRule:
    """The rule that a recipe's keys of these names describe; UsageError where they are wrong.

    >>> make_rule(lr_schedule=[{"start_epoch": 30, "multiplier": 0.1}], n_epochs=90).decay
    (Decay(start_epoch=30, end_epoch=None, multiplier=0.1),)
    """
    if not isinstance(lr_scaling, str) or lr_scaling not in list(Scaling):
        raise UsageError(
            f"lr_scaling must be one of {', '.join(Scaling)}, but got {lr_scaling!r:.100}."
        )
    if not isinstance(momentum_correction, bool):
        raise UsageError(
            f"momentum_correction must be true or false, but got {momentum_correction!r:.100}."
        )
    warmup = _whole("lr_warmup_epochs", lr_warmup_epochs)
    decay: tuple[Decay, ...] = ()
    cosine = None
    if isinstance(lr_schedule, str | Mapping):
        cosine = _parse_cosine(lr_schedule, warmup, n_epochs)
    elif lr_schedule is not None:
        decay = parse_decay(lr_schedule)
    return RateRule(
        scaling=Scaling(lr_scaling),
        warmup_epochs=warmup,
        decay=decay,
        cosine=cosine,
        momentum_correction=momentum_correction,
    )


def parse_decay(entries: object) -> tuple[Decay, ...]:
    """Decay entries as they are written; an error begins with the number of the bad one.

    >>> parse_decay([{"start_epoch": 5, "end_epoch": 5, "multiplier": 1}])
    Traceback (most recent call last):
    cerebro.errors.UsageError: lr_schedule[0]: `end_epoch > start_epoch` must hold, but got \
start_epoch=5 and end_epoch=5.
    """
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise UsageError(
            "lr_schedule must be a list of entries {start_epoch, end_epoch, multiplier}, or "
            f"cosine, but got {entries!r:.100}."
        )
    found = []
    for number, entry in enumerate(entries):
        try:
            found.append(_parse_entry(entry))
        except UsageError as error:
            raise UsageError(f"lr_schedule[{number}]: {error}") from None
    return tuple(found)


def _parse_entry(entry: object) -> Decay:
    if not isinstance(entry, Mapping):
        raise UsageError(
            f"an entry is a mapping of {', '.join(_ENTRY_KEYS)}, but got {entry!r:.100}."
        )
    _check_keys(entry, _ENTRY_KEYS, required=("start_epoch", "multiplier"))
    start = _whole("start_epoch", entry["start_epoch"])
    end = entry.get("end_epoch")
    last = None if end is None else _whole("end_epoch", end)
    if last is not None and last <= start:
        raise UsageError(
            f"`end_epoch > start_epoch` must hold, but got start_epoch={start} and "
            f"end_epoch={last}."
        )
    return Decay(start, last, _real("multiplier", entry["multiplier"]))


def _parse_cosine(value: str | Mapping[str, object], warmup: int, n_epochs: int) -> Cosine:
    options = {"name": value} if isinstance(value, str) else value
    _check_keys(options, _COSINE_KEYS, required=("name",))
    if options["name"] != "cosine":
        raise UsageError(f"unknown lr_schedule {options['name']!r:.100}. Known: cosine, or a list.")
    end = _real("end_epoch", options.get("end_epoch", n_epochs))
    if end <= warmup:
        raise UsageError(
            "a cosine begins at the end of the warm-up: `end_epoch > lr_warmup_epochs` must hold, "
            f"but got end_epoch={end:g} and lr_warmup_epochs={warmup}."
        )
    floor = _real("floor", options.get("floor", 0.0))
    if floor > 1:
        raise UsageError(
            f"floor is a share of the rate, `0 <= floor <= 1`, but got floor={floor:g}."
        )
    return Cosine(end, floor)


def _check_keys(
    entry: Mapping[str, object], known: Sequence[str], *, required: Sequence[str]
) -> None:
    for key in entry:
        if key not in known:
            raise UsageError(f"unknown key {key!r:.100}. Known: {', '.join(known)}.")
    for key in required:
        if key not in entry:
            raise UsageError(f"the key {key!r} is missing.")


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"{name} must be a whole number of at least 0, but got {value!r:.100}.")
    return value


def _real(name: str, value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (0 <= value < math.inf):  # type: ignore[operator]
        raise UsageError(f"{name} must be a number of at least 0, but got {value!r:.100}.")
    return float(value)  # type: ignore[arg-type]
