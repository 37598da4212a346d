"""PyTorch: a trained model as safetensors, as an archive of torch.export, or as ONNX."""

from __future__ import annotations

import io
import json
import logging
import re
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from cerebro.data import Shard
from cerebro.errors import MissingDependencyError, UsageError
from cerebro.storage.tensors import Layout
from cerebro.track.text import clean
from cerebro.train.model_file import EXTRA_FILE, ONNX, SAFETENSORS, ExportCall
from cerebro.train.torch.batches import TorchBatches
from cerebro.train.torch.buffer import CODES, view_of

#: Rows that a graph is traced with; more than one, so that their number is no constant of it.
_ROWS = 4
#: What colours a terminal.
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def export_model(
    call: ExportCall, model: nn.Module, batches: TorchBatches, shard: Shard | None
) -> bytes:
    """The content of the file; a graph takes any number of rows."""
    if call.to == SAFETENSORS:
        return _to_safetensors(call, model)
    if shard is None:
        raise UsageError(
            f"{call.to} traces the model with rows of the run's data, but there are none."
        )
    if call.to == ONNX and find_spec("onnxscript") is None:
        raise MissingDependencyError(
            "ONNX needs onnxscript, which is not installed: pip install 'cerebro[onnx]'."
        )
    inputs = _inputs(call.columns, batches, shard)
    dim = torch.export.Dim("batch")
    shapes = tuple({0: dim} for _ in inputs)
    try:
        # What their own code is deprecated for is nothing that the user could change.
        with warnings.catch_warnings(), _quiet(), torch.no_grad():
            warnings.simplefilter("ignore")
            # What cannot be computed may be traced all the same, and says more clearly why not.
            model(*inputs)
            return (_to_onnx if call.to == ONNX else _to_archive)(call, model, inputs, shapes)
    except Exception as error:
        given = ", ".join(f"{n} ({v.dtype})" for n, v in zip(call.columns, inputs, strict=True))
        raise UsageError(
            f"the module must take {given} as in the data, and torch.export must be able to trace "
            f"it, but: {_reason(error)}. Let its forward do what is done to inputs elsewhere "
            "(casting, scaling), or export to safetensors."
        ) from error


def _to_safetensors(call: ExportCall, model: nn.Module) -> bytes:
    state = model.state_dict()
    odd = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if odd:
        raise UsageError(
            f"safetensors holds tensors alone, but the model has {odd[0]} (get_extra_state). Its "
            "checkpoint has all of it: use the trial's name instead of a file."
        )
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    layout = Layout.plan(
        [(name, _code(name, t), tuple(t.shape)) for name, t in tensors.items()],
        {"format": "pt", **call.about},
    )
    content = memoryview(bytearray(layout.total_bytes))
    content[: layout.data_start] = layout.header_bytes()
    for entry in layout.entries:
        view_of(layout, content, entry).copy_(tensors[entry.name])
    return bytes(content)


def _to_archive(
    call: ExportCall, model: nn.Module, inputs: tuple[Tensor, ...], shapes: Any
) -> bytes:
    program = torch.export.export(model, inputs, dynamic_shapes=shapes)
    out = io.BytesIO()
    torch.export.save(program, out, extra_files={EXTRA_FILE: json.dumps(dict(call.about))})
    return out.getvalue()


def _to_onnx(call: ExportCall, model: nn.Module, inputs: tuple[Tensor, ...], shapes: Any) -> bytes:
    program = torch.onnx.export(
        model,
        inputs,
        dynamo=True,
        dynamic_shapes=shapes,
        input_names=list(call.columns),
        verbose=False,
    )
    if program is None:
        raise UsageError("torch.onnx.export gave no program.")
    proto = program.model_proto
    for name, value in call.about.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = f"cerebro.{name}", value
    content: bytes = proto.SerializeToString()
    return content


def _inputs(columns: Sequence[str], batches: TorchBatches, shard: Shard) -> tuple[Tensor, ...]:
    batch, _ = next(batches.in_order(shard, _ROWS))
    missing = [name for name in columns if not isinstance(batch.get(name), Tensor)]
    if missing:
        known = [name for name, value in batch.items() if isinstance(value, Tensor)]
        raise UsageError(
            f"the columns that the model's forward takes must be tensors of the data, but "
            f"{missing[0]!r} is none of {', '.join(known)}: name them with columns=[...] "
            "(--columns)."
        )
    found = [batch[name].clone() for name in columns]
    # Of a single row PyTorch would take it that there is never more.
    return tuple(v if len(v) > 1 else torch.cat([v, v]) for v in found)


def _reason(error: BaseException) -> str:
    """The first line of what went wrong in the beginning; exporters wrap it in advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = _ESCAPES.sub("", str(error)).strip().splitlines()
    return clean(f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(" .:"))


def _code(name: str, tensor: Tensor) -> str:
    code = CODES.get(tensor.dtype)
    if code is None:
        raise UsageError(f"safetensors has no type for {tensor.dtype}, which {name} is of.")
    return code


class _quiet:
    """Keeps the exporters' own log off the terminal."""

    def __enter__(self) -> None:
        self._before = logging.root.manager.disable
        logging.disable(logging.ERROR)

    def __exit__(self, *exc: object) -> None:
        logging.disable(self._before)
