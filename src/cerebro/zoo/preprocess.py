"""How a recipe says what becomes of pictures; PyTorch is not needed to check it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cerebro.errors import UsageError

#: What `data.preprocess` may name.
PREPROCESSES = ("unit", "resnet50")


def check_preprocess(preprocess: object) -> None:
    """Raise UsageError unless `as_floats` can carry it out.

    >>> check_preprocess({"mean": [0.5], "std": [0.0]})
    Traceback (most recent call last):
    cerebro.errors.UsageError: preprocess must be unit, resnet50, or {mean: [...], std: [...]} \
with as many numbers in both, those of std above 0, but got {'mean': [0.5], 'std': [0.0]}.
    """
    if not isinstance(preprocess, str) or preprocess not in PREPROCESSES:
        parse_standard(preprocess)


def parse_standard(preprocess: object) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and standard deviation of each channel, checked.

    >>> parse_standard({"mean": [0.5], "std": [0.25]})
    ([0.5], [0.25])
    """
    if isinstance(preprocess, Mapping) and preprocess.keys() == {"mean", "std"}:
        mean, std = preprocess["mean"], preprocess["std"]
        if _are_numbers(mean) and _are_numbers(std) and len(mean) == len(std) and min(std) > 0:
            return mean, std
    raise UsageError(
        f"preprocess must be {', '.join(PREPROCESSES)}, or {{mean: [...], std: [...]}} with as "
        f"many numbers in both, those of std above 0, but got {preprocess!r:.100}."
    )


def _are_numbers(values: object) -> bool:
    return (
        isinstance(values, list | tuple)
        and bool(values)
        and all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)
    )
