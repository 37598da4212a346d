"""Where workers live: in this process or in processes on this machine."""

from cerebro.backend.base import Backend
from cerebro.backend.inline import InlineBackend
from cerebro.backend.local import LocalBackend

__all__ = ["Backend", "InlineBackend", "LocalBackend"]
