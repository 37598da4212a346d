"""Data sets in the formats in which they are found, read back from what was prepared."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cerebro.data import named, open_dataset
from cerebro.errors import DataError, UsageError
from tests import named as files


def prepared(name: str, source: Path | None, **options: Any) -> tuple[np.ndarray, ...]:
    """Pictures and labels of train, then of val, each in the order of their bytes."""
    into = (source or Path()) / "prepared"
    data = open_dataset(named.prepare(name, source, into, **{"shards": 2, **options}))
    found: list[np.ndarray] = []
    for split in ("train", "val"):
        shards = [data.open_shard(split, n).columns for n in range(len(data.shards(split)))]
        found += ordered(*(np.concatenate([s[c] for s in shards]) for c in "xy"))
    return tuple(found)


def ordered(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = sorted(range(len(x)), key=lambda row: x[row].tobytes())
    return x[order], y[order]


def assert_rows(found: tuple[np.ndarray, ...], *wanted: tuple[np.ndarray, np.ndarray]) -> None:
    for split, (x, y) in enumerate(wanted):
        found_x, found_y = found[2 * split : 2 * split + 2]
        x, y = ordered(x, y)
        assert found_x.dtype == np.uint8
        assert found_y.dtype == np.int64
        np.testing.assert_array_equal(found_x, x)
        np.testing.assert_array_equal(found_y, y)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("ending", [".gz", ""])
def test_idx_files_with_and_without_gzip(tmp_path, name, ending):
    files.write_mnist(tmp_path, ending=ending)
    assert_rows(
        prepared(name, tmp_path),
        (files.bytes_of(0, 40, 1, 28, 28), files.labels_of(0, 40)),
        (files.bytes_of(1, 20, 1, 28, 28), files.labels_of(1, 20)),
    )


def cifar_rows() -> list[tuple[np.ndarray, np.ndarray]]:
    *train, test = files.cifar_batches().values()
    return [(np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train])), test]


def test_cifar_as_binary_files(tmp_path):
    files.write_cifar_binary(tmp_path / "cifar-10-batches-bin")
    assert_rows(prepared("cifar10", tmp_path), *cifar_rows())


def test_cifar_as_the_published_archive(tmp_path):
    files.write_cifar_binary(tmp_path / "bin")
    files.write_cifar_archive(tmp_path / "cifar-10-binary.tar.gz", tmp_path / "bin")
    shutil.rmtree(tmp_path / "bin")
    assert_rows(prepared("cifar10", tmp_path), *cifar_rows())


def test_cifar_as_pictures_of_batches(tmp_path):
    files.write_cifar_png(tmp_path)
    assert_rows(prepared("cifar10", tmp_path), *cifar_rows())


@pytest.mark.parametrize("what", ["cifar-10-python.tar.gz", "cifar-10-batches-py/data_batch_1"])
def test_the_pickles_of_cifar_are_refused_and_the_binary_version_named(tmp_path, what):
    (tmp_path / what).parent.mkdir(exist_ok=True)
    (tmp_path / what).write_bytes(b"cos\nsystem\n")
    with pytest.raises(DataError, match=r"pickles.*refused.*cifar-10-binary\.tar\.gz"):
        prepared("cifar10", tmp_path)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
def test_svhn_trains_on_train_and_extra_and_has_zero_for_the_digit_zero(tmp_path, packed):
    for seed, (name, rows) in enumerate({"train": 30, "extra": 50, "test": 20}.items()):
        files.write_svhn(tmp_path / f"{name}_32x32.mat", seed, rows, packed=packed)
    train = [
        (files.bytes_of(s, r, 3, 32, 32), files.labels_of(s, r)) for s, r in ((0, 30), (1, 50))
    ]
    assert_rows(
        prepared("svhn", tmp_path),
        (np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train])),
        (files.bytes_of(2, 20, 3, 32, 32), files.labels_of(2, 20)),
    )


def test_svhn_without_extra_says_how_to_do_without(tmp_path):
    for name in ("train", "test"):
        files.write_svhn(tmp_path / f"{name}_32x32.mat", 0, 20)
    with pytest.raises(DataError, match=r"extra_32x32\.mat.*extra=false"):
        prepared("svhn", tmp_path)
    assert len(prepared("svhn", tmp_path, extra=False)[0]) == 20


def test_imagenet_has_classes_by_sorted_name_and_pictures_cropped_to_size(tmp_path):
    for split in ("train", "val"):
        files.write_pictures(tmp_path / "imagenet" / split, ("zebra", "ant", "cat"), 4)
    x, y, valid, _ = prepared("imagenet", tmp_path, input_shape=[16, 24, 3])
    assert x.shape == (12, 3, 16, 24) == valid.shape
    colours = x.mean((2, 3)).round()
    for label, red in ((0, 40), (1, 80), (2, 0)):
        assert np.allclose(colours[y == label][:, 0], red, atol=3)
        assert np.allclose(colours[y == label][:, 2], 200, atol=3)


def test_imagenet_from_folders_that_options_name_is_the_same_wherever_they_are(tmp_path):
    paths = []
    for place in ("here", "there"):
        dirs = {"train_dir": tmp_path / place / "t", "valid_dir": tmp_path / place / "v"}
        for folder in dirs.values():
            files.write_pictures(folder, ("ant", "cat"), 3)
        options = {key: str(folder) for key, folder in dirs.items()}
        paths.append(
            named.prepare(
                "imagenet", into=tmp_path / "p", shards=2, input_shape=[8, 8, 1], **options
            )
        )
    assert paths[0] == paths[1]
    assert open_dataset(paths[0]).schema["x"].shape == (1, 8, 8)


def test_a_part_of_imagenet_is_drawn_from_all_classes(tmp_path):
    for split in ("train", "val"):
        files.write_pictures(tmp_path / "imagenet" / split, ("ant", "cat"), 10)
    _, y, _, _ = prepared("imagenet", tmp_path, input_shape=[8, 8, 3], n_train=10, n_valid=5)
    assert len(y) == 10
    assert set(y) == {0, 1}


def test_a_picture_keeps_its_middle(tmp_path):
    picture = np.zeros((40, 80, 3), np.uint8)
    picture[:, 20:60] = 255
    for split in ("train", "val"):
        (tmp_path / "imagenet" / split / "only").mkdir(parents=True)
        Image.fromarray(picture).save(tmp_path / "imagenet" / split / "only" / "1.png")
    x, *_ = prepared("imagenet", tmp_path, input_shape=[20, 20, 3], shards=1)
    assert (x == 255).all()


def test_of_a_picture_the_middle_seven_eighths_are_kept(tmp_path):
    picture = np.repeat(np.arange(0, 240, 6, dtype=np.uint8), 80 * 3).reshape(40, 80, 3)
    for split in ("train", "val"):
        (tmp_path / "imagenet" / split / "only").mkdir(parents=True)
        Image.fromarray(picture).save(tmp_path / "imagenet" / split / "only" / "1.png")
    x, *_ = prepared("imagenet", tmp_path, input_shape=[20, 20, 3], shards=1)
    # 20 rows show the rows from 2.5 to 37.5, each 1.75 of them; a row is 6 brighter than the last.
    rows = 2.5 + 1.75 * (np.arange(20) + 0.5) - 0.5
    assert np.abs(x[0, 0, :, 10] - 6 * rows).max() <= 2


def test_dummy_is_gaussian_and_the_seed_decides(tmp_path):
    options = {"input_shape": [16, 8, 3], "target_shape": [2], "n_train": 200, "n_valid": 40}
    x, y, valid, _ = prepared("dummy", tmp_path, **options)
    assert (x.shape, y.shape, valid.shape) == ((200, 3, 16, 8), (200, 2), (40, 3, 16, 8))
    assert (x.dtype, y.dtype) == (np.float32, np.float32)
    assert abs(x.mean()) < 0.05
    assert abs(x.std() - 1) < 0.05
    again, *_ = prepared("dummy", tmp_path / "again", **options)
    other, *_ = prepared("dummy", tmp_path, seed=1, **options)
    assert np.array_equal(again, x)
    assert not np.array_equal(other, x)


def broken_idx(folder: Path) -> None:
    files.write_mnist(folder)
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-40])


def short_idx(folder: Path) -> None:
    files.write_mnist(folder)
    files.write_idx(folder / "t10k-labels-idx1-ubyte.gz", files.labels_of(0, 3))


def other_idx(folder: Path) -> None:
    files.write_mnist(folder)
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"<html>not found</html>"))


def cut_cifar(folder: Path) -> None:
    files.write_cifar_binary(folder)
    path = folder / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])


def empty_archive(folder: Path) -> None:
    (folder / "bin").mkdir()
    files.write_cifar_archive(folder / "cifar-10-binary.tar.gz", folder / "bin")


def odd_labels(folder: Path) -> None:
    files.write_cifar_png(folder)
    (folder / "test_lables.json").write_text("[1, 2]")


def cut_mat(folder: Path) -> None:
    for name in ("train", "extra", "test"):
        files.write_svhn(folder / f"{name}_32x32.mat", 0, 20)
    path = folder / "extra_32x32.mat"
    path.write_bytes(path.read_bytes()[: -(1 << 12)])


def new_mat(folder: Path) -> None:
    for name in ("train", "extra", "test"):
        (folder / f"{name}_32x32.mat").write_bytes(b"MATLAB 7.3 MAT-file".ljust(200))


def mat_of_text(folder: Path) -> None:
    for name in ("train", "extra", "test"):
        text = files.mat_array("X", np.zeros((1, 8), np.uint8), kind=4, stored=2, packed=True)
        (folder / f"{name}_32x32.mat").write_bytes(files.MAT_HEADER + text)


def no_picture(folder: Path) -> None:
    for split in ("train", "val"):
        files.write_pictures(folder / "imagenet" / split, ("ant",), 9)
    (folder / "imagenet/train/ant/3.JPEG").write_bytes(b"no picture")


def other_classes(folder: Path) -> None:
    files.write_pictures(folder / "imagenet/train", ("ant", "bee"), 2)
    files.write_pictures(folder / "imagenet/val", ("ant",), 2)


DAMAGE = {
    "cut gzip": (broken_idx, "mnist", r"train-images-idx3-ubyte\.gz is damaged"),
    "too few labels": (short_idx, "mnist", "20 pictures .* 3 labels"),
    "not idx": (other_idx, "mnist", "must be an idx file"),
    "cut records": (cut_cifar, "cifar10", "records of 3073 bytes"),
    "nothing inside": (empty_archive, "cifar10", r"must hold data_batch_1\.bin"),
    "labels of others": (odd_labels, "cifar10", "8 whole numbers, one for each picture"),
    "cut mat": (cut_mat, "svhn", r"damaged|ends too early"),
    "another version": (new_mat, "svhn", "version 5"),
    "text": (mat_of_text, "svhn", "must hold X"),
    "no picture": (no_picture, "imagenet", r"3\.JPEG cannot be read as a picture"),
    "other classes": (other_classes, "imagenet", "same classes, but 'bee'"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named_and_nothing_is_prepared(tmp_path, case):
    write, name, message = DAMAGE[case]
    write(tmp_path)
    with pytest.raises(DataError, match=message):
        prepared(name, tmp_path)
    left = [path.name for path in (tmp_path / "prepared").iterdir()]
    assert [each for each in left if not each.endswith(".lock")] == []


WRONG = {
    "unknown": ({"n_rows": 3}, "no option 'n_rows'. Its options: input_shape, n_train, n_valid"),
    "none": ({"n_train": 0}, "n_train >= 1"),
    "text": ({"shards": "8"}, "shards >= 1"),
    "negative": ({"seed": -1}, "seed >= 0"),
    "two sizes": ({"input_shape": [8, 8]}, "3 whole numbers"),
    "no size": ({"target_shape": [0]}, "whole numbers >= 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_options_that_cannot_be_are_refused(tmp_path, case):
    options, message = WRONG[case]
    with pytest.raises(UsageError, match=message.replace(".", r"\.")):
        named.prepare("dummy", into=tmp_path, **options)


def test_yes_in_words_is_no_option(tmp_path):
    with pytest.raises(UsageError, match="extra must be true or false, but is 'no'"):
        named.prepare("svhn", tmp_path, extra="no")
