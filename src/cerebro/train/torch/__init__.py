"""The PyTorch framework: how a Task is trained, evaluated, saved and exported."""
