"""PyTorch: models and weights from files, none of which can run code."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.passes import move_to_device_pass

from cerebro.errors import CheckpointCorruptError, UsageError
from cerebro.storage.tensors import Layout
from cerebro.train.torch.buffer import DTYPES, view_of
from cerebro.train.torch.build import Builder
from cerebro.types import Params

#: All that an archive of torch.export may hold, but for its folder's name.
_ARCHIVE_FILE = re.compile(
    r"archive_format|archive_version|byteorder|\.data/(version|serialization_id)|version"
    r"|models/model\.json|data/sample_inputs/model\.pt|extra/[\w.-]+"
    r"|data/(weights|constants)/((weight|tensor)_\d+|model_(weights|constants)_config\.json)"
)
#: Sizes in an archive are formulas, which PyTorch evaluates: symbols and SymPy's functions alone.
_FORMULA = re.compile(
    r"(?:Symbol\('[a-z]+\d++'(?:, (?:positive|integer|nonnegative)=True)*+\)"
    r"|[su]\d++|[A-Z][A-Za-z0-9]*+|\d++|[ +*/(),<>=-])*+"
)
_REMEDY = (
    "Save the weights alone, torch.save(model.state_dict(), path), or as safetensors; or export "
    "the trial with `cerebro export`."
)


def load_model_file(
    builder: Builder, device: torch.device, params: Params, path: str, content: bytes
) -> nn.Module:
    """The task's model with the weights of a file, or the model that an archive holds."""
    if path.endswith(".pt2"):
        return _open_archive(path, content, device)
    tensors = (
        _read_safetensors(path, content)
        if path.endswith(".safetensors")
        else _read_state_dict(path, content)
    )
    model = builder.model(0, 0, params)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise UsageError(
            f"the task must build the model that {path} was saved from, but builds another with "
            f"the params {dict(params)}: {error}"
        ) from error
    return model.eval()


def _read_safetensors(path: str, content: bytes) -> dict[str, Tensor]:
    try:
        layout = Layout.parse(content)
    except CheckpointCorruptError as error:
        raise UsageError(f"{path}: {error}") from error
    unknown = [entry.name for entry in layout.entries if entry.dtype not in DTYPES]
    if unknown:
        raise UsageError(f"{path} must hold tensors PyTorch can train, but not {unknown[0]}.")
    buffer = memoryview(bytearray(content))
    return {entry.name: view_of(layout, buffer, entry) for entry in layout.entries}


def _read_state_dict(path: str, content: bytes) -> dict[str, Tensor]:
    try:
        found: Any = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"{path} must hold a state_dict, tensors by name, but holds other objects: a pickled "
            f"module can run any code when it is read, so it is not read ({reason:.200}). {_REMEDY}"
        ) from error
    if not isinstance(found, dict) or not all(isinstance(v, Tensor) for v in found.values()):
        what = f"a {type(found).__name__}"
        if isinstance(found, dict):
            odd = [str(key) for key, value in found.items() if not isinstance(value, Tensor)]
            what = f"a dict in which {', '.join(odd[:3])} is no tensor"
        raise UsageError(f"{path} must hold a state_dict, but holds {what}. {_REMEDY}")
    return dict(found)


def _open_archive(path: str, content: bytes, device: torch.device) -> nn.Module:
    for problem in _archive_problems(content):
        raise UsageError(
            f"{path} must be an archive of torch.export with tensors and a graph alone, but "
            f"{problem}: it is not read, since it could run code. {_REMEDY}"
        )
    with warnings.catch_warnings(), _quiet(logging.getLogger("torch.export")):
        warnings.simplefilter("ignore")
        try:
            program = torch.export.load(io.BytesIO(content))
        except MemoryError:
            raise
        except Exception as error:
            raise UsageError(
                f"{path} must be an archive of torch.export that this PyTorch ({torch.__version__})"
                " can read, but is damaged or of another version: export the model again."
            ) from error
        if device.type != "cpu":
            program = move_to_device_pass(program, device)
        # Not its guards: they are code in the archive.
        return program.module(check_guards=False)


@contextlib.contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """What it has to say comes in an error of ours."""
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _archive_problems(content: bytes) -> Iterator[str]:
    """What is in an archive that torch.export.load might take for code."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except zipfile.BadZipFile:
        yield "it is no archive"
        return
    with archive:
        names = archive.namelist()
        for name in names:
            if not _ARCHIVE_FILE.fullmatch(name.partition("/")[2]):
                yield f"it holds {name!r:.100}"
                return
        if len({name.partition("/")[0] for name in names}) != 1 or len(set(names)) < len(names):
            yield "its names are not those of one archive"
            return
        try:
            yield from _content_problems(archive)
        except (ValueError, TypeError, AttributeError, zipfile.BadZipFile) as error:
            yield f"it is damaged ({type(error).__name__})"


def _content_problems(archive: zipfile.ZipFile) -> Iterator[str]:
    if not any(name.endswith("/models/model.json") for name in archive.namelist()):
        yield "it has no graph"
    for name in archive.namelist():
        data = archive.read(name)
        if name.endswith("_config.json"):
            entries = json.loads(data).get("config", {}).values()
            if any(entry.get("use_pickle", True) for entry in entries):
                yield f"{name} has pickled values"
        elif name.endswith("/models/model.json"):
            if not all(map(_FORMULA.fullmatch, _formulas(json.loads(data)))):
                yield "a size in its graph is no plain formula"
        elif name.endswith("/sample_inputs/model.pt") and data:
            try:
                torch.load(io.BytesIO(data), weights_only=True)
            except Exception as error:
                yield f"its sample inputs are no tensors ({type(error).__name__})"


def _formulas(value: object) -> Iterator[str]:
    """All texts that PyTorch would evaluate as formulas."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "expr_str" and isinstance(item, str):
                yield item
            else:
                yield from _formulas(item)
    elif isinstance(value, list):
        for item in value:
            yield from _formulas(item)
