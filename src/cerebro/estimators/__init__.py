"""Estimators, the search classes that train them, and what these give back.

Users import them from `cerebro.keras`, `cerebro.torch` and `cerebro.tune`.
"""
