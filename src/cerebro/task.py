"""Task: what the user writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from cerebro.errors import UnknownParamError
from cerebro.types import Json, Params

Batch = dict[str, Any]


class ParamDict(dict[str, Json]):
    """A trial's params; asking for one that is not there says which are.

    >>> ParamDict(lr=0.1)["momentum"]
    Traceback (most recent call last):
    cerebro.errors.UnknownParamError: the task asks for params['momentum'], but the trial has: lr. \
Add it to the space.
    """

    def __missing__(self, key: str) -> Json:
        known = ", ".join(sorted(self)) or "none"
        raise UnknownParamError(
            f"the task asks for params[{key!r}], but the trial has: {known}. Add it to the space."
        )


class Meter(Protocol):
    """Takes metrics of training batches."""

    def add(self, means: Mapping[str, Any], rows: int) -> None:
        """Means over so many rows, by name."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a task may know of the run that it is in, beside a trial's params.

    >>> RunFacts(shard_rows=(100, 90), workers=2).steps_per_epoch(64)
    4
    """

    #: Rows of each shard that a trial is trained on: with folds, some are held out.
    shard_rows: tuple[int, ...]
    #: Workers that train a trial together: 1 when trials hop.
    workers: int = 1

    def steps_per_epoch(self, global_batch_size: int) -> int:
        """Training steps that a trial takes to see every row once: batches end with their shard."""
        return sum(-(-rows // global_batch_size) for rows in self.shard_rows)


class Task:
    """One model family: how to build it, step it and judge it.

    Subclass it and write `model`, `optimizer` and `loss`; the other methods are optional. Every
    method gets the trial's params. Methods run on workers; the object itself travels there, so keep
    it small. What it computes must depend on its arguments and on the global random generators of
    Python, NumPy and PyTorch alone: those are seeded before each visit.

    Models are built anew for each visit and given the trial's state. What travels of a model: its
    parameters, its buffers, tensors that are attributes of its modules once `model` returns, and
    what `get_extra_state` of a module gives (numbers, text, lists, tuples and dicts). Of the
    optimizer: its state, settings and groups added with `add_param_group`, if of parameters that
    the model has from the start. Everything else begins at each visit as `model` made it: a count
    kept as a Python number, or an attribute that is None first and a tensor later. Make it a buffer
    (`register_buffer`), or write `get_extra_state` and `set_extra_state`.

    >>> class Line(Task):
    ...     def model(self, params):
    ...         from torch import nn
    ...         return nn.Linear(1, 1)
    ...     def optimizer(self, model, params):
    ...         from torch import optim
    ...         return optim.SGD(model.parameters(), lr=params["lr"])
    ...     def loss(self, model, batch, params):
    ...         return ((model(batch["x"]) - batch["y"]) ** 2).mean()
    >>> Line().has("metrics")
    False
    """

    #: The name of the framework that trains it, or `module:Class` of one.
    framework: ClassVar[str] = "torch"
    #: Clip the gradient's total norm to this before each step; params["clip_grad_norm"] wins.
    clip_grad_norm: float | None = None
    #: "bf16" or "fp16" to run model and loss under autocast, "tf32" for matrix products of float32
    #: in TF32 on CUDA; params["amp"] wins.
    amp: str | None = None
    #: Rows in a batch of an evaluation; as many as in the trial's training batches if None.
    eval_batch_size: int | None = None
    #: Train each batch in parts of at most so many rows, to need less memory: their gradients add
    #: up to one step of the whole batch, for losses that are means over rows (only what looks at
    #: other rows differs: BatchNorm sees a part at a time, and dropout draws for each). "auto"
    #: halves the parts of a trial when it runs out of memory. Such trials are not stacked.
    micro_batch: int | Literal["auto"] | None = None
    #: When the learning-rate scheduler steps: after each "epoch" or each "batch".
    scheduler_step: str = "epoch"
    #: Set on workers before anything is built.
    facts: RunFacts | None = None
    #: Set while a trial is trained: `meter.add({"accuracy": mean}, rows)` in `loss` makes
    #: train_accuracy. A stack has it where the mean can be computed for all members at once.
    meter: Meter | None = None

    def model(self, params: Params) -> Any:
        """Build the model (an `nn.Module`)."""
        raise NotImplementedError(f"{type(self).__name__} must define model(self, params).")

    def optimizer(self, model: Any, params: Params) -> Any:
        """Build the optimizer, or a pair (optimizer, lr_scheduler)."""
        raise NotImplementedError(
            f"{type(self).__name__} must define optimizer(self, model, params)."
        )

    def loss(self, model: Any, batch: Batch, params: Params) -> Any:
        """The mean loss of a batch, a scalar tensor. `batch` maps column names to tensors.

        The tensors of a batch are reused for the next one: clone what you keep.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define loss(self, model, batch, params)."
        )

    def metrics(self, model: Any, batch: Batch, params: Params) -> dict[str, Any]:
        """Means over an evaluation batch, by name; weighted by rows over the split.

        The name "loss" is taken: the mean of `loss` is always there.
        """
        return {}

    def predict(self, model: Any, batch: Batch, params: Params) -> Any:
        """What the model says about a batch: one entry for each row.

        A tensor (rows, ...), or a dict of tensors and of lists of text by name, such as
        `{"class": scores.argmax(1), "probability": scores.softmax(1)}`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define predict(self, model, batch, params) to predict: "
            'return a tensor with one entry for each row, such as model(batch["x"]).argmax(1), or '
            "a dict of them by name."
        )

    def decode(self, batch: Batch) -> Batch:
        """Make tensors of a batch's bytes or text, before anything else sees it.

        Called once for each batch, in training, evaluation and prediction, whatever the number of
        models that see it: so it gets no params. Where columns hold bytes or text it runs before
        the batch is moved to the device. Trials of such tasks are not stacked.
        """
        return batch

    def augment(self, batch: Batch, rng: Any, params: Params) -> Batch:
        """Change a training batch before its step; `rng` is a seeded `torch.Generator`."""
        return batch

    def on_epoch_start(self, model: Any, optimizer: Any, params: Params, epoch: int) -> None:
        """Called on the worker before the first training visit of an epoch (freeze layers here)."""

    def on_epoch_end(self, model: Any, optimizer: Any, params: Params, epoch: int) -> None:
        """Called on the worker after the last training visit of an epoch."""

    def has(self, method: str) -> bool:
        """Whether the subclass defines the optional method of this name."""
        return getattr(type(self), method) is not getattr(Task, method)
