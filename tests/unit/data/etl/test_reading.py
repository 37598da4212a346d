"""Raw rows from tables, archives and folders of pictures, prepared alike."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from cerebro.data import open_dataset
from cerebro.data.etl.ledger import scratch_path
from cerebro.data.etl.reading import Reader
from cerebro.errors import CerebroError, DataError
from cerebro.etl_spec import ETLSpec
from cerebro.storage import DirectoryStore
from cerebro.types import Split
from tests.etl import prepare, rows_of


def png(value):
    out = io.BytesIO()
    Image.fromarray(np.full((2, 2, 3), value, np.uint8)).save(out, "png")
    return out.getvalue()


def write_tar(path, samples):
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as tar:
        for name, data in samples.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def read(tmp_path, main, **options):
    store = DirectoryStore(tmp_path / "etl")
    return Reader(lambda name: scratch_path(store, name), **options).read("train", main)


class Pictures(ETLSpec):
    def row_prep(self, row, mode, object_dir):
        return row["png"].astype("float32").mean((0, 1)), row["cls"]


def samples(numbers):
    return {
        name: data
        for n in numbers
        for name, data in {f"{n:03d}.png": png(n), f"{n:03d}.cls": str(n % 3).encode()}.items()
    }


def test_samples_of_archives_become_rows_once_each(tmp_path):
    write_tar(tmp_path / "a-000.tar", samples(range(5)))
    write_tar(tmp_path / "a-001.tar", samples(range(5, 9)))
    raw = read(tmp_path, str(tmp_path / "a-{000..001}.tar"))
    prepare(tmp_path / "etl", raw, Pictures())
    data = open_dataset(tmp_path / "etl")
    found = []
    for number in range(2):
        columns = data.open_shard("train", number).columns
        ids = [columns["id"][row] for row in range(len(columns["id"]))]
        found += zip(ids, columns["x"][:, 0].tolist(), columns["y"].tolist(), strict=True)
    assert sorted(found) == [(f"{n:03d}", float(n), n % 3) for n in range(9)]
    assert {f.name for f in (tmp_path / "etl").iterdir() if f.suffix != ".arrow"} == {
        "dataset.json",
        "etl.json",
    }


def test_a_sample_that_cannot_be_decoded_is_a_bad_row(tmp_path):
    write_tar(tmp_path / "a.tgz", {**samples(range(4)), "zzz.png": b"no", "zzz.cls": b"1"})
    raw = read(tmp_path, tmp_path / "a.tgz", on_bad_row="skip")
    with pytest.raises(DataError, match=r"a.tgz:5: the row with id 'zzz' .* cannot be decoded"):
        prepare(tmp_path / "etl", raw, Pictures(), shards=1)
    raw = read(tmp_path, tmp_path / "a.tgz", on_bad_row="skip")
    report = prepare(tmp_path / "etl", raw, Pictures(), shards=1, policy="skip", max_bad=1)
    assert (report.splits["train"].rows, report.splits["train"].bad) == (4, 1)


def test_an_archive_that_breaks_off_is_an_error(tmp_path):
    write_tar(tmp_path / "a.tar", samples(range(9)))
    whole = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CerebroError, match=r"a\.tar"):
        read(tmp_path, tmp_path / "a.tar")


def test_a_field_called_id_stays_apart_from_the_row_id(tmp_path):
    write_tar(tmp_path / "a.tar", {"k.id": b"77", "k.txt": b"hello"})
    raw = read(tmp_path, tmp_path / "a.tar")

    class Fields(ETLSpec):
        def row_prep(self, row, mode, object_dir):
            return [row["id.id"]], row["txt"]

    prepare(tmp_path / "etl", raw, Fields(), shards=1)
    columns = open_dataset(tmp_path / "etl").open_shard("train", 0).columns
    assert (columns["id"][0], columns["x"].tolist(), columns["y"][0]) == ("k", [[77]], "hello")


def folder_of(root, classes):
    for name, count in classes.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            (root / name / f"{number}.png").write_bytes(png(number))


def test_a_folder_of_pictures_has_a_row_for_each(tmp_path):
    folder_of(tmp_path / "train", {"dog": 2, "cat": 3})
    raw = read(tmp_path, str(tmp_path / "train"))

    class Named(ETLSpec):
        def set_features(self):
            return [False, True, False, False]

        def row_prep(self, row, mode, object_dir):
            with Image.open(f"{object_dir}/{row.path}") as picture:
                return np.asarray(picture).reshape(-1), row.label

    prepare(tmp_path / "etl", raw, Named(), shards=1)
    columns = open_dataset(tmp_path / "etl").open_shard("train", 0).columns
    ids = [columns["id"][row] for row in range(5)]
    found = sorted(zip(ids, columns["y"].tolist(), strict=True))
    assert found == [("cat/0", 0), ("cat/1", 0), ("cat/2", 0), ("dog/0", 1), ("dog/1", 1)]


def test_classes_are_numbered_alike_in_all_splits(tmp_path):
    folder_of(tmp_path / "train", {"ant": 1, "bee": 1, "cat": 1})
    folder_of(tmp_path / "val", {"cat": 1})
    folder_of(tmp_path / "test", {"dog": 1})
    reader = Reader(str)
    reader.read("train", tmp_path / "train")
    val = reader.read("val", tmp_path / "val").table
    assert (val["class"].to_pylist(), val["label"].to_pylist()) == (["cat"], [2])
    with pytest.raises(DataError, match=r"classes of the first, .* also has: dog"):
        reader.read("test", tmp_path / "test")


def test_a_table_keeps_the_lines_of_its_rows_for_errors_later(tmp_path):
    (tmp_path / "t.csv").write_text('id,value,text\n1,0,"two\nlines"\n2,-1,x\n')
    raw = read(tmp_path, tmp_path / "t.csv")
    with pytest.raises(DataError, match=r"t\.csv:4: the row with id 2 "):
        prepare(tmp_path / "etl", raw, shards=1)


def test_bad_rows_of_the_table_and_of_row_prep_are_counted_together(tmp_path):
    rows = "".join(f"{n},{n}\n" for n in range(20))
    (tmp_path / "t.csv").write_text(f"id,value\n{rows}98,-1\n99,1,2\n")
    raw = read(tmp_path, tmp_path / "t.csv", on_bad_row="skip", max_bad=2)
    report = prepare(tmp_path / "etl", raw, policy="skip", max_bad=2)
    split = report.splits["train"]
    assert (split.rows_in, split.rows, split.bad) == (22, 20, 2)
    assert len(rows_of(open_dataset(tmp_path / "etl"), "train")) == 20


def test_ids_are_text_in_all_splits_if_they_are_in_one(tmp_path):
    (tmp_path / "train.csv").write_text("id,value\n1,1\n2,2\n")
    (tmp_path / "test.csv").write_text("id,value\na,1\n2,2\n")
    splits = {s: read(tmp_path, tmp_path / f"{s}.csv") for s in (Split.TRAIN, Split.TEST)}
    prepare(tmp_path / "etl", splits, shards=1)
    data = open_dataset(tmp_path / "etl")
    assert str(data.schema["id"]) == "text"
    assert sorted(data.open_shard("train", 0).columns["id"].arrow.to_pylist()) == ["1", "2"]
