"""`cerebro bench`: the same training under different settings, measured and compared."""
