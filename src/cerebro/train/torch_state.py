"""PyTorch objects to and from one flat buffer, with at most one copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cerebro.errors import UsageError
from cerebro.storage.tensors import Entry, Layout
from cerebro.train.codec import decode, encode
from cerebro.train.visit import Allocate, State
from cerebro.types import Json

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}


def view_of(layout: Layout, buffer: memoryview, entry: Entry) -> Tensor:
    """The tensor that lies at `entry` in `buffer`, without a copy."""
    dtype = DTYPES[entry.dtype]
    if entry.nbytes == 0:
        return torch.empty(entry.shape, dtype=dtype)
    count, offset = entry.nbytes // dtype.itemsize, layout.data_start + entry.offset
    return torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset).view(entry.shape)


class Components:
    """Everything of a trial that has state: model, optimizer, scheduler, gradient scaler.

    Names: `model.<parameter or buffer>`, `optimizer.<parameter>.<slot>`, `extra.<n>` for tensors
    that only the optimizer knows.
    """

    def __init__(self, model: nn.Module, optimizer: Any, scheduler: Any, scaler: Any) -> None:
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.scaler = scaler
        self._names: dict[int, str] = {id(p): n for n, p in model.named_parameters()}
        self._extra: list[Tensor] = []
        for group in optimizer.param_groups:
            for param in group["params"]:
                if id(param) not in self._names:
                    self._names[id(param)] = f"extra.{len(self._extra)}"
                    self._extra.append(param)

    def model_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters and buffers, each once, non-persistent buffers included."""
        for name, param in self.model.named_parameters():
            yield f"model.{name}", param.detach()
        for name, buffer in self.model.named_buffers():
            yield f"model.{name}", buffer
        for index, tensor in enumerate(self._extra):
            yield f"extra.{index}", tensor.detach()

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the state by name."""
        found = dict(self.model_tensors())
        for param, slots in self.optimizer.state.items():
            for key, value in slots.items():
                if isinstance(value, Tensor):
                    found[f"optimizer.{self._names[id(param)]}.{key}"] = value.detach()
        return found

    def bind(self, layout: Layout, buffer: memoryview, meta: Mapping[str, Json]) -> None:
        """Take over a state: on the CPU the live tensors become views of `buffer`."""
        for name, tensor in self.model_tensors():
            view = view_of(layout, buffer, _entry(layout, name, tensor))
            if tensor.device.type == "cpu" and tensor.is_contiguous():
                _rebind(self._owner(name), view)
            else:
                tensor.copy_(view)
        self._bind_optimizer(layout, buffer, meta)
        if self.scheduler is not None:
            self.scheduler.load_state_dict(decode(meta["scheduler"]))
        if self.scaler is not None and meta.get("scaler"):
            self.scaler.load_state_dict(decode(meta["scaler"]))
        frozen = set(meta["frozen"])  # type: ignore[arg-type]
        for name, param in self.model.named_parameters():
            param.requires_grad_(name not in frozen)
        self._load_extra_state(meta)

    def _owner(self, name: str) -> Tensor:
        kind, _, rest = name.partition(".")
        if kind == "extra":
            return self._extra[int(rest)]
        path, _, leaf = rest.rpartition(".")
        owner: Tensor = getattr(self.model.get_submodule(path), leaf)
        return owner

    def _bind_optimizer(self, layout: Layout, buffer: memoryview, meta: Mapping[str, Json]) -> None:
        slots: dict[str, dict[str, object]] = decode(meta["slots"])  # type: ignore[assignment]
        for entry in layout.entries:
            if entry.name.startswith("optimizer."):
                param, _, key = entry.name.removeprefix("optimizer.").rpartition(".")
                slots.setdefault(param, {})[key] = view_of(layout, buffer, entry)
        groups = decode(meta["groups"])
        params = [p for group in self.optimizer.param_groups for p in group["params"]]
        if any(p.device.type != "cpu" for p in params):
            index = {self._names[id(p)]: i for i, p in enumerate(params)}
            state = {index[name]: values for name, values in slots.items()}
            template = self.optimizer.state_dict()["param_groups"]
            merged = [{**old, **new} for old, new in zip(template, groups, strict=True)]  # type: ignore[call-overload]
            self.optimizer.load_state_dict({"state": state, "param_groups": merged})
            return
        by_name = {self._names[id(p)]: p for p in params}
        for name, values in slots.items():
            self.optimizer.state[by_name[name]] = values
        for group, saved in zip(self.optimizer.param_groups, groups, strict=True):  # type: ignore[call-overload]
            _update(group, saved)

    def meta(self) -> dict[str, Json]:
        """The part of the state that is not tensors."""
        slots = {
            self._names[id(param)]: {k: v for k, v in values.items() if not isinstance(v, Tensor)}
            for param, values in self.optimizer.state.items()
        }
        groups = [
            {key: _plain(value) for key, value in group.items() if key != "params"}
            for group in self.optimizer.param_groups
        ]
        scheduler = None if self.scheduler is None else _without_code(self.scheduler.state_dict())
        scaler = None if self.scaler is None else self.scaler.state_dict()
        return {
            "slots": encode({k: v for k, v in slots.items() if v}, "the optimizer's state"),
            "groups": encode(groups, "the optimizer's param_groups"),
            "scheduler": encode(scheduler, "the scheduler's state"),
            "scaler": encode(scaler, "the gradient scaler's state"),
            "frozen": [n for n, p in self.model.named_parameters() if not p.requires_grad],
            "extra": encode(self._extra_state(), "get_extra_state()"),
        }

    def _extra_state(self) -> dict[str, object]:
        return {
            name: module.get_extra_state()
            for name, module in self.model.named_modules()
            if type(module).get_extra_state is not nn.Module.get_extra_state
        }

    def _load_extra_state(self, meta: Mapping[str, Json]) -> None:
        extra: dict[str, object] = decode(meta["extra"])  # type: ignore[assignment]
        for name, value in extra.items():
            self.model.get_submodule(name).set_extra_state(value)

    def save(self, allocate: Allocate, bound: tuple[Layout, memoryview] | None) -> memoryview:
        """The buffer that holds the state now; tensors already lying in `bound` are not copied."""
        tensors = self.tensors()
        entries = [(name, _code(name, t), tuple(t.shape)) for name, t in tensors.items()]
        if bound is None or {entry[:3] for entry in bound[0].entries} != set(entries):
            layout = Layout.plan(entries)
            buffer = allocate(layout.total_bytes)
            header = layout.header_bytes()
            buffer[: len(header)] = header
        else:
            layout, buffer = bound
        for name, tensor in tensors.items():
            target = view_of(layout, buffer, layout[name])
            if target.data_ptr() != tensor.data_ptr():
                target.copy_(tensor)
        return buffer


def copy_state(state: State, allocate: Allocate) -> tuple[Layout, memoryview]:
    """The one copy of a hop: the receiver trains in its own copy, the sender's stays as it was."""
    layout = Layout.parse(state.buffer)
    buffer = allocate(layout.total_bytes)
    size = layout.total_bytes
    torch.frombuffer(buffer, dtype=torch.uint8, count=size).copy_(
        torch.frombuffer(state.buffer, dtype=torch.uint8, count=size)
    )
    return layout, buffer


