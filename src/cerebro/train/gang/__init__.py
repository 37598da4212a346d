"""Several workers on one visit: batches in parts, gradients averaged, replicas compared."""
