"""Ranges: domains between two bounds. And what every domain has.

A draw never leaves its domain and is always a plain Python value, so that params mean the same in
the task, in JSON and after a resume.
"""

from __future__ import annotations

import abc
import math
import random
import sys
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import ClassVar, Self, TypeAlias, TypeGuard

from cerebro.errors import UsageError
from cerebro.search.wording import show
from cerebro.types import Json

Number: TypeAlias = int | float

_LOG_OF_LARGEST = math.log(sys.float_info.max)


class Domain(abc.ABC):
    """The values of one parameter. Two domains with the same bounds are equal."""

    __slots__ = ()
    #: The word for it in YAML, JSON and `cerebro.tune`.
    name: ClassVar[str]

    @abc.abstractmethod
    def sample(self, rng: random.Random) -> Json:
        """Draw a value; the same state of `rng` gives the same value."""

    @abc.abstractmethod
    def at(self, part: float) -> Json:
        """The value so far along the domain, for a part in [0, 1): evenly spread parts, one of
        them for each parameter, give evenly spread values.
        """

    @abc.abstractmethod
    def has(self, value: Json) -> bool:
        """Whether it is a value of this domain."""

    @abc.abstractmethod
    def arguments(self) -> Json:
        """What makes this domain again through `from_arguments`."""

    @classmethod
    @abc.abstractmethod
    def from_arguments(cls, arguments: Json) -> Self:
        """Build from what stands after the domain's name in YAML and JSON."""

    def sample_value(self) -> Json:
        """Draw a value from the system's entropy: independent of every other domain and draw.

        For a draw that repeats, use `sample(random.Random(seed))`.
        """
        return self.sample(random.SystemRandom())

    def num_listed(self) -> int | None:
        """How many values there are, or None where they are not listed one by one."""
        return None

    def nth(self, index: int) -> Json:
        """One of the listed values; only where `num_listed` is a number above `index`."""
        raise IndexError(f"{self.name} lists no values")

    def listed(self) -> tuple[Json, ...] | None:
        """All values in order, or None where they are not listed one by one."""
        count = self.num_listed()
        return None if count is None else tuple(self.nth(index) for index in range(count))

    def to_json(self) -> dict[str, Json]:
        return {self.name: self.arguments()}


@dataclass(frozen=True, slots=True)
class _Range(Domain):
    """From `low` to `high`, both included."""

    low: Number
    high: Number

    def __post_init__(self) -> None:
        for field in fields(self):
            number = check_number(field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, number)
        if not self.low < self.high:
            raise UsageError(
                f"`low < high` must hold, but got low={self.low!r}, high={self.high!r}."
            )

    def has(self, value: Json) -> bool:
        return is_number(value) and self.low <= value <= self.high

    def arguments(self) -> Json:
        return [getattr(self, field.name) for field in fields(self)]

    @classmethod
    def from_arguments(cls, arguments: Json) -> Self:
        names = [field.name for field in fields(cls)]
        if not isinstance(arguments, list) or len(arguments) != len(names):
            raise UsageError(f"{cls.name} needs [{', '.join(names)}], but got {show(arguments)}.")
        return cls(*arguments)  # type: ignore[arg-type]  # __post_init__ checks the types

    def inside(self, value: float) -> float:
        """The value, or the bound it has just passed: rounding may carry it there."""
        return float(min(max(value, self.low), self.high))


@dataclass(frozen=True, slots=True)
class Uniform(_Range):
    """A float from [low, high].

    >>> 0 <= Uniform(0, 1).sample(random.Random(7)) <= 1
    True
    """

    name: ClassVar[str] = "uniform"

    def sample(self, rng: random.Random) -> float:
        return self.at(rng.random())

    def at(self, part: float) -> float:
        return self.inside(_between(self.low, self.high, part))


@dataclass(frozen=True, slots=True)
class LogUniform(_Range):
    """A float from [low, high] whose logarithm is uniform.

    >>> 1e-4 <= LogUniform(1e-4, 1e-1).sample(random.Random(7)) <= 1e-1
    True
    """

    name: ClassVar[str] = "loguniform"

    def __post_init__(self) -> None:
        _Range.__post_init__(self)
        _check_positive(self.low)

    def sample(self, rng: random.Random) -> float:
        return self.at(rng.random())

    def at(self, part: float) -> float:
        exponent = _between(math.log(self.low), math.log(self.high), part)
        return self.inside(math.exp(min(exponent, _LOG_OF_LARGEST)))


