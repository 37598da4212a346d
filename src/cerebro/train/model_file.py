"""Files with a model or its weights: what they are, and the params they were trained with."""

from __future__ import annotations

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cerebro.errors import UsageError
from cerebro.storage.disk import Disk
from cerebro.storage.tensors import MAX_HEADER_BYTES
from cerebro.train.score.calls import FileWeights, Member
from cerebro.types import Json, Params

SAFETENSORS = "safetensors"
ONNX = "onnx"
TORCH_EXPORT = "torch-export"
KERAS = "keras"
#: What a trial can be exported to -> the ending of the file.
ENDINGS: Mapping[str, str] = {
    SAFETENSORS: ".safetensors",
    ONNX: ".onnx",
    TORCH_EXPORT: ".pt2",
    KERAS: ".keras",
}
#: Endings of files that can be loaded again.
LOADABLE = (".safetensors", ".pt", ".pth", ".pt2", ".h5", ".keras")
#: In an archive of torch.export.
EXTRA_FILE = "cerebro.json"
_CHECKPOINT = re.compile(r"v\d{6,}-a\d+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportCall:
    """How a model becomes a file."""

    #: One of `ENDINGS`.
    to: str
    #: The columns of a batch that the model's forward takes, in order.
    columns: tuple[str, ...]
    #: What the file says about itself: "params" (JSON), "task", "task_digest", "trial", "run".
    about: Mapping[str, str] = field(default_factory=dict)


def file_member(path: str | os.PathLike[str], params: Mapping[str, object] | None) -> Member:
    """A file as one of the models to score.

    Its params are those given; else those that it carries: of an exported file in the file itself,
    of a checkpoint in `params.json` of its trial, of any other in a JSON file beside it, of the
    same name, under "params".
    """
    where = Path(path)
    if where.suffix not in LOADABLE:
        raise UsageError(
            f"a model must be a {', '.join(LOADABLE[:-1])} or {LOADABLE[-1]} file, but got {where}."
        )
    if not where.is_file():
        raise UsageError(f"there is no file {where}.")
    manifest = _manifest_beside(where)
    meta = None if manifest is None else manifest.get("meta")
    if isinstance(meta, dict) and "members" in meta:
        raise UsageError(
            f"{where} holds a whole stack of trials: name the trial instead, such as 't0003'."
        )
    carried = _params_of(where, manifest) if params is None else _given_params(params)
    if carried is None:
        raise UsageError(
            f"the params that {where} was trained with must be known, but neither the file nor "
            f"{where.with_suffix('.json').name} beside it has them: pass params={{...}}."
        )
    with where.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return Member(
        name=where.stem,
        params=carried,
        weights=FileWeights(
            path=str(where.absolute()),
            sha256=sha256,
            meta=meta if isinstance(meta, dict) else None,
        ),
        bytes=where.stat().st_size,
    )


def _manifest_beside(path: Path) -> dict[str, Any] | None:
    """What the manifest of a checkpoint says, where the file is one of ours."""
    if not _CHECKPOINT.fullmatch(path.stem) or path.suffix != ".safetensors":
        return None
    found = _read_json(path.with_suffix(".json"))
    return found if found is not None and "meta" in found else None


def _params_of(path: Path, manifest: object) -> Params | None:
    if manifest is not None:
        return _read_json(path.parent.parent / "params.json")
    text: str | None = None
    if path.suffix == ".safetensors":
        text = read_metadata(path).get("params")
    elif path.suffix == ".pt2":
        text = _archive_about(path).get("params")
    if text is not None:
        try:
            return _as_params(json.loads(text), path)
        except (ValueError, RecursionError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(
                f"the params in {path} must be JSON, but are {text!r:.80}: pass params={{...}}."
            ) from error
    beside = path.with_suffix(".json")
    found = _read_json(beside)
    if found is not None and "params" in found:
        return _as_params(found["params"], beside)
    # Such an archive is the model itself.
    return {} if path.suffix == ".pt2" else None


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata in the header of a safetensors file; the tensors are not looked at."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise UsageError(f"{path} is not a safetensors file: its header is too long.")
        text = file.read(length)
    try:
        header = json.loads(text)
        found = header.get("__metadata__", {})
        return {str(key): str(value) for key, value in found.items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path} is not a safetensors file: its header is no JSON.") from error


def _archive_about(path: Path) -> dict[str, str]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [n for n in archive.namelist() if n.endswith(f"/extra/{EXTRA_FILE}")]
            found = json.loads(archive.read(names[0])) if names else {}
            return {str(key): str(value) for key, value in found.items()}
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise UsageError(f"{path} is not an archive of torch.export: {error}.") from error
    except (AttributeError, RecursionError, NotImplementedError, RuntimeError) as error:
        raise UsageError(f"{path} must have a mapping in {EXTRA_FILE}, but has none.") from error


def _read_json(path: Path) -> dict[str, Json] | None:
    if not path.is_file():
        return None
    try:
        found = json.loads(Disk().read(str(path)))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} must be JSON, but is not: {error}.") from error
    return found if isinstance(found, dict) else None


def _given_params(params: Mapping[str, object]) -> Params:
    """The params that a caller gave, as they are in a file: NumPy's numbers are numbers."""
    if not isinstance(params, Mapping) or not all(isinstance(name, str) for name in params):
        raise UsageError(f"params must be a mapping of values by name, but got {params!r:.80}.")
    return {name: _given_value(value, name) for name, value in params.items()}


def _given_value(value: object, name: str) -> Json:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_given_value(item, name) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _given_value(item, name) for key, item in value.items()}
    raise UsageError(
        f"params must be numbers, text, lists and mappings, but {name!r} is a "
        f"{type(value).__name__}."
    )


def _as_params(value: object, where: Path) -> Params:
    if not isinstance(value, dict):
        raise UsageError(f"the params in {where} must be a mapping, but are {value!r:.80}.")
    return value
