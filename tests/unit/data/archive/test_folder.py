"""Samples from plain files, from tables, and in a random order."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet
import pytest

from cerebro.data.archive import FileGroups, ImageFolder
from cerebro.data.archive.shuffle import shuffled
from cerebro.data.archive.table import TableRows
from cerebro.errors import DataError, UsageError
from tests.unit.data.archive.archives import plain


def write(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


class TestImageFolder:
    def test_classes_and_samples_are_sorted(self, tmp_path):
        names = ("dog/2.png", "dog/10.jpg", "cat/x/1.JPEG", "cat/a.b.jpg", "cat/.hidden.jpg")
        folder = ImageFolder(write(tmp_path, *names, "cat/notes.txt", ".git/x.jpg", "README.md"))
        assert folder.classes == ["cat", "dog"]
        assert (len(folder), folder.ignored) == (4, 1)
        assert plain(folder) == [
            {"__key__": "cat/a_b", "jpg": b"cat/a.b.jpg", "cls": 0},
            {"__key__": "cat/x/1", "jpeg": b"cat/x/1.JPEG", "cls": 0},
            {"__key__": "dog/10", "jpg": b"dog/10.jpg", "cls": 1},
            {"__key__": "dog/2", "png": b"dog/2.png", "cls": 1},
        ]
        assert folder[3] == {**plain(folder)[3], "__source__": str(tmp_path)}

    @pytest.mark.parametrize(
        ("names", "message"),
        [
            (["a.jpg"], "a folder for each class"),
            (["cat/1.jpg", "dog/notes.txt"], "every class needs a picture.*dog"),
            (["cat/1.jpg", "cat/1.png"], "cat/1 comes twice"),
            (["cat/a.b.jpg", "cat/a_b.jpg"], "cat/a_b comes twice"),
        ],
    )
    def test_what_is_unclear_is_refused(self, tmp_path, names, message):
        with pytest.raises(DataError, match=message):
            ImageFolder(write(tmp_path, *names))

    def test_a_missing_or_remote_folder_is_named(self, tmp_path):
        with pytest.raises(DataError, match="must be a directory"):
            ImageFolder(tmp_path / "gone")
        with pytest.raises(UsageError, match="must be on this machine"):
            ImageFolder("s3://bucket/pictures")

    def test_a_file_that_cannot_be_read_is_named(self, tmp_path):
        folder = ImageFolder(write(tmp_path, "cat/1.jpg"))
        os.remove(tmp_path / "cat/1.jpg")
        with pytest.raises(DataError, match=r"cat/1\.jpg cannot be read"):
            list(folder)


class TestFileGroups:
    def test_files_with_one_name_are_one_sample(self, tmp_path):
        names = ("a/1.jpg", "a/1.cls", "a/10.jpg", "a-1.txt", "__about__.txt", ".hidden")
        assert plain(FileGroups(write(tmp_path, *names))) == [
            {"__key__": "a-1", "txt": b"a-1.txt"},
            {"__key__": "a/1", "cls": b"a/1.cls", "jpg": b"a/1.jpg"},
            {"__key__": "a/10", "jpg": b"a/10.jpg"},
        ]

    @pytest.mark.parametrize(
        ("names", "message"),
        [
            (["README"], "must have an extension"),
            (["a.txt", "a.TXT"], "a field must come once"),
            ([".hidden"], "there must be a file"),
        ],
    )
    def test_what_is_unclear_is_refused(self, tmp_path, names, message):
        with pytest.raises(DataError, match=message):
            FileGroups(write(tmp_path, *names))


class TestTableRows:
    def csv(self, tmp_path, text):
        (tmp_path / "t.csv").write_text(text)
        return tmp_path / "t.csv"

    def test_columns_are_fields_that_say_what_they_hold(self, tmp_path):
        file = self.csv(tmp_path, "id,Label,x,note,cls\nr1,3,0.5,hi,1\nr2,,1.5,,2\n")
        assert plain(TableRows(file)) == [
            {"__key__": "r1", "label.index": 3, "x.json": 0.5, "note.txt": "hi", "cls": 1},
            {"__key__": "r2", "x.json": 1.5, "note.txt": "", "cls": 2},
        ]

    def test_without_an_id_rows_are_numbered(self, tmp_path):
        keys = [row["__key__"] for row in TableRows(self.csv(tmp_path, "x\n1\n2\n"))]
        assert keys == ["000000000", "000000001"]

    def test_parquet_is_read_with_bytes_and_lists(self, tmp_path):
        table = pa.table({"id": [7], "jpg": [b"\xff"], "box": [[1, 2]]})
        pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
        assert plain(TableRows(tmp_path / "t.parquet")) == [
            {"__key__": "7", "jpg": b"\xff", "box.json": [1, 2]}
        ]

    def test_cells_that_name_object_files_become_them(self, tmp_path):
        objects = write(tmp_path / "o", "a/1.JPG", "a/2.jpg")
        file = self.csv(tmp_path, "id,image,label\nr1,a/1.JPG,0\nr2,a/2.jpg,1\n")
        assert plain(TableRows(file, objects)) == [
            {"__key__": "r1", "image.jpg": b"a/1.JPG", "label.index": 0},
            {"__key__": "r2", "image.jpg": b"a/2.jpg", "label.index": 1},
        ]

    def test_else_object_files_are_found_by_the_key(self, tmp_path):
        objects = write(tmp_path / "o", "r1.jpg", "r1.seg.png", "other.jpg")
        assert plain(TableRows(self.csv(tmp_path, "id,cls\nr1,0\n"), objects)) == [
            {"__key__": "r1", "cls": 0, "jpg": b"r1.jpg", "seg.png": b"r1.seg.png"}
        ]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("id,image\nr1,a.jpg\nr2,b.jpg\n", r"row 2: .*b\.jpg cannot be read"),
            ("id,image\nr1,a.jpg\nr2,../../etc/passwd\n", "row 2.*must stay inside"),
            ("id,x\nr9,0\n", "none for 'r9'"),
            ("id,x\n,0\n1,2\n", "row 1: a key must be text"),
            ("id,x\n", "at least one row"),
            ("id,x\n1,2,3\n", "cannot be read"),
            ("id,x,X\n1,2,3\n", "different names"),
            ("id,a/b\n1,2\n", "without `/`"),
        ],
    )
    def test_bad_tables_are_refused_by_row(self, tmp_path, text, message):
        objects = write(tmp_path / "o", "a.jpg")
        with pytest.raises(DataError, match=message):
            list(TableRows(self.csv(tmp_path, text), objects))


SAMPLES = [(f"{n}", [b"x" * 10, b"%d" % n]) for n in range(200)]


class TestShuffled:
    def test_the_order_depends_on_the_seed_alone(self, tmp_path):
        first = [key for key, _ in shuffled(SAMPLES, 1, str(tmp_path))]
        spilled = list(shuffled(SAMPLES, 1, str(tmp_path), memory_bytes=100))
        assert [key for key, _ in spilled] == first
        assert first != [key for key, _ in shuffled(SAMPLES, 2, str(tmp_path))]
        assert sorted(first, key=int) == [key for key, _ in SAMPLES]
        assert all(b"".join(parts) == b"x" * 10 + key.encode() for key, parts in spilled)
        assert list(tmp_path.iterdir()) == []

    def test_what_a_killed_one_left_is_removed(self, tmp_path):
        write(tmp_path, ".shuffle/7")
        list(shuffled(SAMPLES, 1, str(tmp_path), memory_bytes=100))
        assert list(tmp_path.iterdir()) == []

    def test_giving_up_leaves_nothing(self, tmp_path):
        reader = shuffled(SAMPLES, 1, str(tmp_path), memory_bytes=100)
        next(reader)
        reader.close()
        assert list(tmp_path.iterdir()) == []
