"""Preparing datasets from arrays and torch datasets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

from cerebro.data import from_arrays, from_torch, open_dataset
from cerebro.data.publication import split_rows
from cerebro.errors import DataError, StoreError, UsageError


def rows_of(dataset, split, name="id"):
    shards = [dataset.open_shard(split, n) for n in range(len(dataset.shards(split)))]
    return [shard.columns[name].tolist() for shard in shards]


def flat(lists):
    return [value for values in lists for value in values]


@settings(max_examples=40)
@given(rows=st.integers(1, 80), shards=st.integers(1, 12), seed=st.integers(0, 9))
def test_every_row_is_in_one_shard_and_shards_differ_by_one_row(
    tmp_path_factory, rows, shards, seed
):
    path = tmp_path_factory.mktemp("data")
    train = {"id": np.arange(rows)}
    if rows < shards:
        with pytest.raises(DataError, match=f"{rows} training rows for shards={shards}"):
            from_arrays(path, train, shards=shards, seed=seed)
        return
    found = rows_of(from_arrays(path, train, shards=shards, seed=seed), "train")
    assert sorted(flat(found)) == list(range(rows))
    assert len(found) == shards
    assert max(map(len, found)) - min(map(len, found)) <= 1


@given(rows=st.integers(0, 10_000), parts=st.integers(1, 1000))
def test_parts_cover_all_rows_and_differ_by_one(rows, parts):
    slices = split_rows(rows, parts)
    assert [s.start for s in slices[1:]] == [s.stop for s in slices[:-1]]
    assert (slices[0].start, slices[-1].stop, len(slices)) == (0, rows, parts)
    sizes = [s.stop - s.start for s in slices]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=20)
@given(rows=st.integers(5, 80), fraction=st.floats(0.2, 0.8))
def test_a_validation_fraction_is_taken_out_of_train(tmp_path_factory, rows, fraction):
    path = tmp_path_factory.mktemp("data")
    data = from_arrays(path, {"id": np.arange(rows)}, shards=1, validation=fraction)
    train, val = (flat(rows_of(data, split)) for split in ("train", "val"))
    assert len(val) == round(rows * fraction)
    assert sorted(train + val) == list(range(rows))


def test_rows_of_all_columns_stay_together(tmp_path):
    numbers = np.arange(50)
    columns = {"id": numbers, "x": np.stack([numbers, -numbers], 1), "t": [str(n) for n in numbers]}
    shard = from_arrays(tmp_path, columns, shards=3).open_shard("train", 1)
    for row, number in enumerate(shard.columns["id"]):
        assert shard.columns["x"][row].tolist() == [number, -number]
        assert shard.columns["t"][row] == str(number)


def test_other_splits_get_shards_of_about_the_same_size(tmp_path):
    data = from_arrays(
        tmp_path,
        {"id": np.arange(40)},
        val={"id": np.arange(21)},
        test={"id": np.arange(5)},
        shards=4,
    )
    sizes = {split: [info.rows for info in data.shards(split)] for split in data.splits}
    assert sizes == {"train": [10] * 4, "val": [7, 7, 7], "test": [5]}
    assert sorted(flat(rows_of(data, "val"))) == list(range(21))


def test_the_same_call_gives_the_same_digest_and_another_seed_another(tmp_path):
    train = {"id": np.arange(30)}
    digests = [
        from_arrays(tmp_path / name, train, shards=3, seed=seed).digest
        for name, seed in [("a", 1), ("b", 1), ("c", 2)]
    ]
    assert digests[0] == digests[1] != digests[2]


def test_writing_again_replaces_the_dataset_and_removes_its_files(tmp_path):
    from_arrays(tmp_path, {"id": np.arange(30)}, shards=3)
    (tmp_path / "mine.txt").write_text("not yours")
    data = from_arrays(tmp_path, {"id": np.arange(100, 110)}, shards=1)
    assert flat(rows_of(open_dataset(tmp_path), "train")) == flat(rows_of(data, "train"))
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ["dataset.json", "mine.txt", data.shards("train")[0].file]
    )


BAD_CALLS = [
    ({"shards": 0}, "shards >= 1"),
    ({"shards": -1}, "shards >= 1"),
    ({"shards": 2.0}, "`shards` must be an integer, but got shards=2.0"),
    ({"shards": 11}, "10 training rows for shards=11"),
    ({"shards": 9, "validation": 0.2}, "8 training rows for shards=9"),
    ({"shards": 1, "validation": 0}, "0 < validation < 1"),
    ({"shards": 1, "validation": 1.0}, "0 < validation < 1"),
    ({"shards": 1, "validation": 0.01}, "no row for validation"),
    ({"shards": 1, "validation": 0.99}, "no row for training"),
    ({"shards": 1, "validation": 0.5, "val": {"id": np.arange(3)}}, "not both"),
    ({"shards": 1, "val": {"id": np.arange(3.0)}}, "int64 in train and float64 in val"),
    ({"shards": 1, "val": {"other": np.arange(3)}}, "only train has 'id'"),
    ({"shards": 1, "test": {"id": np.arange(3), "b": np.arange(3)}}, "only test has 'b'"),
    ({"shards": 1, "test": {"id": []}}, "at least one row"),
    ({"shards": 1, "seed": -1}, "seed"),
    ({"shards": 1, "seed": None}, "`seed` must be an integer, but got seed=None"),
    ({"shards": 1, "seed": 1.5}, "`seed` must be an integer"),
    ({"shards": 1, "validation": "0.2"}, "0 < validation < 1.*'0.2'"),
    ({"shards": 1, "validation": True}, "0 < validation < 1"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_CALLS)
def test_a_bad_call_changes_nothing_on_disk(tmp_path, arguments, message):
    with pytest.raises((DataError, UsageError), match=message):
        from_arrays(tmp_path / "data", {"id": np.arange(10)}, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("keep")
    with pytest.raises(UsageError, match="is a file"):
        from_arrays(tmp_path / "file", {"id": np.arange(10)}, shards=1)
    assert (tmp_path / "file").read_text() == "keep"


def test_a_directory_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("keep")
    with pytest.raises(StoreError, match=r"cannot make .*/file/data: Not a directory"):
        from_arrays(tmp_path / "file" / "data", {"id": np.arange(10)}, shards=1)


class Items(TorchDataset):
    """A map-style dataset of the items given."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        item = self.items[index]
        if isinstance(item, Exception):
            raise item
        return item


