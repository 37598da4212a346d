"""What `row_prep` may give, and the files that rows name."""

from __future__ import annotations

import numpy as np
import pytest

from cerebro.data import open_dataset
from cerebro.errors import DataError, UsageError
from cerebro.etl_spec import ETLSpec
from cerebro.types import Split
from tests.etl import content, prepare, raw_of, rows_of

# What it gives


class Giving(ETLSpec):
    """Gives what it was told for each value."""

    def __init__(self, by_value):
        self.by_value = by_value

    def row_prep(self, row, mode, object_dir):
        return self.by_value[row["value"]]


def test_inputs_and_labels_may_be_dicts_text_and_bytes(tmp_path):
    image = np.zeros((2, 3, 3), np.uint8)
    spec = Giving({n: ({"image": image + n, "text": "a" * n}, {"age": n}) for n in range(4)})
    prepare(tmp_path, raw_of(range(4)), spec, shards=1)
    shard = open_dataset(tmp_path).open_shard("train", 0)
    assert {name: str(column) for name, column in shard.schema.items()} == {
        "image": "uint8[2, 3, 3]",
        "text": "text",
        "y.age": "int64",
        "id": "int64",
    }
    row = shard.columns["y.age"].tolist().index(3)
    assert shard.columns["text"][row] == "aaa"
    assert shard.columns["image"][row].max() == 3


@pytest.mark.parametrize("name", ["y", "id", "y.age"])
def test_inputs_cannot_take_the_names_of_labels_and_ids(tmp_path, name):
    with pytest.raises(UsageError, match="inputs must not be called"):
        prepare(tmp_path, raw_of([0]), Giving({0: ({"x": [1.0], name: [2.0]}, 0)}), shards=1)


@pytest.mark.parametrize(
    ("by_value", "message"),
    [
        ({0: [1.0], 1: [1.0]}, r"must return a pair \(input, label\).*returned list"),
        ({0: ([1.0], 0), 1: ([1.0, 2.0], 0)}, "shape"),
        ({0: ([1.0], 0), 1: ([1.0], None)}, "same columns for every row, but gives x, y, id"),
        ({0: (object(), 0), 1: (object(), 0)}, "dtype object"),
    ],
)
def test_rows_that_are_not_alike_are_refused(tmp_path, by_value, message):
    # In another order the other row comes first.
    message = f"{message}|gives x, id for others"
    with pytest.raises(DataError, match=message):
        prepare(tmp_path, raw_of([0, 1]), Giving(by_value), shards=1)


@pytest.mark.parametrize("odd", range(7))
def test_one_odd_row_is_the_bad_one_wherever_it_comes(tmp_path, odd):
    # In a test split rows stay in their order.
    by_value = {n: ([1.0, 2.0] if n != odd else [1.0], 0) for n in range(7)}
    splits = {Split.TEST: raw_of(range(7))}
    report = prepare(tmp_path, splits, Giving(by_value), shards=1, policy="skip", max_bad=1)
    assert report.splits["test"].bad == 1
    ids = [row[0] for row in rows_of(open_dataset(tmp_path), "test")]
    assert ids == [100 + n for n in range(7) if n != odd]


def test_shards_that_are_not_alike_are_refused(tmp_path):
    splits = {Split.TEST: raw_of([0, 1])}
    spec = Giving({0: ([1.0], 0), 1: ([1], 0)})
    with pytest.raises(
        DataError, match=r"column 'x' is float64.* in shard 0 and int64.* in shard 1"
    ):
        prepare(tmp_path, splits, spec)


def test_a_row_says_which_columns_it_has(tmp_path):
    class Asking(ETLSpec):
        def row_prep(self, row, mode, object_dir):
            return [row.value], row["lable"]

    with pytest.raises(DataError, match=r"no column 'lable'\. It has: id, value"):
        prepare(tmp_path, raw_of([0, 1]), Asking(), shards=1)


# Files that rows name


class Reading(ETLSpec):
    """The bytes of the file that a row names."""

    def set_features(self):
        return [False, False, True]

    def row_prep(self, row, mode, object_dir):
        with open(f"{object_dir}/{row.name}", "rb") as file:
            return list(file.read()), row.value


def files_in(folder, count):
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"{number}.bin").write_bytes(bytes([number, 7]))
    return [f"{number}.bin" for number in range(count)]


