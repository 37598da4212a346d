"""Files with models: written, read again, and refused where they could run code."""

from __future__ import annotations

import io
import json
import pickle
import zipfile

import numpy as np
import onnxruntime
import pytest
import safetensors.torch
import torch
from torch import nn

from cerebro.data import from_arrays
from cerebro.errors import UsageError
from cerebro.task import ParamDict, Task
from cerebro.train.model_file import ExportCall, file_member
from cerebro.train.torch.framework import TorchFramework
from cerebro.types import Split


class Net(Task):
    def model(self, params):
        width = params["width"]
        return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 3))


PARAMS = {"width": 5}


@pytest.fixture
def framework():
    made = TorchFramework(Net(), device="cpu")
    yield made
    made.close()


@pytest.fixture
def model():
    torch.manual_seed(0)
    made = Net().model(PARAMS)
    made(torch.randn(64, 4))  # moves the statistics of the norm
    return made.eval()


@pytest.fixture
def shard(tmp_path):
    x = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    return from_arrays(tmp_path / "data", test={"x": x}, shards=1).open_shard(Split.TEST, 0)


def export(framework, model, shard, to):
    call = ExportCall(to=to, columns=("x",), about={"params": json.dumps(PARAMS), "task": "Net"})
    return framework.export(call, model, shard)


def outputs(model, rows=11):
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(rows, 4)).astype(np.float32))
    with torch.no_grad():
        return x, model(x)


def test_exported_safetensors_are_the_state_dict(framework, model, tmp_path):
    content = export(framework, model, None, "safetensors")
    (tmp_path / "m.safetensors").write_bytes(content)
    loaded = safetensors.torch.load(content)
    assert loaded.keys() == model.state_dict().keys()
    assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())
    member = file_member(tmp_path / "m.safetensors", None)
    assert (member.name, member.params) == ("m", PARAMS)


@pytest.mark.parametrize("to", ["safetensors", "torch-export"])
def test_what_was_exported_loads_again_with_the_same_outputs(framework, model, shard, tmp_path, to):
    path = tmp_path / {"safetensors": "m.safetensors", "torch-export": "m.pt2"}[to]
    path.write_bytes(export(framework, model, shard, to))
    member = file_member(path, None)
    assert member.params == PARAMS
    again = framework.load_file(ParamDict(member.params), str(path), path.read_bytes())
    for rows in (1, 2, 11):
        x, expected = outputs(model, rows)
        assert torch.equal(again(x), expected)


def test_onnx_gives_what_the_model_gives(framework, model, shard):
    content = export(framework, model, shard, "onnx")
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["cerebro.params"]) == PARAMS
    for rows in (1, 2, 11):
        x, expected = outputs(model, rows)
        (found,) = session.run(None, {"x": x.numpy()})
        assert np.allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)


class Scaled(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x.float() / 64 - 2)


@pytest.fixture
def bytes_shard(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (9, 4)).astype(np.uint8)
    return from_arrays(tmp_path / "bytes", test={"x": x}, shards=1).open_shard(Split.TEST, 0)


@pytest.mark.parametrize("to", ["torch-export", "onnx"])
def test_what_is_done_to_inputs_belongs_into_the_module(framework, model, bytes_shard, to):
    with pytest.raises(UsageError) as caught:
        export(framework, model, bytes_shard, to)
    told = str(caught.value)
    assert "must take x (torch.uint8) as in the data" in told
    assert "but: RuntimeError: mat1 and mat2 must have the same dtype" in told
    assert told.endswith("(casting, scaling), or export to safetensors.")
    assert len(told) < 400
    assert told.isprintable()
    assert export(framework, Scaled(model).eval(), bytes_shard, to)


def test_columns_that_are_not_there_are_named(framework, model, shard):
    call = ExportCall(to="torch-export", columns=("image",))
    with pytest.raises(UsageError, match=r"'image' is none of x: name them with columns"):
        framework.export(call, model, shard)


def test_a_state_dict_file_is_loaded(framework, model, tmp_path):
    path = tmp_path / "m.pt"
    torch.save(model.state_dict(), path)
    again = framework.load_file(ParamDict(PARAMS), str(path), path.read_bytes())
    x, expected = outputs(model)
    assert torch.equal(again(x), expected)


def test_params_come_from_a_file_beside_or_must_be_given(model, tmp_path):
    path = tmp_path / "m.pt"
    torch.save(model.state_dict(), path)
    with pytest.raises(UsageError, match="pass params="):
        file_member(path, None)
    assert file_member(path, PARAMS).params == PARAMS
    path.with_suffix(".json").write_text(json.dumps({"params": PARAMS}))
    assert file_member(path, None).params == PARAMS


