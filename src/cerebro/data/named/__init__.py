"""Data sets known by name: found on this machine, prepared once, fetched when asked for.

>>> from cerebro.data import named
>>> sorted(named.DATASETS)
['cifar10', 'dummy', 'fashion-mnist', 'imagenet', 'mnist', 'svhn']
>>> named.lookup("cifar10").input_shape, named.lookup("cifar10").n_classes
((32, 32, 3), 10)
"""

from __future__ import annotations

from cerebro.data.named.catalogue import DATASETS, lookup
from cerebro.data.named.kinds import NamedData
from cerebro.data.named.preparing import prepare

__all__ = ["DATASETS", "NamedData", "lookup", "prepare"]
