"""What models are told: the shape of pictures, the number of classes, and options of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cerebro.errors import UsageError

STEMS = ("cifar", "imagenet")


class Picture(NamedTuple):
    """The shape of one picture, in the order in which people write it."""

    height: int
    width: int
    channels: int


def as_picture(input_shape: Sequence[int], *, at_least: int = 1) -> Picture:
    """The shape that `input_shape` says, as (height, width, channels).

    >>> as_picture([32, 32, 3])
    Picture(height=32, width=32, channels=3)
    """
    is_sequence = isinstance(input_shape, Sequence) and not isinstance(input_shape, str)
    if not is_sequence or len(input_shape) != 3 or not all(map(_is_count, input_shape)):
        raise UsageError(
            "input_shape must be (height, width, channels), three whole numbers >= 1, but is "
            f"{input_shape!r}. For CIFAR-10 it is (32, 32, 3), for MNIST (28, 28, 1)."
        )
    picture = Picture(*input_shape)
    if min(picture.height, picture.width) < at_least:
        raise UsageError(
            f"pictures must be at least {at_least} x {at_least} for this model, but input_shape "
            f"says {picture.height} x {picture.width}."
        )
    return picture


def check_classes(n_classes: int) -> int:
    """The number of logits for each picture; 1 is for targets that are yes or no.

    >>> check_classes(0)
    Traceback (most recent call last):
    cerebro.errors.UsageError: `n_classes >= 1` must hold, but got n_classes=0.
    """
    if not _is_count(n_classes):
        raise UsageError(f"`n_classes >= 1` must hold, but got n_classes={n_classes!r}.")
    return n_classes


def check_fraction(name: str, value: float) -> float:
    """A number from 0 up to, but not, 1.

    >>> check_fraction("dropout", 0.1)
    0.1
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise UsageError(f"`0 <= {name} < 1` must hold, but got {name}={value!r}.")
    return float(value)


def check_stem(name: str, value: str) -> str:
    """One of the two that there are."""
    if value not in STEMS:
        raise UsageError(f"unknown {name} {value!r}. Known stems: {', '.join(STEMS)}.")
    return value


#: Model -> its options, as its function has them, and what raises UsageError at a wrong value.
OPTIONS: Mapping[str, Mapping[str, Callable[[str, Any], object]]] = {
    "cnn": {"dropout": check_fraction},
    "mlp6": {},
    "resnet50": {"stem": check_stem, "l2_reg": check_fraction, "bn_mom": check_fraction},
    "resnet_small": {"l2_reg": check_fraction, "bn_mom": check_fraction},
}


def check_options(model: str, options: Mapping[str, object]) -> None:
    """Raise UsageError unless this model takes them; PyTorch is not needed for it.

    >>> check_options("cnn", {"dropout": 2})
    Traceback (most recent call last):
    cerebro.errors.UsageError: `0 <= dropout < 1` must hold, but got dropout=2.
    """
    known = OPTIONS[model]
    for option, value in options.items():
        if option not in known:
            has = f"Its options: {', '.join(known)}." if known else "It has none."
            raise UsageError(f"model {model!r} has no option {option!r}. {has}")
        if value is not None:
            known[option](option, value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
