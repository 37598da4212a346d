"""Search spaces and the samplers that propose params from them."""

from __future__ import annotations

from cerebro.search.domain import (
    Choice,
    Constant,
    Domain,
    Grid,
    LogUniform,
    QLogUniform,
    QUniform,
    RandInt,
    Uniform,
)
from cerebro.search.sampler import (
    GridSampler,
    RandomSampler,
    Sampler,
    describe_search,
    make_sampler,
)
from cerebro.search.sobol import SobolSampler
from cerebro.search.space import Space, parse_space
from cerebro.search.warm import WarmSampler

__all__ = [
    "Choice",
    "Constant",
    "Domain",
    "Grid",
    "GridSampler",
    "LogUniform",
    "QLogUniform",
    "QUniform",
    "RandInt",
    "RandomSampler",
    "Sampler",
    "SobolSampler",
    "Space",
    "Uniform",
    "WarmSampler",
    "describe_search",
    "make_sampler",
    "parse_space",
]
