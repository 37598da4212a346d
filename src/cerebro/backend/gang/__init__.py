"""Gangs as workers: a leader, its followers, and how those of other machines find it."""
