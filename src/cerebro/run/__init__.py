"""The driver of a run: events to journal to plan to workers."""
