"""Small architectures, each with a task, for comparing stacked with plain training."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from cerebro import Task
from cerebro.data import Shard
from cerebro.data.schema import Column, Kind
from cerebro.storage.stacked import take_member
from cerebro.storage.tensors import Layout
from cerebro.task import ParamDict
from cerebro.train.torch.buffer import view_of
from cerebro.train.torch.framework import TorchFramework
from cerebro.train.visit import MemberReport, Stacking, State, VisitCall
from cerebro.types import Split

CLASSES = 5
BATCH = 16
#: A visit of 13 steps, the last of them on a smaller batch; four visits make 52.
ROWS = 12 * BATCH + 7
VISITS = 4


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


class Text(nn.Module):
    """Tokens to classes through an embedding and something that reads sequences."""

    def __init__(self, reader: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.reader = reader
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        read = self.reader(self.embed(tokens))
        return self.head((read[0] if isinstance(read, tuple) else read).mean(1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attend(x, x, x, need_weights=False)[0]


class Tied(nn.Module):
    """One weight used twice, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(16, 8, bias=False)
        self.scale = nn.Parameter(torch.full((16,), 0.5), requires_grad=False)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        code = torch.tanh(self.encode(x * self.scale))
        return self.head(functional.linear(code, self.encode.weight.t()))


