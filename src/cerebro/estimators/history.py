"""How training went, in the form that users of estimators know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, overload

from cerebro.types import Metrics

#: Metric -> its value in each epoch.
History: TypeAlias = dict[str, list[float]]


class Histories(dict[str, History]):
    """The histories of all models: by run id, or by number in the order of the models.

    >>> histories = Histories({"t0000": {"val_loss": [0.5]}, "t0001": {"val_loss": [0.4]}})
    >>> histories["t0001"] == histories[1] == histories[-1]
    True
    """

    @overload
    def __getitem__(self, key: str, /) -> History: ...

    @overload
    def __getitem__(self, key: int, /) -> History: ...

    def __getitem__(self, key: str | int, /) -> History:
        return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)


def history_of(epochs: Sequence[Mapping[str, float] | Metrics]) -> History:
    """Metrics by epoch as lists by metric, those of training first, and the loss before others.

    >>> history_of([{"epoch": 0, "val_loss": 1.0, "train_loss": 2.0}, {"val_loss": 0.5}])
    {'train_loss': [2.0], 'val_loss': [1.0, 0.5]}
    """
    found = dict.fromkeys(name for epoch in epochs for name in epoch if name != "epoch")
    names = sorted(found, key=lambda n: (n.startswith("val_"), not n.endswith("_loss"), n))
    return {name: [epoch[name] for epoch in epochs if name in epoch] for name in names}