@dataclass(frozen=True, slots=True)
class QUniform(_Range):
    """A multiple of `q` inside [low, high], each as likely as the others; an int where `q` is one.

    >>> QUniform(16, 256, 96).multiples()
    (1, 2)
    """

    name: ClassVar[str] = "quniform"
    q: Number

    def __post_init__(self) -> None:
        _Range.__post_init__(self)
        _check_quantum(self.low, self.high, self.q)

    def multiples(self) -> tuple[int, int]:
        """The first and last k for which k * q lies inside the range."""
        quantum = _exact(self.q)
        return math.ceil(_exact(self.low) / quantum), math.floor(_exact(self.high) / quantum)

    def multiple(self, k: int) -> Number:
        """k times q: an int where `q` is one, else the float nearest to it."""
        return k * self.q if isinstance(self.q, int) else float(k * _exact(self.q))

    def multiple_of(self, value: Json) -> int | None:
        """The k whose multiple of q this value is; None where it is none inside the range."""
        if not is_number(value) or not self.low <= value <= self.high:
            return None
        nearest = round(_exact(value) / _exact(self.q))
        first, last = self.multiples()
        # Rounding to a float may have moved it nearer to a neighbour.
        near = (k for k in (nearest, nearest - 1, nearest + 1) if first <= k <= last)
        return next((k for k in near if self.multiple(k) == value), None)

    def has(self, value: Json) -> bool:
        return self.multiple_of(value) is not None

    def sample(self, rng: random.Random) -> Number:
        return self.multiple(rng.randint(*self.multiples()))

    def at(self, part: float) -> Number:
        return self.multiple(integer_at(*self.multiples(), part))


@dataclass(frozen=True, slots=True)
class QLogUniform(QUniform):
    """A multiple of `q` inside [low, high], small ones likelier; an int where `q` is one.

    >>> isinstance(QLogUniform(16, 1024, 16).sample(random.Random(7)), int)
    True
    """

    name: ClassVar[str] = "qloguniform"

    def __post_init__(self) -> None:
        QUniform.__post_init__(self)
        _check_positive(self.low)

    def sample(self, rng: random.Random) -> Number:
        return self.at(rng.random())

    def at(self, part: float) -> Number:
        first, last = self.multiples()
        # Half a step on either side gives the ends the same share of the log scale as the rest.
        exponent = _between(math.log(2 * first - 1), math.log(2 * last + 1), part)
        if exponent >= _LOG_OF_LARGEST:
            return self.multiple(last)
        return self.multiple(min(max(round(math.exp(exponent) / 2), first), last))


@dataclass(frozen=True, slots=True)
class RandInt(_Range):
    """An integer from low to high, both included.

    >>> RandInt(1, 3).sample(random.Random(7)) in (1, 2, 3)
    True
    """

    name: ClassVar[str] = "randint"

    def __post_init__(self) -> None:
        _Range.__post_init__(self)
        for field, bound in (("low", self.low), ("high", self.high)):
            if not isinstance(bound, int):
                raise UsageError(f"`{field}` must be an integer, but got {field}={bound!r}.")

    def sample(self, rng: random.Random) -> int:
        return rng.randint(int(self.low), int(self.high))

    def at(self, part: float) -> int:
        return integer_at(int(self.low), int(self.high), part)

    def has(self, value: Json) -> bool:
        return isinstance(value, int) and _Range.has(self, value)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def plain(value: object) -> Json:
    """The value as JSON would give it back, NumPy scalars unwrapped; UsageError if it cannot.

    >>> plain([1, 2.5, "x", None])
    [1, 2.5, 'x', None]
    """
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    if value is None or type(value) in (bool, int, str):
        return value  # type: ignore[return-value]  # narrowed by exact type
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is list:
        return [plain(item) for item in value]
    if type(value) is dict and all(type(key) is str for key in value):
        return {key: plain(item) for key, item in value.items()}
    raise UsageError(
        f"a parameter's value must be None, a bool, a finite number, a string, or a list or dict "
        f"of these, but got {show(value)} of type {type(value).__name__}. "
        f"Give it a name here and build the object in the task."
    )


def check_number(field: str, value: object) -> Number:
    """Give the number back as a plain one; UsageError if it is none or no float can hold it."""
    number = plain(value)
    if not is_number(number):
        raise UsageError(f"`{field}` must be a number, but got {field}={show(value)}.")
    if abs(number) > sys.float_info.max:
        raise UsageError(f"`{field}` must fit a float, but got {field}={show(value)}.")
    return number


def integer_at(first: int, last: int, part: float) -> int:
    """The integer so far along from first to last, for a part in [0, 1).

    >>> [integer_at(1, 2, part) for part in (0, 0.49, 0.5)]
    [1, 1, 2]
    """
    # Exact where there are more integers than floats in [0, 1).
    return first + math.floor(Fraction(part) * (last - first + 1))


def _between(low: Number, high: Number, part: float) -> float:
    # Not low + (high - low) * part, whose difference may overflow.
    return low * (1 - part) + high * part


def _check_positive(low: Number) -> None:
    if low <= 0:
        raise UsageError(f"`low > 0` must hold on a log scale, but got low={low!r}.")


def _check_quantum(low: Number, high: Number, q: Number) -> None:
    if not 0 < _exact(q) <= _exact(high) - _exact(low):
        raise UsageError(
            f"`0 < q <= high - low` must hold, but got low={low!r}, high={high!r}, q={q!r}."
        )


def _exact(number: Number) -> Fraction:
    # From its shortest decimal form: 0.3 is then exactly three times 0.1.
    return Fraction(repr(number))
