"""`cerebro shard`, as people use it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile

import pytest
from PIL import Image
from typer.testing import CliRunner

from cerebro.cli.app import app
from cerebro.cli.shard import SourceKind, detect
from cerebro.data.archive import Decoder, read_samples, write_shards
from cerebro.errors import UsageError


def shard(*arguments):
    return CliRunner().invoke(app, ["shard", *map(str, arguments)])


def pictures(root, count=3):
    for label, name in enumerate(("cat", "dog")):
        (root / name).mkdir(parents=True)
        for number in range(count):
            target = io.BytesIO()
            Image.new("RGB", (4, 4), (label * 100, number, 0)).save(target, "PNG")
            (root / name / f"{number}.png").write_bytes(target.getvalue())
    return root


def digests(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def keys(spec):
    return [sample["__key__"] for sample in read_samples(spec)]


def test_an_image_folder_becomes_shards_with_classes(tmp_path):
    done = shard(pictures(tmp_path / "pets"), tmp_path / "out", "--max-count", 4)
    assert done.exit_code == 0, done.output
    assert sorted(os.listdir(tmp_path / "out")) == [
        "classes.json",
        "out-000000.tar",
        "out-000001.tar",
        "out.shards",
    ]
    assert json.loads((tmp_path / "out/classes.json").read_text()) == ["cat", "dog"]
    samples = list(read_samples(f"{tmp_path}/out/out.shards", decode=Decoder()))
    assert [(s["__key__"], s["cls"]) for s in samples] == [
        *((f"cat/{n}", 0) for n in range(3)),
        *((f"dog/{n}", 1) for n in range(3)),
    ]
    assert samples[4]["png"][0, 0].tolist() == [100, 1, 0]
    assert "6" in done.output
    assert "out-000000.tar to out-000001.tar" in done.output
    assert "\x1b" not in done.output


def test_the_same_command_gives_the_same_bytes_and_a_seed_another_order(tmp_path):
    pets = pictures(tmp_path / "pets")
    for name, options in {"a": [], "b": [], "c": ["--shuffle", 1], "d": ["--shuffle", 1]}.items():
        assert shard(pets, tmp_path / name, "--name", "t", *options).exit_code == 0
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert digests(tmp_path / "c") == digests(tmp_path / "d")
    plain, mixed = keys(tmp_path / "a/t.shards"), keys(tmp_path / "c/t.shards")
    assert plain != mixed
    assert sorted(plain) == sorted(mixed)


def test_a_folder_of_files_is_packed_by_name(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("1.jpg", "1.json", "2.jpg"):
        (tmp_path / "in" / name).write_bytes(b"{}")
    assert shard(tmp_path / "in", tmp_path / "out", "--name", "t").exit_code == 0
    with tarfile.open(tmp_path / "out/t-000000.tar") as tar:
        assert tar.getnames() == ["1.jpg", "1.json", "2.jpg"]


def test_a_table_with_objects_is_packed(tmp_path):
    pictures(tmp_path / "objects")
    (tmp_path / "t.csv").write_text("id,image,label\nr1,cat/0.png,0\nr2,dog/0.png,1\n")
    done = shard(tmp_path / "t.csv", tmp_path / "out", "--objects", tmp_path / "objects")
    assert done.exit_code == 0, done.output
    (first, second) = read_samples(tmp_path / "out/out.shards", decode=Decoder())
    assert (first["__key__"], second["label.index"]) == ("r1", 1)
    assert second["image.png"].shape == (4, 4, 3)


def test_archives_are_cut_anew(tmp_path):
    samples = [{"__key__": f"{n:03}", "cls": n, "pyd": b"kept as it is"} for n in range(10)]
    write_shards(tmp_path / "in", samples, name="t", max_count=3)
    for number, source in enumerate(("t.shards", "t-@000004.tar", "t-{000000..000003}.tar", "")):
        out = tmp_path / f"out{number}"
        done = shard(f"{tmp_path}/in/{source}", out, "--name", "u", "--max-count", 5, "--gzip")
        assert done.exit_code == 0, done.output
        assert sorted(os.listdir(out)) == ["u-000000.tgz", "u-000001.tgz", "u.shards"]
        assert keys(f"{out}/u-*.tgz") == [f"{n:03}" for n in range(10)]
    done = shard(f"{tmp_path}/in/t.shards", tmp_path / "mixed", "--shuffle", 3)
    assert sorted(keys(tmp_path / "mixed/mixed.shards")) == [f"{n:03}" for n in range(10)]
    assert keys(tmp_path / "mixed/mixed.shards") != [f"{n:03}" for n in range(10)]


def test_max_bytes_takes_units(tmp_path):
    samples = [{"__key__": str(n), "bin": bytes(1000)} for n in range(4)]
    write_shards(tmp_path / "in", samples)
    assert shard(tmp_path / "in", tmp_path / "out", "--max-bytes", "4kB").exit_code == 0
    assert len(list((tmp_path / "out").glob("*.tar"))) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["gone.tar", "out"], 1, "gone.tar: there is no such file"),
        (["gone.csv", "out"], 2, "there is no gone.csv"),
        (["empty", "out"], 2, "SOURCE must hold files"),
        (["mixed", "out"], 2, "--as images"),
        (["pets", "pets/out"], 2, "must not be inside SOURCE"),
        (["pets", "out", "--as", "photos"], 2, "Known: images, files, table, archives"),
        (["pets", "out", "--objects", "pets"], 2, "--objects goes with"),
        (["pets", "out", "--max-bytes", "1 XB"], 2, "like 1GB"),
        (["pets", "out", "--max-bytes", "0"], 2, "like 1GB"),
        (["pets", "out", "--name", "a/b"], 2, "a name must be"),
        (["cut.tar", "out"], 1, "cut.tar"),
        (["s3://bucket/pets.csv", "out"], 2, "must be on this machine"),
        (["shards/t.shards", "shards", "--name", "t"], 2, "must not be replaced"),
    ],
)
def test_bad_input_is_one_line_and_an_exit_code(tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    pictures(tmp_path / "pets")
    (pictures(tmp_path / "mixed") / "cat/notes.txt").touch()
    (tmp_path / "empty").mkdir()
    write_shards("shards", [{"__key__": "a", "txt": "b"}], name="t")
    (tmp_path / "cut.tar").write_bytes((tmp_path / "shards/t-000000.tar").read_bytes()[:700])
    before = digests(tmp_path / "shards")
    done = shard(*arguments)
    assert done.exit_code == code, done.output
    assert message in done.output
    assert done.output.startswith("error: ")
    assert len(done.output.splitlines()) == 1
    assert not (tmp_path / "out").exists()
    assert digests(tmp_path / "shards") == before


def test_mixed_folders_are_taken_as_they_are_said_to_be(tmp_path):
    (pictures(tmp_path / "mixed") / "cat/0.txt").write_text("a cat")
    with pytest.raises(UsageError, match="--as"):
        detect(str(tmp_path / "mixed"))
    done = shard(tmp_path / "mixed", tmp_path / "images", "--as", "images")
    assert "1 other files left out" in done.output
    shard(tmp_path / "mixed", tmp_path / "files", "--as", "files")
    first = next(read_samples(tmp_path / "files/files.shards"))
    assert sorted(first)[2:] == ["png", "txt"]
    assert detect("s3://bucket/t-{0..9}.tar") is SourceKind.ARCHIVES
