"""One visit on a worker: the loop, and state to and from named arrays."""
