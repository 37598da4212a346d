"""MiniBatchSpec: a model whose user writes the step of each minibatch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cerebro.types import Params


class BatchValues(list[float]):
    """The values of a metric, one for each batch, in order; `rows` has the rows of each.

    >>> BatchValues([1.0, 4.0], rows=[3, 1]).mean()
    1.75
    """

    def __init__(self, values: Iterable[float] = (), rows: Iterable[int] = ()) -> None:
        super().__init__(values)
        #: Rows in the batch of each value.
        self.rows = list(rows)

    def mean(self) -> float:
        """The exact mean over rows."""
        pairs = zip(self, self.rows, strict=True)
        return math.fsum(value * rows for value, rows in pairs) / sum(self.rows)


class MiniBatchSpec:
    """One model family, with a training step of your own.

    Subclass it and write `create_model_components` and `train`; with validation data `val_test`,
    too. `Task` asks for less and can train trials in stacks; here you have several modules, and the
    step is yours: zero the gradients, go backward, step the optimizer.

    A `model_object` is the dict that `create_model_components` returns. A `minibatch` is a tuple
    (input, label, row_id), in `predict` (input, row_id); its tensors are on `device` and are used
    again for the next one: clone what you keep. `hyperparams` are the trial's params, with
    "batch_size" among them. What the methods compute must depend on their arguments and on the
    global random generators of Python, NumPy and PyTorch alone: those are seeded before each visit.

    The components are made anew for each visit and given the trial's state. What travels: modules
    as with a `Task`, the optimizer, the state of everything that has `state_dict` and
    `load_state_dict` (schedulers, gradient scalers, helpers of yours), tensors, NumPy arrays,
    numbers, text, and lists, tuples and dicts of these, those that `train` adds included. All else,
    and attributes that `train` sets on the spec itself, begins at each visit as it was made.

    >>> class Line(MiniBatchSpec):
    ...     def create_model_components(self, hyperparams):
    ...         import torch
    ...         line = torch.nn.Linear(1, 1)
    ...         return {"line": line, "optimizer": torch.optim.SGD(line.parameters(), lr=0.1)}
    ...     def train(self, model_object, minibatch, hyperparams, device):
    ...         x, y, _ = minibatch
    ...         loss = ((model_object["line"](x) - y) ** 2).mean()
    ...         model_object["optimizer"].zero_grad()
    ...         loss.backward()
    ...         model_object["optimizer"].step()
    ...         return {"loss": loss}
    >>> Line().has("train"), Line().has("metrics_agg")
    (True, False)
    """

    #: The column that is the input, or several, which come as a dict by name. None: all that are
    #: neither label nor id; the tensor itself if that is "x" alone.
    input_columns: str | Sequence[str] | None = None
    #: The same of the label. None: "y"; with columns "y.<name>" a dict by <name>; None without any.
    label_columns: str | Sequence[str] | None = None
    #: The column with row ids. Data without one, or None: the numbers of the rows in their shard.
    id_column: str | None = "id"

    def initialize_worker(self) -> None:
        """Called once in each process that has models of this spec, before all else there."""

    def read_misc(self, misc_path: str) -> None:
        """Called before the spec travels to workers; attributes that are set here travel along."""

    def create_model_components(self, hyperparams: Params) -> dict[str, Any]:
        """Make the modules by name, "optimizer", and whatever else `train` needs."""
        raise NotImplementedError(
            f"{type(self).__name__} must define create_model_components(self, hyperparams)."
        )

    def train(
        self, model_object: dict[str, Any], minibatch: Any, hyperparams: Params, device: Any
    ) -> Any:
        """Train on a minibatch; returns metrics by name, or (model_object, metrics).

        Metrics are means over the batch: numbers, or tensors with one. "loss", and names that end
        in "_loss", must stay finite: a trial in which they do not has diverged.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define "
            "train(self, model_object, minibatch, hyperparams, device)."
        )

    def val_test(
        self, model_object: dict[str, Any], minibatch: Any, hyperparams: Params, device: Any
    ) -> Mapping[str, Any]:
        """Metrics of a minibatch in validation or test; may be called `valtest` as well.

        Modules are in evaluation mode, and no gradients are kept.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define "
            "val_test(self, model_object, minibatch, hyperparams, device)."
        )

    def predict(
        self, model_object: dict[str, Any], minibatch: Any, hyperparams: Params, device: Any
    ) -> Any:
        """Returns (classes, probabilities) of a minibatch, each with one entry for each row."""
        raise NotImplementedError(
            f"{type(self).__name__} must define "
            "predict(self, model_object, minibatch, hyperparams, device)."
        )

    def metrics_agg(
        self, mode: str, hyperparams: Params, metrics: Mapping[str, BatchValues]
    ) -> dict[str, float]:
        """Metrics of a whole epoch or split from those of its batches; default means over rows.

        `mode` is "train", "val" or "test". Called where the run is driven; and once before
        training, with one batch, for the names that it gives.
        """
        return {name: values.mean() for name, values in metrics.items()}

    def has(self, method: str) -> bool:
        """Whether the subclass defines the method of this name."""
        return getattr(type(self), method, None) is not getattr(MiniBatchSpec, method, None)
