"""What a goal allows: the devices that a run trains on, and how many machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cerebro.errors import UsageError
from cerebro.search.checks import check_whole
from cerebro.search.wording import show

#: Keys of a goal that are about this; the others say what is to be reached.
KEYS = ("devices", "max_nodes")
_KINDS = ("cpu", "cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What a run may use; None: anything.

    >>> Allowance(max_nodes=3).check_nodes(4, "--nodes")
    Traceback (most recent call last):
    cerebro.errors.UsageError: `nodes <= goal.max_nodes` must hold, but got 4 nodes and \
max_nodes=3. Change --nodes or goal.max_nodes.
    """

    #: "cpu" or "cuda".
    devices: str | None = None
    max_nodes: int | None = None

    def check_device(self, device: str, *, key: str = "device", note: str = "") -> None:
        """Raise UsageError unless the device is allowed.

        Args:
            key: What says which it is.
            note: How that came about.
        """
        kind = device.partition(":")[0]
        # Keras calls it so.
        kind = "cuda" if kind == "gpu" else kind
        if self.devices not in (None, kind):
            raise UsageError(
                f"the goal allows {self.devices} only, but got {device!r}{note}. Change {key} "
                "or goal.devices."
            )

    def check_gpus(self, count: int, key: str) -> None:
        """Raise UsageError where GPUs are asked for, by `key`, and none is allowed."""
        if count and self.devices == "cpu":
            raise UsageError(
                f"the goal allows cpu only, but got {key}={count}. Leave {key} out, or change "
                "goal.devices."
            )

    def check_nodes(self, nodes: int, key: str = "the number of machines") -> None:
        """Raise UsageError where there are more machines; `key` is what says how many."""
        if self.max_nodes is not None and nodes > self.max_nodes:
            raise UsageError(
                f"`nodes <= goal.max_nodes` must hold, but got {nodes} nodes and "
                f"max_nodes={self.max_nodes}. Change {key} or goal.max_nodes."
            )


def allowance_of(goal: object) -> Allowance:
    """What a goal allows, as a user writes it; UsageError where a key has a wrong value.

    >>> allowance_of({"target": 0.9, "devices": "cpu"})
    Allowance(devices='cpu', max_nodes=None)
    """
    if not isinstance(goal, Mapping):
        # There is none, or it is refused as such.
        return Allowance()
    devices, most = goal.get("devices"), goal.get("max_nodes")
    if devices is not None and devices not in _KINDS:
        raise UsageError(
            f"`devices` of a goal must be {' or '.join(_KINDS)}, but got devices={show(devices)}."
        )
    if most is not None:
        check_whole("max_nodes", most, 1)
    return Allowance(devices=devices, max_nodes=most)
