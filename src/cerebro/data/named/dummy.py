"""Random numbers in the shape of a data set, to see whether everything runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cerebro.data.named.kinds import Found, Loaded, Options, Rows, Scratch
from cerebro.data.order import generator
from cerebro.types import Json

ROWS = 1024
OPTIONS: Mapping[str, Json] = {
    "input_shape": [64, 64, 3],
    "target_shape": [],
    "n_train": ROWS,
    "n_valid": ROWS,
}


def load(found: Found, options: Options, scratch: Scratch) -> Loaded:
    """Inputs and targets, float32, drawn from the normal distribution."""
    return Loaded(
        _rows("train", options.n_train or ROWS, options),
        _rows("valid", options.n_valid or ROWS, options),
    )


def _rows(split: str, rows: int, options: Options) -> Rows:
    height, width, channels = options.shape("input_shape", 3)
    draw = generator(options.seed, f"dummy {split}")
    x = draw.standard_normal((rows, channels, height, width), np.float32)
    return Rows(x, draw.standard_normal((rows, *options.shape("target_shape")), np.float32))
