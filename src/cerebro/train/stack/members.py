"""The members of a stack as the task sees them: one model for all, an optimizer for each."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from cerebro.errors import UsageError
from cerebro.task import Task
from cerebro.train.codec import decode
from cerebro.train.stack.optim import Features, Rule, features_of, numbers_of, rule_of
from cerebro.train.stack.structure import numeric, optimizer_structure, structure_of
from cerebro.train.torch.build import Builder
from cerebro.train.torch.precision import amp_of
from cerebro.train.torch.state import Components
from cerebro.types import Json, Params


class Members:
    """Trials of one structure: they share a model without weights, and own their optimizers.

    The optimizers and schedulers are the user's. They are asked for their numbers and never step
    on tensors; the schedulers do step.
    """

    def __init__(
        self, builder: Builder, task: Task, seed: int, trials: Sequence[int], all: Sequence[Params]
    ) -> None:
        self.trials = tuple(trials)
        #: Training steps that the optimizers' numbers belong to.
        self.steps = 0
        self.params = tuple(all)
        self.model = builder.skeleton(seed, trials[0], all[0])
        self._by_batch = task.scheduler_step == "batch"
        self.parts: list[Components] = []
        for trial, params in zip(trials, all, strict=True):
            optimizer, scheduler = builder.optimizer(self.model, seed, trial, params)
            self.parts.append(Components(self.model, optimizer, scheduler, None))
        self.rule = cast(Rule, rule_of(self.parts[0].optimizer))
        self.names = {id(param): name for name, param in self.model.named_parameters()}
        #: Parameters and buffers, each once.
        self.model_names = [
            *(name for name, _ in self.model.named_parameters()),
            *(name for name, _ in self.model.named_buffers()),
        ]
        groups = [group for part in self.parts for group in part.optimizer.param_groups]
        self.features: Features = features_of(self.rule, groups)
        amp = amp_of(task, all[0])
        self._structure: Hashable = (
            structure_of(self.model),
            optimizer_structure(self.model, self.parts[0].optimizer, None),
            amp,
        )
        self._metas: list[dict[str, Json]] | None = None

    @property
    def key(self) -> Hashable:
        """Equal for stacks that differ in numbers alone, perhaps of members."""
        return self._structure, self.features

    def __len__(self) -> int:
        return len(self.params)

    def padded(self, width: int) -> Members:
        """The same with copies of the first member behind the others."""
        wide = copy.copy(self)
        wide.params = (*self.params, *[self.params[0]] * (width - len(self)))
        return wide

    @property
    def trained(self) -> dict[str, int]:
        """The parameters that the optimizers update, and the group each is in."""
        groups = self.parts[0].optimizer.param_groups
        return {
            self.names[id(param)]: number
            for number, group in enumerate(groups)
            for param in group["params"]
            if param.requires_grad
        }

    def shapes(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Every tensor of one member's state by name, as its plain state has it."""
        model = [*self.model.named_parameters(), *self.model.named_buffers()]
        found = {f"model.{name}": (tensor.dtype, tuple(tensor.shape)) for name, tensor in model}
        for name in self.trained:
            dtype, shape = found[f"model.{name}"]
            for slot in self.rule.slots(self.features):
                found[f"optimizer.{name}.{slot}"] = dtype, shape
            if self.rule.has_steps:
                found[f"optimizer.{name}.step"] = torch.float32, ()
        return found

    def vectors(self, names: Sequence[str], device: torch.device) -> dict[str, Tensor]:
        """Params as tensors with one number for each member."""
        kinds = numeric(self.params)
        return {
            name: torch.tensor(
                [params[name] for params in self.params],
                dtype=torch.int64 if kinds[name] is int else torch.float32,
                device=device,
            )
            for name in names
        }

    def adopt(self, names: Iterable[str]) -> None:
        """Keep what a state has of members that may have left: it goes on being updated."""
        if any(name.endswith(".momentum_buffer") for name in names):
            self.features |= {"momentum"}

    def restore(self, metas: Sequence[Mapping[str, Json]]) -> None:
        """Give optimizers and schedulers the numbers they had."""
        for part, meta in zip(self.parts, metas, strict=True):
            groups = cast("list[dict[str, Any]]", decode(meta["groups"]))
            for group, saved in zip(part.optimizer.param_groups, groups, strict=True):
                group.update(saved)
            if part.scheduler is not None:
                part.scheduler.load_state_dict(decode(meta["scheduler"]))
        self._metas = None

    def numbers(self) -> list[dict[str, list[float]]]:
        """Of each param group: number -> one for each member."""
        found: list[dict[str, list[float]]] = []
        for index in range(len(self.parts[0].optimizer.param_groups)):
            rows = [numbers_of(self.rule, p.optimizer.param_groups[index]) for p in self.parts]
            found.append({name: [row[name] for row in rows] for name in rows[0]})
        return found

    def rates(self, steps: int) -> list[list[list[float]]] | None:
        """Learning rates [step][group][member] where schedulers go by batches; steps them."""
        if not self._by_batch or all(part.scheduler is None for part in self.parts):
            return None
        found = [
            [[0.0] * len(self.parts) for _ in self.parts[0].optimizer.param_groups]
            for _ in range(steps)
        ]
        before = self.numbers()
        for member, part in enumerate(self.parts):
            groups = part.optimizer.param_groups
            for step in range(steps):
                for index, group in enumerate(groups):
                    found[step][index][member] = float(group["lr"])
                # PyTorch warns of schedulers that step before their optimizers: these never do.
                part.optimizer._opt_called = True
                if part.scheduler is not None:
                    part.scheduler.step()
        self._metas = None
        for old, new in zip(before, self.numbers(), strict=True):
            moved = [name for name in old if name != "lr" and old[name] != new[name]]
            if moved:
                raise UsageError(
                    f"a scheduler of a stack moves learning rates alone with each batch, but this "
                    f"one moves {', '.join(moved)}."
                )
        return found

    def end_epoch(self, losses: Sequence[float]) -> None:
        """Step the schedulers that go by epochs."""
        if self._by_batch:
            return
        for part, loss in zip(self.parts, losses, strict=True):
            if part.scheduler is None:
                continue
            part.optimizer._opt_called = True
            if isinstance(part.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                part.scheduler.step(loss)
            else:
                part.scheduler.step()
            self._metas = None

    def metas(self) -> list[dict[str, Json]]:
        """What of each member's state is not tensors."""
        if self._metas is None:
            self._metas = [part.meta() for part in self.parts]
            for meta in self._metas:
                # The optimizers hold no tensors here; what they made at birth is in the stack.
                meta["slots"] = {}
        return self._metas

    def initial(self, member: int, model: nn.Module) -> dict[str, Tensor]:
        """The tensors of a member that begins, as far as they are not zeros."""
        found = {f"model.{name}": param.detach() for name, param in model.named_parameters()}
        found |= {f"model.{name}": buffer for name, buffer in model.named_buffers()}
        for param, slots in self.parts[member].optimizer.state.items():
            for slot, value in slots.items():
                if isinstance(value, Tensor):
                    found[f"optimizer.{self.names[id(param)]}.{slot}"] = value
        return found
