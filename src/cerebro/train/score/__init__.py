"""Test and predict, inside a worker."""
