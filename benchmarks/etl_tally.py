"""What must be the same of a table on all sides of the ETL benchmark; NumPy only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

#: Columns of the tables: numbers with six decimals.
COLUMNS = [f"f{number:02d}" for number in range(20)]
DECIMALS = 6


def tally_columns(tables: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows and sums of shards of a table, exact whatever the order; it must not be that of ids."""
    rows, is_shuffled = 0, False
    sums = dict.fromkeys([*COLUMNS, "id", "label", "squares"], 0)
    for table in tables:
        ids = np.asarray(table["id"]).astype(np.int64)
        rows += len(ids)
        is_shuffled = is_shuffled or bool((np.diff(ids) < 0).any())
        for name in COLUMNS:
            sums[name] += int(
                np.rint(np.asarray(table[name]) * 10**DECIMALS).astype(np.int64).sum()
            )
        sums["id"] += int(ids.sum())
        # With equal sums and squares of ids no row came twice in place of another.
        sums["squares"] += int((ids * ids).sum())
        sums["label"] += int(np.asarray(table["label"]).astype(np.int64).sum())
    return {"rows": rows, "sums": sums, "is_shuffled": is_shuffled}
