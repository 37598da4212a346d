"""Whoever imports this, as workers do, knows `bucket://` URLs."""

from __future__ import annotations

from cerebro.testing import bucket
from cerebro.testing.toy import ToyTask

bucket.register()


class BucketTask(ToyTask):
    """A task whose workers can open a store of the bucket."""
