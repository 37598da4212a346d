"""Frameworks that claim to be elsewhere, or of another version."""

from __future__ import annotations

from typing import ClassVar

from cerebro.testing.toy import ToyFramework, ToyTask


class Versioned(ToyFramework):
    """Says that it is of its task's version."""

    def versions(self) -> dict[str, str]:
        return {"toy": self.task.version}  # type: ignore[attr-defined]


class VersionedTask(ToyTask):
    framework: ClassVar[str] = "tests.unit.run.frameworks:Versioned"

    def __init__(self, version: str) -> None:
        super().__init__()
        self.version = version


class OnDevice(ToyFramework):
    """Says that each worker has a device of its own."""

    def __init__(self, task: ToyTask, **settings: object) -> None:
        super().__init__(task)
        self.device = "cuda"


class OnDeviceTask(ToyTask):
    framework: ClassVar[str] = "tests.unit.run.frameworks:OnDevice"
