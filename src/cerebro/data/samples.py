"""A small real dataset that comes with the package."""

from __future__ import annotations

from importlib import resources

import numpy as np

from cerebro.data.columns import Array


def digits() -> dict[str, Array]:
    """5,620 handwritten digits: `x` float32 (5620, 64) in 0..1 and `y` int64 in 0..9.

    Each row of `x` is an 8 x 8 picture whose pixels count the ink in a 4 x 4 block (0..16, here
    divided by 16). It is the "Optical Recognition of Handwritten Digits" data set by E. Alpaydin
    and C. Kaynak from the UCI Machine Learning Repository, https://doi.org/10.24432/C50P49,
    licensed CC BY 4.0; see `digits.LICENSE.txt` beside this file.

    >>> data = digits()
    >>> data["x"].shape, data["y"][:6].tolist()
    ((5620, 64), [0, 0, 7, 4, 6, 2])
    """
    file = resources.files("cerebro.data") / "digits.npz"
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        pictures, labels = arrays["x"], arrays["y"]
    x = pictures.reshape(len(pictures), -1).astype(np.float32) / np.float32(16)
    return {"x": x, "y": labels.astype(np.int64)}
