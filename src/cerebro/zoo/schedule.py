"""The learning-rate rules at work on a PyTorch optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from cerebro.zoo.rates import RateRule, lr_at


class RateSchedule:
    """Sets learning rate and momentum of every param group before each batch.

    It is stepped once a batch. What it keeps is the number of the batch, and of how many in an
    epoch: everything else follows from the rule, so that a trial that hops, or is resumed, goes on
    exactly. A copy of a trial with another batch size goes on at the same part of the same epoch.

    Args:
        optimizer: Its groups' rates and momenta are those of one worker.
        rule: What becomes of them.
        workers: How many train the trial together.
        steps_per_epoch: Batches that they take in an epoch.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
    >>> schedule = RateSchedule(
    ...     optimizer, RateRule(warmup_epochs=1), workers=2, steps_per_epoch=4
    ... )
    >>> rates = []
    >>> for _ in range(5):
    ...     rates.append(round(optimizer.param_groups[0]["lr"], 3))
    ...     optimizer.step()
    ...     schedule.step()
    >>> rates
    [0.125, 0.15, 0.175, 0.2, 0.2]
    """

    def __init__(
        self, optimizer: Optimizer, rule: RateRule, *, workers: int, steps_per_epoch: int
    ) -> None:
        self._optimizer = optimizer
        self._rule = rule
        self._workers = workers
        self._steps = steps_per_epoch
        self._begun_with = [(g["lr"], g.get("momentum")) for g in optimizer.param_groups]
        self._batch = 0
        self._apply()

    @property
    def cycle_momentum(self) -> bool:
        """Whether momenta move with the batches: trials where they do cannot be stacked."""
        has_momentum = any(momentum for _, momentum in self._begun_with)
        return has_momentum and self._rule.moves_momentum(self._workers)

    def step(self) -> None:
        """Go on to the next batch."""
        self._batch += 1
        self._apply()

    def get_last_lr(self) -> list[float]:
        """The rate of each group now."""
        return [group["lr"] for group in self._optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        # Fresh states are alike for all batch sizes: a copy then keeps what its original had.
        return {"batch": self._batch, "steps": self._steps if self._batch else 0}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        batch, steps = int(state["batch"]), int(state.get("steps") or self._steps)
        # Rounded down: what is within an epoch stays within it.
        self._batch = batch if steps == self._steps else batch * self._steps // steps
        self._apply()

    def _apply(self) -> None:
        where = self._batch, self._steps, self._workers
        for group, (lr, momentum) in zip(
            self._optimizer.param_groups, self._begun_with, strict=True
        ):
            rate = lr_at(*where, lr, self._rule)
            group["lr"] = rate.lr
            if momentum:
                group["momentum"] = momentum * rate.momentum