def _rebind(tensor: Tensor, view: Tensor) -> None:
    tensor.data = view


def _update(group: dict[str, object], saved: dict[str, object]) -> None:
    for key, value in saved.items():
        old = group.get(key)
        if isinstance(old, Tensor):
            old.fill_(value)  # type: ignore[call-overload]
        else:
            group[key] = value


def _entry(layout: Layout, name: str, tensor: Tensor) -> Entry:
    entry = layout[name] if name in layout else None  # noqa: SIM401 - a Layout is no dict
    if entry is None or entry.shape != tuple(tensor.shape) or DTYPES[entry.dtype] != tensor.dtype:
        got = "nothing" if entry is None else f"{entry.dtype} {list(entry.shape)}"
        raise UsageError(
            f"the checkpoint must hold {name} as {tensor.dtype} {list(tensor.shape)}, but holds "
            f"{got}. The task builds another model than the one that was trained."
        )
    return entry


def _code(name: str, tensor: Tensor) -> str:
    code = _CODES.get(tensor.dtype)
    if code is None:
        raise UsageError(
            f"state tensors must have one of the dtypes {', '.join(DTYPES)}, but {name} is "
            f"{tensor.dtype}."
        )
    return code


def _plain(value: object) -> object:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def _without_code(value: object) -> object:
    """Scheduler state less what the task's own code makes again: functions and tensors of one."""
    if isinstance(value, dict):
        items = {k: _without_code(v) for k, v in value.items() if not callable(v)}
        return type(value)(items)
    if isinstance(value, list):
        return [_without_code(item) for item in value]
    return _plain(value)