def test_a_pickled_module_is_refused_with_the_reason(framework, model, tmp_path):
    path = tmp_path / "m.pt"
    torch.save(model, path)
    with pytest.raises(UsageError, match=r"can run any code when it is read.*state_dict\(\)"):
        framework.load_file(ParamDict(PARAMS), str(path), path.read_bytes())


def test_a_dict_of_other_things_is_refused(framework, tmp_path):
    path = tmp_path / "m.pt"
    torch.save({"epoch": 3, "state_dict": {}}, path)
    with pytest.raises(UsageError, match="epoch, state_dict is no tensor"):
        framework.load_file(ParamDict(PARAMS), str(path), path.read_bytes())


def test_weights_of_another_model_are_refused(framework, model, tmp_path):
    path = tmp_path / "m.pt"
    torch.save(model.state_dict(), path)
    with pytest.raises(UsageError, match="must build the model that"):
        framework.load_file(ParamDict(width=6), str(path), path.read_bytes())


class Attack:
    """Runs code when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def rewritten(content, change):
    """An archive with one of its files replaced, or one more."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        files = {name: old.read(name) for name in old.namelist()}
        for name, data in {**files, **change(files)}.items():
            new.writestr(name, data)
    return out.getvalue()


def pickled_inputs(files, trap):
    return {"archive/data/sample_inputs/model.pt": pickle.dumps(Attack(trap))}


def pickled_weight(files, trap):
    name = "archive/data/weights/model_weights_config.json"
    config = json.loads(files[name])
    first = next(iter(config["config"].values()))
    first["use_pickle"] = True
    raw = io.BytesIO()
    torch.save(Attack(trap), raw)
    path = f"archive/data/weights/{first['path_name']}"
    return {name: json.dumps(config).encode(), path: raw.getvalue()}


def formula(files, trap):
    name = "archive/models/model.json"
    text = files[name].decode().replace("Symbol('s", f"open('{trap}','w') or Symbol('s", 1)
    return {name: text.encode()}


def library(files, trap):
    return {"archive/data/aotinductor/model/model.so": b"\x7fELF"}


@pytest.mark.parametrize("attack", [pickled_inputs, pickled_weight, formula, library])
def test_an_archive_that_could_run_code_is_refused(framework, model, shard, tmp_path, attack):
    trap = tmp_path / "trap"
    content = export(framework, model, shard, "torch-export")
    hostile = rewritten(content, lambda files: attack(files, trap))
    assert hostile != rewritten(content, lambda files: {})
    with pytest.raises(UsageError, match="could run code"):
        framework.load_file(ParamDict(), "m.pt2", hostile)
    assert not trap.exists()


@pytest.mark.parametrize("name", ["m.bin", "missing.pt"])
def test_what_is_no_model_file_is_refused(tmp_path, name):
    (tmp_path / "m.bin").write_bytes(b"")
    with pytest.raises(UsageError, match=r"must be a|there is no file"):
        file_member(tmp_path / name, {})


def write_safetensors(path, metadata):
    header = json.dumps({"__metadata__": metadata}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)


@pytest.mark.parametrize("params", ["{not json", "[1]", "3"])
def test_params_in_a_file_that_are_none_are_refused(tmp_path, params):
    write_safetensors(tmp_path / "m.safetensors", {"params": params})
    with pytest.raises(UsageError, match=r"the params in .*m\.safetensors must be"):
        file_member(tmp_path / "m.safetensors", None)


@pytest.mark.parametrize("about", ["[1]", '{"params": 3}', "{"])
def test_an_archive_that_says_odd_things_about_itself_is_refused(tmp_path, about):
    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as archive:
        archive.writestr("m/extra/cerebro.json", about)
    with pytest.raises(UsageError, match=r"m\.pt2"):
        file_member(tmp_path / "m.pt2", None)


def test_a_graph_that_cannot_be_read_is_refused_without_noise(framework, caplog, capfd):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in {"models/model.json": "{}", "archive_format": "pt2"}.items():
            archive.writestr(f"m/{name}", text)
    with pytest.raises(UsageError, match=r"m\.pt2 must be an archive .* damaged or of another"):
        framework.load_file(ParamDict(PARAMS), "m.pt2", content.getvalue())
    assert not caplog.records
    assert capfd.readouterr().err == ""
