"""Contract suites, faults, a toy framework and a checker of runs, to test with."""
