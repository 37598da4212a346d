"""Raw rows, specs and a way to prepare them, for tests of the ETL."""

from __future__ import annotations

import pyarrow as pa

from cerebro.backend import InlineBackend
from cerebro.data.etl.raw import Raw
from cerebro.data.etl.staging import FILE, LINE
from cerebro.data.sources.bad_rows import Policy
from cerebro.etl_spec import ETLSpec
from cerebro.run.etl import EtlSettings, run_etl
from cerebro.storage import DirectoryStore
from cerebro.types import Split


class Doubled(ETLSpec):
    """x is twice the value of a row, y its parity; rows with the value -1 cannot be used."""

    def row_prep(self, row, mode, object_dir):
        if row["value"] == -1:
            raise ValueError(f"no {row['value']}, please")
        return [2.0 * row["value"], 1.0], None if mode == "predict" else row["value"] % 2


class Vectorised(ETLSpec):
    """The same for many rows at once."""

    def batch_prep(self, table, mode, object_dir):
        import numpy as np

        values = table["value"].to_numpy()
        x = np.stack([2.0 * values, np.ones(len(values))], axis=1)
        return x, None if mode == "predict" else values % 2


def raw_of(values, *, file="train.csv", object_dir=None, **columns):
    """Rows with these values; ids count from 100."""
    count = len(values)
    table = pa.table(
        {
            "id": list(range(100, 100 + count)),
            "value": list(values),
            **columns,
            FILE: [file] * count,
            LINE: list(range(2, 2 + count)),
        }
    )
    return Raw(table=table, object_dir=object_dir, source=file)


def prepare(
    path, raw, spec=None, *, backend=None, workers=1, disk=None, is_fresh=False, **settings
):
    """Prepare rows (of the train split, if they are not by split) with `Doubled`."""
    by_split = raw if isinstance(raw, dict) else {Split.TRAIN: raw}
    settings.setdefault("shards", 2)
    if "policy" in settings:
        settings["policy"] = Policy(settings["policy"])
    return run_etl(
        lambda: by_split,
        Doubled() if spec is None else spec,
        EtlSettings(**settings),
        store=DirectoryStore(path, disk),
        backend=backend or InlineBackend(),
        workers=workers,
        is_fresh=is_fresh,
    )


def content(path):
    """Every file of a dataset by name."""
    return {file.name: file.read_bytes() for file in path.iterdir() if file.suffix == ".arrow"}


def rows_of(dataset, split):
    """(id, x, y) of all rows, in order."""
    found = []
    for number in range(len(dataset.shards(split))):
        columns = dataset.open_shard(split, number).columns
        labels = columns["y"].tolist() if "y" in columns else [None] * len(columns["id"])
        found += zip(columns["id"].tolist(), columns["x"][:, 0].tolist(), labels, strict=True)
    return found
