"""The dataset that comes with the package."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from cerebro.data import digits


def test_digits_are_the_5620_pictures_of_the_uci_repository():
    data = digits()
    assert data["x"].shape == (5620, 64)
    assert data["x"].dtype == np.float32
    assert (data["x"].min(), data["x"].max()) == (0.0, 1.0)
    assert data["y"].dtype == np.int64
    # Rows per class of training and test part together, as the repository states them.
    assert np.bincount(data["y"]).tolist() == [554, 571, 557, 572, 568, 558, 558, 566, 554, 562]


def test_digits_can_be_told_apart():
    x, y = digits()["x"], digits()["y"]
    centres = np.stack([x[:4000][y[:4000] == label].mean(0) for label in range(10)])
    nearest = ((x[4000:, None] - centres) ** 2).sum(2).argmin(1)
    assert (nearest == y[4000:]).mean() > 0.85


def test_importing_the_data_package_loads_no_framework_and_no_parquet():
    heavy = ["torch", "pandas", "pyarrow.parquet"]
    code = f"import sys, cerebro.data; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
