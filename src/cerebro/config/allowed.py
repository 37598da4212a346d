"""What a file, or who started this process, asks for beyond what the file's goal allows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from cerebro.backend.gang.machines import count_machines
from cerebro.config.yaml import KeyPath
from cerebro.errors import UsageError
from cerebro.search.allowance import allowance_of


def beyond_goal(
    goal: object, *, device: str, device_key: KeyPath, launch: Mapping[str, object]
) -> Iterator[tuple[KeyPath, str]]:
    """The keys that are to blame, and what is wrong with them.

    Args:
        goal: One whose own values are right.
        device: That of the workers; what "auto" is, only the run knows.
        device_key: What says so in the file.
        launch: The section of the file.

    >>> list(beyond_goal({"max_nodes": 3}, device="cpu", device_key=(), launch={"nodes": 3}))
    []
    """
    allowed = allowance_of(goal)
    nodes = launch.get("nodes")
    try:
        if device != "auto":
            allowed.check_device(device, key=".".join(map(str, device_key)))
    except UsageError as error:
        yield device_key, str(error)
    try:
        # What else it may be is refused by who reads the section.
        if isinstance(nodes, int):
            allowed.check_nodes(nodes, "launch.nodes")
    except UsageError as error:
        yield ("launch", "nodes"), str(error)
    try:
        allowed.check_nodes(count_machines(os.environ))
    except UsageError as error:
        yield ("goal", "max_nodes"), str(error)
