"""The framework of a MiniBatchSpec: the user owns the step."""