def test_a_torch_dataset_of_tuples_is_stored_by_the_names_given(tmp_path):
    source = TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10))
    shard = from_torch(tmp_path, source, shards=1).open_shard("train", 0)
    assert shard.columns["x"].dtype == np.float32
    for x, y in zip(shard.columns["x"], shard.columns["y"], strict=True):
        assert x.tolist() == [2 * y, 2 * y + 1]


def test_a_torch_dataset_of_dicts_is_stored_by_its_keys(tmp_path):
    items = [{"n": n, "f": n / 2, "b": n > 1, "t": str(n), "raw": bytes([n])} for n in range(4)]
    data = from_torch(tmp_path, Items(items), shards=1)
    kinds = {name: str(column) for name, column in data.schema.items()}
    assert kinds == {"n": "int64", "f": "float64", "b": "bool", "t": "text", "raw": "bytes"}
    columns = data.open_shard("train", 0).columns
    assert [columns["t"][row] for row in range(4)] == [str(n) for n in columns["n"]]


def test_single_values_and_validation_splits_work_too(tmp_path):
    source = [torch.tensor([1.0, 2.0])] * 6
    data = from_torch(tmp_path, source, val=source[:2], columns=["x"], shards=2)
    assert (data.rows("train"), data.rows("val")) == (6, 2)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "at least one row"),
        ([(1, 2, 3)], "has 3. Pass columns"),
        ([(torch.zeros(2), 1), (torch.zeros(3), 1)], "shape .* in item 1"),
        ([(1, 1), (1.5, 1)], "dtype int64 at first and float64 in item 1"),
        ([("a", 1), (2, 1)], "text at first"),
        ([(1, 1), ("a", 1)], "holds numbers, but in item 1"),
        ([("a", 1), (b"b", 1)], "in item 1 it is bytes"),
        ([(object(), 1)], "dtype object"),
        ([{"x": 1}, {"y": 1}], "same columns"),
        ([(1, 1), RuntimeError("broken file")], "item 1 of train could not be read: .*broken file"),
        ([(torch.zeros(1, dtype=torch.bfloat16), 1)], "cannot be stored"),
    ],
)
def test_items_that_do_not_fit_are_refused_by_number(tmp_path, items, message):
    with pytest.raises(DataError, match=message):
        from_torch(tmp_path / "data", Items(items), shards=1)
    assert list(tmp_path.iterdir()) == []


def test_an_iterable_dataset_is_refused(tmp_path):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([])

    with pytest.raises(DataError, match="map-style"):
        from_torch(tmp_path, Stream(), shards=1)


@pytest.mark.parametrize("columns", [("x", "x"), "xy"])
def test_columns_of_a_torch_dataset_need_different_names(tmp_path, columns):
    with pytest.raises(UsageError, match="different names"):
        from_torch(tmp_path, [(1.0, 2.0)], columns=columns, shards=1)


def test_numbers_of_numpy_are_numbers(tmp_path):
    arguments = {"shards": np.int64(3), "seed": np.int32(1), "validation": np.float32(0.5)}
    data = from_arrays(tmp_path, {"x": np.zeros(8)}, **arguments)
    assert len(data.shards("train")) == 3