def test_files_that_rows_name_are_read_where_they_are(tmp_path):
    names = files_in(tmp_path / "objects", 6)
    raw = raw_of(range(6), object_dir=str(tmp_path / "objects"), name=names)
    prepare(tmp_path / "etl", raw, Reading())
    found = rows_of(open_dataset(tmp_path / "etl"), "train")
    assert sorted(found) == [(100 + n, n, n) for n in range(6)]


def test_many_rows_at_once_need_their_files_too(tmp_path):
    names = files_in(tmp_path / "objects", 3)

    class AtOnce(Reading):
        def batch_prep(self, table, mode, object_dir):
            return [[1.0]] * len(table), None

    names[1] = "../secret.bin"
    raw = raw_of(range(3), object_dir=str(tmp_path / "objects"), name=names)
    with pytest.raises(DataError, match=r"id 101 .*must stay inside"):
        prepare(tmp_path / "etl", raw, AtOnce(), shards=1)


def test_a_file_that_is_not_there_makes_a_bad_row(tmp_path):
    names = files_in(tmp_path / "objects", 3)
    names[1] = "lost.bin"
    raw = raw_of(range(3), object_dir=str(tmp_path / "objects"), name=names)
    with pytest.raises(DataError, match=r"id 101 .*the file 'lost.bin' is not in"):
        prepare(tmp_path / "etl", raw, Reading(), shards=1)
    report = prepare(tmp_path / "etl", raw, Reading(), shards=1, policy="skip", max_bad=1)
    assert report.splits["train"].bad == 1


@pytest.mark.parametrize("name", ["../secret.bin", "/etc/passwd", "a/../../secret.bin"])
def test_a_file_name_cannot_lead_out_of_its_directory(tmp_path, name):
    files_in(tmp_path / "objects", 1)
    (tmp_path / "secret.bin").write_bytes(b"12")
    raw = raw_of([0], object_dir=str(tmp_path / "objects"), name=[name])
    with pytest.raises(DataError, match="must stay inside"):
        prepare(tmp_path / "etl", raw, Reading(), shards=1)


def test_remote_files_are_fetched_and_not_kept(tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    names = files_in(tmp_path / "objects", 6)
    for name in names:
        memory.pipe(f"/etl-objects/{name}", (tmp_path / "objects" / name).read_bytes())
    try:
        local = raw_of(range(6), object_dir=str(tmp_path / "objects"), name=names)
        remote = raw_of(range(6), object_dir="memory://etl-objects", name=names)
        prepare(tmp_path / "local", local, Reading())
        prepare(tmp_path / "remote", remote, Reading())
    finally:
        memory.rm("/etl-objects", recursive=True)
    assert content(tmp_path / "local") == content(tmp_path / "remote")
    kept = {file.name for file in (tmp_path / "remote").iterdir()} - set(
        content(tmp_path / "local")
    )
    assert kept == {"dataset.json", "etl.json"}


def test_secrets_of_a_url_are_nowhere_on_disk(tmp_path):
    raw = raw_of(range(4), object_dir="http://ada:s3cret@127.0.0.1:9/objects?token=TOP")
    prepare(tmp_path, raw)
    for file in tmp_path.iterdir():
        assert b"s3cret" not in file.read_bytes()
        assert b"TOP" not in file.read_bytes()


def test_fresh_does_not_take_over_what_a_killed_one_has_done(tmp_path):
    names = files_in(tmp_path / "objects", 4)
    raw = raw_of(range(4), object_dir=str(tmp_path / "objects"), name=names)

    class Failing(Reading):
        def row_prep(self, row, mode, object_dir):
            if row.value == 3 and (tmp_path / "stop").exists():
                raise KeyboardInterrupt
            return super().row_prep(row, mode, object_dir)

    (tmp_path / "stop").touch()
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path / "etl", raw, Failing(), shards=4)
    (tmp_path / "stop").unlink()
    for number in range(4):
        (tmp_path / "objects" / f"{number}.bin").write_bytes(bytes([50 + number, 7]))
    prepare(tmp_path / "etl", raw, Failing(), shards=4, is_fresh=True)
    found = rows_of(open_dataset(tmp_path / "etl"), "train")
    assert sorted(row[1] for row in found) == [50, 51, 52, 53]
