"""What a run tells the world: records, and the trackers that turn them into files and tables."""
