"""Data sets are found, prepared once, and the same everywhere."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cerebro.data import Shard, named, open_dataset
from cerebro.data.named.preparing import prepared_paths
from cerebro.errors import DataError, UsageError
from tests import named as files
from tests.processes import ROOT, wait_for


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    """No files of whoever runs the tests are found."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("CEREBRO_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return folder


def digests(path: str) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in Path(path).iterdir()}


def places_of(shard: Shard) -> list[int]:
    """Where the rows of a shard stood in the files of `write_mnist`, by picture and label."""
    pictures, labels = files.bytes_of(0, 40, 28, 28), files.labels_of(0, 40)
    place = {
        (x.tobytes(), int(y)): n for n, (x, y) in enumerate(zip(pictures, labels, strict=True))
    }
    x, y = (np.asarray(shard.columns[name]) for name in ("x", "y"))
    return [place[row.tobytes(), int(label)] for row, label in zip(x, y, strict=True)]


@pytest.mark.parametrize("place", ["data/MNIST/raw", "home/.cerebro/data/mnist", "elsewhere/mnist"])
def test_files_are_found_in_the_usual_places(tmp_path, monkeypatch, place):
    monkeypatch.setenv("CEREBRO_DATA", str(tmp_path / "elsewhere"))
    files.write_mnist(tmp_path / place)
    path = named.prepare("mnist")
    assert Path(path).parent == tmp_path / "elsewhere/prepared"
    assert open_dataset(path).rows("train") == 40


def test_the_place_does_not_change_the_name_and_the_name_is_what_was_asked_for(tmp_path, home):
    files.write_mnist(tmp_path / "a")
    files.write_mnist(tmp_path / "b/MNIST/raw")
    path = named.prepare("mnist", tmp_path / "a")
    assert Path(path).parent == home / ".cerebro/data/prepared"
    assert named.prepare("mnist", tmp_path / "b") == path
    assert named.prepare("mnist", tmp_path / "a", shards=4) != path
    assert named.prepare("mnist", tmp_path / "a", n_train=20) != path
    assert len(prepared_paths(named.lookup("mnist"))) == 3


def test_files_of_another_size_are_another_data_set(tmp_path):
    files.write_mnist(tmp_path / "a")
    files.write_mnist(tmp_path / "b", rows=42)
    assert named.prepare("mnist", tmp_path / "a") != named.prepare("mnist", tmp_path / "b")


def test_the_same_bytes_come_out_in_every_place(tmp_path):
    files.write_mnist(tmp_path / "a")
    one, two = (named.prepare("mnist", tmp_path / "a", tmp_path / into) for into in "xy")
    assert digests(one) == digests(two)


def test_a_part_is_drawn_at_random_and_its_labels_belong_to_it(tmp_path):
    files.write_mnist(tmp_path)
    data = open_dataset(named.prepare("mnist", tmp_path, n_train=10, n_valid=4, shards=2))
    assert (data.rows("train"), data.rows("val")) == (10, 4)
    found = [place for n in range(2) for place in places_of(data.open_shard("train", n))]
    assert len(set(found)) == 10
    assert set(found) != set(range(10))
    other = open_dataset(named.prepare("mnist", tmp_path, n_train=10, shards=1, seed=1))
    assert set(places_of(other.open_shard("train", 0))) != set(found)
    with pytest.raises(UsageError, match="n_train <= 40"):
        named.prepare("mnist", tmp_path, n_train=41)


def test_files_that_lie_in_the_place_itself_count_only_where_it_is_named(tmp_path, monkeypatch):
    files.write_mnist(tmp_path / "data")
    with pytest.raises(DataError, match="must be on this machine"):
        named.prepare("fashion-mnist")
    assert named.prepare("fashion-mnist", "data")


def test_missing_files_are_named_with_where_was_looked_and_what_to_do(tmp_path, home):
    with pytest.raises(DataError) as caught:
        named.prepare("svhn")
    for part in (
        "train_32x32.mat",
        "test_32x32.mat",
        str(tmp_path / "data"),
        str(home / ".cerebro"),
    ):
        assert part in str(caught.value)
    assert "cerebro data get svhn" in str(caught.value)
    assert list(home.iterdir()) == []


