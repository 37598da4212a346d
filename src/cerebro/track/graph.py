"""The graph of a model: which operation reads what another one gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GraphNode:
    """An operation, a parameter or an input, named by the modules around it.

    >>> GraphNode("Net/fc1/linear", "linear", inputs=("input/x", "Net/fc1/weight"), shape=(8, 10))
    GraphNode(name='Net/fc1/linear', op='linear', inputs=('input/x', ...), shape=(8, 10))
    """

    #: Parts separated by "/": viewers fold them up.
    name: str
    op: str
    #: Names of nodes.
    inputs: tuple[str, ...] = ()
    #: Of what it gives; None where that is no single tensor.
    shape: tuple[int, ...] | None = None
