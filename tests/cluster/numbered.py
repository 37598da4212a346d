"""Workers that say which device they were opened for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NumberedRunner:
    """What a worker has opened: nothing but its number."""

    number: int
    device: str = "gpu"

    def versions(self) -> dict[str, str]:
        return {}

    def describe(self) -> tuple[str, str]:
        return "numbered", ""

    def free(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing was changed."""


@dataclass(frozen=True)
class NumberedOpening:
    task: object = None
    threads: int = 1

    def open(self, worker: int) -> NumberedRunner:
        return NumberedRunner(worker)


@dataclass(frozen=True)
class TellNumber:
    """A job: the number of the device."""

    def run(self, runner: NumberedRunner) -> int:
        return runner.number
