"""Where workers live: in this process, in processes on this machine, on Ray or on Spark."""

from cerebro.backend.base import Backend
from cerebro.backend.inline import InlineBackend
from cerebro.backend.local import LocalBackend
from cerebro.backend.ray.backend import RayBackend
from cerebro.backend.spark.backend import SparkBackend

__all__ = ["Backend", "InlineBackend", "LocalBackend", "RayBackend", "SparkBackend"]
