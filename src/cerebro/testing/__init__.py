"""Contract suites and faults for testing what is built on Cerebro."""
