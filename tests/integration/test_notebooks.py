"""The notebooks run through as they are, in a real kernel, on small data."""

from __future__ import annotations

import csv
import importlib
import io
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from nbclient import NotebookClient
from PIL import Image
from traitlets.config import Config

from cerebro import Result
from cerebro.storage.workspace import Settings, make_private, write_settings
from tests.ports import free_port

NOTEBOOKS = Path(__file__).resolve().parent.parent.parent / "notebooks"
CHANNELS = ("shell", "iopub", "stdin", "hb", "control")
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


def execute(name: str, folder: Path, monkeypatch, **variables: str) -> list[dict[str, Any]]:
    """Run a copy of a notebook in a folder; returns its outputs."""
    for file in NOTEBOOKS.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    # One worker: each call starts its workers anew, and each of them loads PyTorch.
    make_private(folder)
    write_settings(folder, Settings(workers=1))
    for key, value in {"IPYTHONDIR": str(folder / "ipython"), **variables}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
    book = nbformat.read(folder / f"{name}.ipynb", as_version=4)
    # Ports that nobody else gets before the kernel has them.
    ports = {f"{name}_port": free_port() for name in CHANNELS}
    NotebookClient(
        book,
        timeout=240,
        startup_timeout=120,
        kernel_name="python3",
        config=Config({"KernelManager": {"cache_ports": False, **ports}}),
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    return [output for cell in book.cells for output in cell.get("outputs", [])]


def pages_in(outputs: list[dict[str, Any]]) -> list[str]:
    return [
        output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_kept_without_outputs(name):
    book = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(book)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.id for cell in code if cell.outputs or cell.execution_count is not None] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_names_no_place_on_a_machine(name):
    assert (
        re.findall(r"[\"'`](?:/|~|[A-Z]:)[\w/\\]", (NOTEBOOKS / f"{name}.ipynb").read_text()) == []
    )


@pytest.fixture
def pictures(monkeypatch):
    """The module beside the notebook."""
    monkeypatch.syspath_prepend(str(NOTEBOOKS))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield importlib.import_module("cifar10_data")
    del sys.modules["cifar10_data"]


def rows_of(folder: Path, split: str) -> list[dict[str, str]]:
    with (folder / f"{split}.csv").open() as file:
        return list(csv.DictReader(file))


def as_file(level: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (32, 32), (level, level, level)).save(buffer, "PNG")
    return buffer.getvalue()


def test_pictures_are_taken_from_parquet_files(pictures, tmp_path):
    for split, first in (("train", 0), ("test", 100)):
        levels = range(first, first + 40)
        table = pa.table({"image": [as_file(n) for n in levels], "label": [n % 10 for n in levels]})
        pq.write_table(table, tmp_path / f"some-{split}.parquet")
    assert pictures.prepare(str(tmp_path / "out"), source=str(tmp_path), rows=20) == 20
    out = tmp_path / "out"
    assert [row["label"] for row in rows_of(out, "train")] == [str(n % 10) for n in range(20)]
    assert [row["label"] for row in rows_of(out, "val")] == [str(n % 10) for n in range(20, 30)]
    assert list(rows_of(out, "predict")[0]) == ["id", "picture"]
    with Image.open(out / "test" / "00003.png") as picture:
        assert picture.getpixel((0, 0)) == (103, 103, 103)


def test_pictures_are_taken_from_folders(pictures, tmp_path):
    for split in ("train", "test"):
        for label, name in enumerate(("cat", "dog")):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for number in range(20):
                (folder / f"{number}.png").write_bytes(as_file(100 * label))
    pictures.prepare(str(tmp_path / "out"), source=str(tmp_path), rows=20)
    for row in rows_of(tmp_path / "out", "train"):
        with Image.open(tmp_path / "out" / "train" / row["picture"]) as picture:
            assert picture.getpixel((0, 0)) == (100 * int(row["label"]),) * 3


def test_a_source_without_pictures_is_an_error(pictures, tmp_path):
    with pytest.raises(FileNotFoundError, match="neither"):
        pictures.prepare(str(tmp_path / "out"), source=str(tmp_path), rows=20)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_template_runs_from_raw_files_to_predictions(tmp_path, monkeypatch):
    outputs = execute("experiment", tmp_path, monkeypatch)
    result = Result.open(tmp_path / "runs" / "template")
    assert result.is_finished
    assert len(result.trials) == 8
    live = [page for page in pages_in(outputs) if "run template: 8 trials" in page]
    assert len(live) == 1
    assert "<polyline" in live[0]
    (predictions,) = tmp_path.glob("runs/template/predict/**/predictions.csv")
    with predictions.open() as file:
        assert [row["id"] for row in csv.DictReader(file)] == [str(n) for n in range(9)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_eight_resnets_are_trained_on_pictures(tmp_path, monkeypatch):
    monkeypatch.delenv("CIFAR10", raising=False)
    outputs = execute("cifar10", tmp_path, monkeypatch, CIFAR10_ROWS="32", CIFAR10_EPOCHS="1")
    assert outputs[0]["text"] == "32 painted pictures: CIFAR10 is not set\n"
    # Real pictures would have another name, and are not touched.
    assert not (tmp_path / "data" / "cifar10").exists()
    result = Result.open(tmp_path / "runs" / "painted")
    assert result.is_finished
    params = [trial.params for trial in result.trials]
    assert len({tuple(each.values()) for each in params}) == 8
    assert {name for each in params for name in each} == {"batch_size", "lr", "weight_decay"}
    assert "val_top5" in result.best.metrics
    (predictions,) = tmp_path.glob("runs/painted/predict/**/predictions.csv")
    with predictions.open() as file:
        assert len(list(csv.DictReader(file))) == 10
    assert (tmp_path / "models" / "painted.safetensors").is_file()
