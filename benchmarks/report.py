"""What every benchmark ends with: ratios that take the worse view, checks, one line of JSON."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

Value = float | int | bool | str | None


def arguments(description: str) -> argparse.Namespace:
    """The options all benchmarks share; one that needs no data ignores `--data`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument(
        "--data", type=Path, help="npz with x_train and y_train; default: the digits"
    )
    return parser.parse_args()


def speedup(reference: Sequence[float], ours: Sequence[float]) -> float:
    """How many times faster than the reference, by minimum or median, whichever is less.

    >>> speedup([4.0, 6.0, 5.0], [1.0, 2.0, 2.0])
    2.5
    """
    return min(min(reference) / min(ours), statistics.median(reference) / statistics.median(ours))


def slowdown(ours: Sequence[float], reference: Sequence[float]) -> float:
    """How many times slower than the reference, by minimum or median, whichever is more.

    >>> slowdown([1.0, 2.0, 2.0], [4.0, 6.0, 5.0])
    0.4
    """
    return 1 / speedup(reference, ours)


class Report:
    """Collects keys and gates while lines are printed.

    >>> report = Report()
    >>> report.gate("efficiency", 0.95, at_least=0.96)
    >>> report.finish(as_json=True)
    NOT HELD: efficiency 0.95, must be at least 0.96
    {"efficiency": 0.95, "ok": false}
    1
    """

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self._broken: list[str] = []

    def add(self, key: str, value: Value, digits: int = 3) -> None:
        """Report a value."""
        self.values[key] = round(value, digits) if isinstance(value, float) else value

    def gate(
        self,
        key: str,
        value: float,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        digits: int = 3,
    ) -> None:
        """Report a value that must keep within a bound."""
        self.add(key, value, digits)
        if at_least is not None and value < at_least:
            self._broken.append(f"{key} {value:.4g}, must be at least {at_least}")
        if at_most is not None and value > at_most:
            self._broken.append(f"{key} {value:.4g}, must be at most {at_most}")

    def finish(self, *, as_json: bool) -> int:
        """Print the verdict; the exit code."""
        for line in self._broken:
            print(f"NOT HELD: {line}")
        if not self._broken:
            print("all bounds held")
        self.values["ok"] = not self._broken
        if as_json:
            print(json.dumps(self.values))
        return 1 if self._broken else 0
