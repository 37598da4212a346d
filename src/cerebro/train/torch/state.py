"""PyTorch objects to and from one flat buffer, with at most one copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from cerebro.errors import UsageError
from cerebro.storage.tensors import Entry, Layout
from cerebro.train.codec import decode, encode
from cerebro.train.torch.buffer import CODES, DTYPES, view_of
from cerebro.train.visit import Allocate
from cerebro.types import Json

#: Tensors that are no part of the model.
_ELSEWHERE = ("optimizer.", "object.")
#: Tensors that an optimizer keeps in lists.
_INNER = "optimizer.~inner."


class Components:
    """Everything of a trial that has state: model, optimizer, scheduler, gradient scaler.

    Tensors are named `model.<parameter or buffer>`, `attr.<module>.<name>` for plain tensor
    attributes of modules, `optimizer.<parameter>.<slot>`, `optimizer.~inner.<n>` for tensors in
    lists and the like among the slots, and `~extra.<n>` for tensors that only the optimizer knows.
    """

    def __init__(self, model: nn.Module, optimizer: Any, scheduler: Any, scaler: Any) -> None:
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.scaler = scaler
        self._names: dict[int, str] = {id(p): n for n, p in model.named_parameters()}
        self._extra: list[Tensor] = []
        for param in self._optimized():
            if id(param) not in self._names:
                self._names[id(param)] = f"~extra.{len(self._extra)}"
                self._extra.append(param)
        self._built = [len(group["params"]) for group in optimizer.param_groups]
        self._plain = {
            f"attr.{path}.{name}": (module, name)
            for path, module in model.named_modules()
            for name, value in vars(module).items()
            if isinstance(value, Tensor) and not value.requires_grad
        }

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """What is trained, each once."""
        for name, param in self.model.named_parameters():
            yield f"model.{name}", param
        for index, tensor in enumerate(self._extra):
            yield f"~extra.{index}", tensor

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the state by name."""
        found = {name: param.detach() for name, param in self.parameters()}
        found.update((f"model.{n}", b.detach()) for n, b in self.model.named_buffers())
        for name, (module, attribute) in self._plain.items():
            value = getattr(module, attribute)
            if isinstance(value, Tensor):
                found[name] = value.detach()
        for param, slots in self.optimizer.state.items():
            for key, value in slots.items():
                if isinstance(value, Tensor):
                    found[f"optimizer.{self._name_of(param)}.{key}"] = value.detach()
        found.update(self._encoded_slots()[1])
        return found

    def bind(self, layout: Layout, buffer: memoryview, meta: Mapping[str, Json]) -> None:
        """Take over a state: on the CPU the live tensors become views of `buffer`."""
        self.bind_model(layout, buffer, meta)
        self._bind_optimizer(layout, buffer, meta)
        if self.scheduler is not None:
            self.scheduler.load_state_dict(decode(meta["scheduler"]))
        if self.scaler is not None and meta.get("scaler"):
            self.scaler.load_state_dict(decode(meta["scaler"]))

    def bind_model(self, layout: Layout, buffer: memoryview, meta: Mapping[str, Json]) -> None:
        """Take over the model's part of a state; the optimizer stays as it was built."""
        known: set[str] = set()
        for name, param in self.parameters():
            take(param, view_of(layout, buffer, _entry(layout, name, param)))
            known.add(name)
        for name, tensor in self.model.named_buffers():
            take(tensor, view_of(layout, buffer, _entry(layout, f"model.{name}", tensor)))
            known.add(f"model.{name}")
        for entry in layout.entries:
            if entry.name in self._plain:
                module, attribute = self._plain[entry.name]
                device = getattr(module, attribute).device
                setattr(module, attribute, view_of(layout, buffer, entry).to(device))
            elif entry.name not in known and not entry.name.startswith(_ELSEWHERE):
                raise _other_model(f"no {entry.name}", f"{entry.dtype} {list(entry.shape)}")
        frozen = set(cast("list[str]", meta["frozen"]))
        for name, param in self.model.named_parameters():
            if param.requires_grad == (name in frozen):
                param.requires_grad_(name not in frozen)
        for name, value in cast("dict[str, object]", decode(meta["extra"])).items():
            self.model.get_submodule(name).set_extra_state(value)

    def _bind_optimizer(self, layout: Layout, buffer: memoryview, meta: Mapping[str, Json]) -> None:
        def inner(number: Json) -> Tensor:
            return view_of(layout, buffer, layout[f"{_INNER}{number}"])

        slots = cast("dict[str, dict[str, object]]", decode(meta["slots"], inner))
        for param, key, entry in _slots_of(layout):
            slots.setdefault(param, {})[key] = view_of(layout, buffer, entry)
        groups = cast("list[dict[str, object]]", decode(meta["groups"]))
        self._add_groups(groups, cast("list[list[str]]", meta.get("added", [])))
        params = self._optimized()
        if any(p.device.type != "cpu" for p in params):
            index = {self._names[id(p)]: i for i, p in enumerate(params)}
            state = {index[name]: values for name, values in slots.items()}
            template = self.optimizer.state_dict()["param_groups"]
            merged = [{**old, **new} for old, new in zip(template, groups, strict=True)]
            self.optimizer.load_state_dict({"state": state, "param_groups": merged})
            return
        by_name = {self._names[id(p)]: p for p in params}
        for name, values in slots.items():
            owner = by_name[name]
            self.optimizer.state[owner] = {k: _like(owner, v) for k, v in values.items()}
        for group, saved in zip(self.optimizer.param_groups, groups, strict=True):
            _update(group, saved)

    def _add_groups(self, groups: list[dict[str, object]], added: list[list[str]]) -> None:
        """Add the param groups that were added in training; `added` names those of the last."""
        have, built = len(self.optimizer.param_groups), len(groups) - len(added)
        if built <= have < len(groups):
            by_name = dict(self.model.named_parameters())
            for saved, names in zip(groups[have:], added[have - built :], strict=True):
                params = [by_name[name] for name in names]
                self.optimizer.add_param_group({**saved, "params": params})
        if len(groups) != len(self.optimizer.param_groups):
            raise _other_model(f"{have} param groups", str(len(groups)))

    def meta(self) -> dict[str, Json]:
        """The part of the state that is not tensors."""
        groups = [
            {key: _plain(value) for key, value in group.items() if key != "params"}
            for group in self.optimizer.param_groups
        ]
        scheduler = None if self.scheduler is None else _without_code(self.scheduler.state_dict())
        scaler = None if self.scaler is None else self.scaler.state_dict()
        extra = {
            name: module.get_extra_state()
            for name, module in self.model.named_modules()
            if type(module).get_extra_state is not nn.Module.get_extra_state
        }
        return {
            "slots": self._encoded_slots()[0],
            "groups": encode(groups, "the optimizer's param_groups"),
            "added": self._added_groups(),
            "scheduler": encode(scheduler, "the scheduler's state"),
            "scaler": encode(scaler, "the gradient scaler's state"),
            "frozen": [n for n, p in self.model.named_parameters() if not p.requires_grad],
            "extra": encode(extra, "get_extra_state()"),
        }

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
        start = torch.frombuffer(buffer, dtype=torch.uint8).data_ptr() + layout.data_start
        moved = [
            (view_of(layout, buffer, layout[name]), tensor)
            for name, tensor in tensors.items()
            if tensor.data_ptr() != start + layout[name].offset
        ]
        if bound is not None and buffer is bound[1]:
            # Two tensors may have changed places inside the buffer: read both before writing.
            moved = [(target, tensor.clone()) for target, tensor in moved]
        for target, tensor in moved:
            target.copy_(tensor)
        return buffer

    def _encoded_slots(self) -> tuple[Json, dict[str, Tensor]]:
        """What the optimizer keeps that is no tensor, and the tensors inside of that."""
        slots = {
            self._name_of(param): {k: v for k, v in values.items() if not isinstance(v, Tensor)}
            for param, values in self.optimizer.state.items()
        }
        tensors: dict[str, Tensor] = {}

        def inner(value: object) -> Json | None:
            if not isinstance(value, Tensor) or value.layout is not torch.strided:
                return None
            tensors[f"{_INNER}{len(tensors)}"] = value.detach()
            return len(tensors) - 1

        kept = {name: values for name, values in slots.items() if values}
        return encode(kept, "the optimizer's state", inner), tensors

    def _added_groups(self) -> list[Json]:
        """The names of the parameters of each group that `optimizer()` did not make."""
        groups, built = self.optimizer.param_groups, self._built
        if [len(group["params"]) for group in groups[: len(built)]] != built:
            raise UsageError(
                "the optimizer's param_groups must stay as optimizer() makes them, apart from "
                "settings and groups added by add_param_group, but some have other parameters now."
            )
        added: list[Json] = []
        for group in groups[len(built) :]:
            if not all(id(param) in self._names for param in group["params"]):
                raise UsageError(
                    "add_param_group must add parameters that the model has from the start, but "
                    "added a group with others, which the next visit could not build again: make "
                    "them in model() and freeze them until they are needed."
                )
            added.append([self._names[id(param)] for param in group["params"]])
        return added

    def _optimized(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def _name_of(self, param: object) -> str:
        name = self._names.get(id(param))
        if name is None:
            raise UsageError(
                "an optimizer's state must belong to parameters of its param_groups, but has a "
                f"key of type {type(param).__name__} that is none."
            )
        return name


@lru_cache(maxsize=64)
def _slots_of(layout: Layout) -> list[tuple[str, str, Entry]]:
    """Parameter, key and entry of every tensor that belongs to the optimizer."""
    found = []
    for entry in layout.entries:
        if entry.name.startswith("optimizer.") and not entry.name.startswith(_INNER):
            param, _, key = entry.name.removeprefix("optimizer.").rpartition(".")
            found.append((param, key, entry))
    return found


def take(tensor: Tensor, view: Tensor) -> None:
    """Give a live tensor the values of a view, by becoming it where that keeps its strides."""
    if tensor.is_cpu and (tensor.is_contiguous() or _is_expanded(tensor)):
        tensor.data = view
    else:
        with torch.no_grad():
            tensor.copy_(view)


def _is_expanded(tensor: Tensor) -> bool:
    dims = zip(tensor.stride(), tensor.shape, strict=True)
    return any(stride == 0 and size > 1 for stride, size in dims)


def _like(param: Tensor, slot: object) -> object:
    """A slot with the strides of its parameter, where those are not the plain ones."""
    if not isinstance(slot, Tensor) or param.is_contiguous() or slot.shape != param.shape:
        return slot
    return torch.empty_like(param, dtype=slot.dtype, requires_grad=False).copy_(slot)


def _update(group: dict[str, object], saved: dict[str, object]) -> None:
    for key, value in saved.items():
        old = group.get(key)
        if isinstance(old, Tensor):
            old.fill_(cast(float, value))
        else:
            group[key] = value


def _other_model(expected: str, got: str) -> UsageError:
    return UsageError(
        f"the task must build the model that was trained, but builds one with {expected}, where "
        f"the state has {got}. model() and optimizer() must give the same for the same params."
    )


def _entry(layout: Layout, name: str, tensor: Tensor) -> Entry:
    entry = layout[name] if name in layout else None  # noqa: SIM401 - a Layout is no dict
    if entry is None or entry.shape != tuple(tensor.shape) or DTYPES[entry.dtype] != tensor.dtype:
        got = "nothing" if entry is None else f"{entry.dtype} {list(entry.shape)}"
        raise _other_model(f"{name} as {tensor.dtype} {list(tensor.shape)}", got)
    return entry


def _code(name: str, tensor: Tensor) -> str:
    code = CODES.get(tensor.dtype)
    if code is None:
        raise UsageError(
            f"state tensors must have one of the dtypes {', '.join(DTYPES)}, but {name} is "
            f"{tensor.dtype}."
        )
    return code


def _plain(value: object) -> object:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def _without_code(value: object) -> object:
    """Scheduler state less what the task's own code makes again: functions."""
    if isinstance(value, dict):
        return type(value)({k: _without_code(v) for k, v in value.items() if not callable(v)})
    if isinstance(value, list):
        return [_without_code(item) for item in value]
    return _plain(value)
