"""Where workers live: in this process, in processes on this machine, or on a Spark cluster."""

from cerebro.backend.base import Backend
from cerebro.backend.inline import InlineBackend
from cerebro.backend.local import LocalBackend
from cerebro.backend.spark.backend import SparkBackend

__all__ = ["Backend", "InlineBackend", "LocalBackend", "SparkBackend"]