def test_imagenet_without_folders_says_which_options_name_them(tmp_path):
    with pytest.raises(DataError, match="train_dir and valid_dir"):
        named.prepare("imagenet")
    with pytest.raises(DataError, match="valid_dir must be a folder"):
        named.prepare("imagenet", train_dir=str(tmp_path), valid_dir="nowhere")
    with pytest.raises(UsageError, match="together"):
        named.prepare("imagenet", train_dir=str(tmp_path))


def test_an_unknown_name_is_refused_with_those_that_are_known():
    with pytest.raises(UsageError, match=r"cifar10, dummy.*svhn\. Did you mean 'cifar10'"):
        named.prepare("cifar-10")


ASK = """
import json, sys
from cerebro.data.named import DATASETS, prepare
from tests import named as files
tiny = files.tiny()
DATASETS["tiny"] = tiny
name, source, into, mode = sys.argv[1:]
said = []
if mode == "stuck":
    def load(found, options, scratch):
        held = scratch((1000, 1000))
        print("loading", flush=True)
        sys.stdin.read()
    from dataclasses import replace
    DATASETS["tiny"] = replace(tiny, load=load)
print(json.dumps([prepare(name, source, into, say=said.append), said]), flush=True)
"""


def ask(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ASK, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_of_many_that_ask_at_once_one_prepares_and_all_get_it(tmp_path):
    files.write_mnist(tmp_path, rows=2000)
    asking = [ask("mnist", tmp_path, tmp_path / "p", "free") for _ in range(4)]
    answers = [json.loads(each.communicate(timeout=60)[0]) for each in asking]
    assert len({path for path, _ in answers}) == 1
    assert sum("preparing mnist" in text for _, said in answers for text in said) == 1
    open_dataset(answers[0][0]).verify()


def test_after_a_kill_nothing_half_made_is_there_and_another_prepares(tmp_path, monkeypatch):
    (tmp_path / "tiny").mkdir()
    for name, content in files.CONTENT.items():
        (tmp_path / "tiny" / name).write_bytes(content)
    monkeypatch.setitem(named.DATASETS, "tiny", files.tiny())
    with ask("tiny", tmp_path, tmp_path / "p", "stuck") as stuck:
        assert stuck.stdout is not None
        assert stuck.stdout.readline() == "loading\n"
        waiting = ask("tiny", tmp_path, tmp_path / "p", "free")
        os.kill(stuck.pid, signal.SIGKILL)
    path, _ = json.loads(waiting.communicate(timeout=60)[0])
    assert [p.name for p in (tmp_path / "p").iterdir() if p.is_dir()] == [Path(path).name]
    assert sum(p.stat().st_size for p in (tmp_path / "p").iterdir() if p.is_file()) == 0
    assert named.prepare("tiny", tmp_path, tmp_path / "p") == path
    open_dataset(path).verify()


def test_who_waits_says_for_whom(tmp_path):
    (tmp_path / "tiny").mkdir()
    for name, content in files.CONTENT.items():
        (tmp_path / "tiny" / name).write_bytes(content)
    with ask("tiny", tmp_path, tmp_path / "p", "stuck") as stuck:
        assert stuck.stdout is not None
        stuck.stdout.readline()
        script = ASK.replace("say=said.append", "say=lambda t: print(t, flush=True)")
        waiting = subprocess.Popen(
            [sys.executable, "-c", script, "tiny", str(tmp_path), str(tmp_path / "p"), "free"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert waiting.stdout is not None
        assert f"waiting for pid {stuck.pid} on" in waiting.stdout.readline()
        os.kill(stuck.pid, signal.SIGKILL)
        waiting.communicate(timeout=60)
    wait_for(lambda: waiting.poll() is not None, "the one that waited")
    assert waiting.returncode == 0
