"""Keras 3, on any of its backends, behind the `Framework` seam.

`compiled` and `task` are what users and estimators write with; `framework` trains it and is the
only part, with what it is made of, that imports Keras.
"""

from cerebro.train.keras.backend import choose_backend

# Keras looks once, when it is imported: before this package's modules do, and before a task that
# arrives on a worker does.
choose_backend()
