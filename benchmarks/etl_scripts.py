"""What people write by hand, and the two loops that bound it: sides of the ETL benchmark."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.etl_pictures import decode, listed, tally_pictures
from benchmarks.etl_side import Told, Work, digests_in, sealed, written
from benchmarks.etl_tally import COLUMNS, tally_columns


def bare(work: Work) -> Told:
    """Decode every other picture, and nothing else."""
    pictures = listed(work)[work["first"] :: 2]
    out = np.empty((len(pictures), *work["shape"]), np.uint8)
    yield {}
    for number, (path, _) in enumerate(pictures):
        out[number, 0] = decode(path)
    yield {}
    yield tally_pictures([(out, [label for _, label in pictures])])


def pandas_pictures(work: Work) -> Told:
    """One loop in one process."""
    import pandas as pd

    yield {}
    table = pd.read_csv(work["csv"]).sample(frac=1, random_state=1)

    def write(rows: slice, path: str) -> None:
        part = table.iloc[rows]
        x = np.empty((len(part), *work["shape"]), np.uint8)
        for number, name in enumerate(part["path"]):
            x[number, 0] = decode(f"{work['folder']}/{name}")
        with open(path, "wb") as file:
            for values in (x, part["label"].to_numpy(), part["id"].to_numpy()):
                np.save(file, values)

    yield {"digests": written(work, len(table), ".npy", write)}
    yield tally_pictures(saved_pictures(work))


def saved_pictures(work: Work) -> Any:
    for path in digests_in(work["out"], ".npy"):
        with open(path, "rb") as file:
            yield np.load(file), np.load(file)


class Pictures:
    """A map-style dataset, as the DataLoader wants it."""

    def __init__(self, work: Work) -> None:
        self._pictures = listed(work)

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int, int]:
        path, label = self._pictures[index]
        return decode(path)[None], label, index


def loader_pictures(work: Work) -> Told:
    """torch's DataLoader with two workers; a shard is written whenever there are enough rows."""
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    yield {}
    loader: Any = DataLoader(Pictures(work), 256, shuffle=True, num_workers=2)  # type: ignore[arg-type]
    digests: dict[str, str] = {}
    size = -(-len(loader.dataset) // work["shards"])
    held: list[list[np.ndarray]] = [[], [], []]

    def write() -> None:
        path = f"{work['out']}/{len(digests)}.npy"
        with open(path, "wb") as file:
            for number, values in enumerate(held):
                whole = np.concatenate(values)
                np.save(file, whole[:size])
                held[number] = [whole[size:]]
        digests[path] = sealed(path)

    for batch in loader:
        for values, tensor in zip(held, batch, strict=True):
            values.append(tensor.numpy())
        while sum(map(len, held[0])) >= size:
            write()
    if sum(map(len, held[0])):
        write()
    yield {"digests": digests}
    yield tally_pictures(saved_pictures(work))


def pandas_table(work: Work) -> Told:
    import pandas as pd

    names = ["id", *COLUMNS, "label"]
    yield {}
    table = pd.read_csv(work["csv"]).sample(frac=1, random_state=1)

    def write(rows: slice, path: str) -> None:
        part = table.iloc[rows]
        with open(path, "wb") as file:
            # Each column with its own type: one array of all would make ids fractions.
            for name in names:
                np.save(file, part[name].to_numpy())

    yield {"digests": written(work, len(table), ".npy", write)}
    yield tally_columns(saved_columns(path, names) for path in digests_in(work["out"], ".npy"))


def saved_columns(path: str, names: list[str]) -> dict[str, np.ndarray]:
    with open(path, "rb") as file:
        return {name: np.load(file) for name in names}


def pyarrow_table(work: Work) -> Told:
    """By hand and with care: two threads take rows, write and digest."""
    import pyarrow as pa
    import pyarrow.compute
    import pyarrow.csv

    yield {}
    table = pa.csv.read_csv(work["csv"]).combine_chunks()
    order = np.random.default_rng(1).permutation(table.num_rows)

    def write(rows: slice, path: str) -> None:
        part = table.take(pa.array(order[rows]))
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(part)

    yield {"digests": written(work, table.num_rows, ".arrow", write, threads=2)}
    yield tally_columns(
        {name: part[name].to_numpy() for name in part.column_names}
        for part in map(opened, digests_in(work["out"], ".arrow"))
    )


def opened(path: str) -> Any:
    import pyarrow as pa

    return pa.ipc.open_file(path).read_all()
