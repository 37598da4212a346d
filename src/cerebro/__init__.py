"""Cerebro: model selection by hopping. Cut the data once, let the models travel.

>>> import cerebro
>>> cerebro.tune.choice([1, 2])
Choice(values=(1, 2))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from cerebro.etl_spec import ETLSpec
from cerebro.spec import MiniBatchSpec
from cerebro.task import Task
from cerebro.version import __version__

if TYPE_CHECKING:
    from cerebro import data, errors, tune, zoo
    from cerebro.experiment import Experiment
    from cerebro.results import Result
    from cerebro.steering import Steering

__all__ = [
    "ETLSpec",
    "Experiment",
    "MiniBatchSpec",
    "Result",
    "Steering",
    "Task",
    "__version__",
    "data",
    "errors",
    "tune",
    "zoo",
]

#: Loaded at first use, so that `import cerebro` stays light: name -> module and, if any, class.
_LAZY = {
    "Experiment": ("cerebro.experiment", "Experiment"),
    "Result": ("cerebro.results", "Result"),
    "Steering": ("cerebro.steering", "Steering"),
    "data": ("cerebro.data", None),
    "errors": ("cerebro.errors", None),
    "tune": ("cerebro.tune", None),
    "zoo": ("cerebro.zoo", None),
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'cerebro' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    found = importlib.import_module(module)
    return found if attribute is None else getattr(found, attribute)


def __dir__() -> list[str]:
    return __all__
