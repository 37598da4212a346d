"""Experiment files: read strictly, check completely, resolve names. Import its modules directly.

Nothing is imported here: resolving a name needs neither PyYAML nor pydantic.
"""