class Unused(nn.Module):
    """A parameter that does not bear on the loss: PyTorch's optimizers leave it alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, CLASSES)
        self.spare = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def _cnn(*norms: nn.Module, is_smooth: bool = False) -> nn.Module:
    activate: type[nn.Module] = nn.GELU if is_smooth else nn.ReLU
    pool: type[nn.Module] = nn.AvgPool2d if is_smooth else nn.MaxPool2d
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1),
        norms[0],
        activate(),
        pool(2),
        nn.Conv2d(8, 8, 3, stride=2, padding=1),
        norms[1],
        activate(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )


FLAT, IMAGE, TOKENS, SIGNAL = (16,), (2, 8, 8), "tokens", (3, 24)

#: Name -> model and the shape of its input.
ARCHITECTURES: Mapping[str, tuple[Callable[[], nn.Module], Any]] = {
    "logistic": (lambda: nn.Linear(16, CLASSES), FLAT),
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, CLASSES)), FLAT),
    "deep": (
        lambda: nn.Sequential(
            nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 12), nn.SiLU(), nn.Linear(12, CLASSES)
        ),
        FLAT,
    ),
    "batch_norm": (
        lambda: nn.Sequential(
            nn.Linear(16, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, CLASSES)
        ),
        FLAT,
    ),
    "dropout": (
        lambda: nn.Sequential(
            nn.Linear(16, 24), nn.ReLU(), nn.Dropout(0.3), nn.Linear(24, CLASSES)
        ),
        FLAT,
    ),
    "residual": (lambda: nn.Sequential(Residual(16), Residual(16), nn.Linear(16, CLASSES)), FLAT),
    "tied": (Tied, FLAT),
    "unused": (Unused, FLAT),
    "cnn": (lambda: _cnn(nn.Identity(), nn.Identity()), IMAGE),
    "cnn_batch_norm": (lambda: _cnn(nn.BatchNorm2d(8), nn.BatchNorm2d(8)), IMAGE),
    # With kinks a perturbation of its weights by 1e-7 grows to 6e-3 within these steps.
    "cnn_group_norm": (
        lambda: _cnn(nn.GroupNorm(2, 8), nn.GroupNorm(4, 8), is_smooth=True),
        IMAGE,
    ),
    "conv1d": (
        lambda: nn.Sequential(
            nn.Conv1d(3, 6, 5), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(),
            nn.Linear(6, CLASSES),
        ),
        SIGNAL,
    ),
    "depthwise": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 8, 1), nn.ELU(),
            nn.AvgPool2d(2), nn.Flatten(), nn.Linear(32, CLASSES),
        ),
        IMAGE,
    ),
    "embedding": (lambda: Text(nn.Identity()), TOKENS),
    "attention": (lambda: Text(Attention()), TOKENS),
    "transformer": (
        lambda: Text(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)),
        TOKENS,
    ),
    "gru": (lambda: Text(nn.GRU(8, 8, batch_first=True)), TOKENS),
    "lstm": (lambda: Text(nn.LSTM(8, 8, batch_first=True)), TOKENS),
}  # fmt: skip


def sgd(model: nn.Module, params: Mapping[str, Any]) -> Any:
    return torch.optim.SGD(
        model.parameters(),
        lr=params["lr"],
        momentum=params["momentum"],
        weight_decay=params["decay"],
    )


class Zoo(Task):
    """A model of the zoo, an optimizer, and params that the loss uses as numbers."""

    def __init__(
        self, make: Callable[[], nn.Module], optimizer: Callable[..., Any] = sgd, **settings: Any
    ) -> None:
        self._make = make
        self._optimizer = optimizer
        for name, value in settings.items():
            setattr(self, name, value)

    def model(self, params):
        return self._make()

    def optimizer(self, model, params):
        return self._optimizer(model, params)

    def loss(self, model, batch, params):
        loss = functional.cross_entropy(model(batch["x"]), batch["y"])
        return loss * params.get("weight", 1.0)

    def metrics(self, model, batch, params):
        return {"accuracy": (model(batch["x"]).argmax(1) == batch["y"]).float().mean()}


class Metered(Zoo):
    """Tells its meter how good each training batch was, before the step on it."""

    def told(self, logits, batch, params):
        return {"accuracy": (logits.argmax(1) == batch["y"]).float().mean()}

    def loss(self, model, batch, params):
        logits = model(batch["x"])
        if self.meter is not None:
            self.meter.add(self.told(logits, batch, params), len(logits))
        return functional.cross_entropy(logits, batch["y"]) * params["weight"]


class Momentary(Metered):
    """It tells numbers that are no longer the same at the next step, or for the next member."""

    def optimizer(self, model, params):
        self.rate = params["lr"]
        return super().optimizer(model, params)

    def told(self, logits, batch, params):
        more = {"rate": self.rate, "tensor": torch.tensor(self.rate)}
        return {**super().told(logits, batch, params), **more}


def make_params(members: int) -> list[ParamDict]:
    """Every member has its own numbers."""
    return [
        ParamDict(
            lr=0.02 * (1 + k), momentum=0.9 - 0.3 * k, decay=1e-3 * k, weight=1.0 + 0.1 * k, size=k
        )
        for k in range(members)
    ]


def make_shard(shape: Any, *, rows: int = ROWS, number: int = 0) -> Shard:
    """Rows with something to learn, in memory."""
    rng = np.random.default_rng(number)
    labels = rng.integers(0, CLASSES, rows)
    if shape == TOKENS:
        x: Any = (rng.integers(0, 16, (rows, 6)) + (labels % 4)[:, None]).astype(np.int64)
    else:
        shift = labels.reshape(-1, *[1] * len(shape)) * 0.3
        x = (rng.normal(size=(rows, *shape)) + shift).astype(np.float32)
    columns = {"x": x, "y": labels.astype(np.int64)}
    return Shard(
        split=Split.TRAIN,
        number=number,
        rows=rows,
        schema={
            name: Column(kind=Kind.TENSOR, dtype=str(array.dtype), shape=array.shape[1:])
            for name, array in columns.items()
        },
        columns=columns,
    )


def allocate(size: int) -> memoryview:
    return memoryview(mmap.mmap(-1, max(1, size)))[:size]


@dataclass
class Trained:
    """What became of each member: its tensors by name, its meta, and its reports."""

    tensors: list[dict[str, torch.Tensor]]
    metas: list[dict[str, Any]]
    reports: list[list[MemberReport]]
    states: list[State]


def visit(trials: tuple[int, ...], params: Any, number: int, **given: Any) -> VisitCall:
    settings = {
        "unit": trials[0], "seed": 3, "epoch": number // 2, "step": number % 2, "steps": 2,
        "split": Split.TRAIN, "shard": number % 2, "attempt": 0, "batch_size": BATCH,
    }  # fmt: skip
    return VisitCall(trials=trials, params=tuple(params), **{**settings, **given})


def train_plain(framework: TorchFramework, shape: Any, params: Any, **given: Any) -> Trained:
    """One trial after the other; closes the framework."""
    found = Trained([], [], [], [])
    for trial, own in enumerate(params):
        state, reports = None, []
        for number in range(VISITS):
            call = visit((trial,), [own], number, **given)
            state, report = framework.train(
                call, make_shard(shape, number=number % 2), state, allocate
            )
            reports.append(report.members[0])
        assert state is not None
        found.reports.append(reports)
        found.metas.append(dict(state.meta))
        found.tensors.append(tensors_of(state.buffer))
        found.states.append(state)
    framework.close()
    return found


def train_stacked(framework: TorchFramework, shape: Any, params: Any, **given: Any) -> Trained:
    """All of them as one; closes the framework."""
    trials, state = tuple(range(len(params))), None
    reports: list[list[MemberReport]] = [[] for _ in trials]
    for number in range(VISITS):
        call = visit(trials, params, number, **{"stack": Stacking(), **given})
        state, report = framework.train(call, make_shard(shape, number=number % 2), state, allocate)
        for own, member in zip(reports, report.members, strict=True):
            own.append(member)
    assert state is not None
    framework.close()
    taken = [take_member(state.buffer, state.meta, trial) for trial in trials]
    return Trained(
        [tensors_of(memoryview(data)) for data, _ in taken],
        [meta for _, meta in taken],
        reports,
        [state],
    )


def tensors_of(buffer: memoryview) -> dict[str, torch.Tensor]:
    layout = Layout.parse(buffer)
    return {entry.name: view_of(layout, buffer, entry).clone() for entry in layout.entries}


def difference(plain: Mapping[str, torch.Tensor], stacked: Mapping[str, torch.Tensor]) -> float:
    """The largest relative difference of a weight or buffer."""
    return max(
        float((a.double() - stacked[name].double()).norm() / (a.double().norm() + 1e-2))
        for name, a in plain.items()
        if name.startswith("model.")
    )
