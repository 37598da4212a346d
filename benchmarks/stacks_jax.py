"""JAX as a peer: all members of an MLP as one by `vmap`, all steps of a visit as one by `scan`."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import Peer
from benchmarks.stacks_work import MOMENTUM, NETS, clock_of, initial, make_shard, order_of, rate_of

_LAYERS = ("0", "2")


def is_installed() -> bool:
    return find_spec("jax") is not None


class JaxCommands:
    """Trains stacks by JAX; runs in a process of its own."""

    def __init__(self) -> None:
        # Memory is taken as it is needed: others are on the card too.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        self._runs: dict[str, _Run] = {}

    def start(self, device: str) -> str:
        """Load JAX; the device it has found."""
        if device == "cpu":
            os.environ["JAX_PLATFORMS"] = "cpu"
            # One thread, as everybody has: it makes as many as there are processors.
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        jax = import_module("jax")
        return f"JAX {jax.__version__} on {jax.devices()[0].device_kind}"

    def begin(
        self, key: str, net: str, file: Path | None, members: int, precision: str, steps: int
    ) -> None:
        """Take the data and the initial weights."""
        self._runs[key] = _Run(net, file, members, precision, steps)

    def visit(self, key: str) -> tuple[float, np.ndarray]:
        """Seconds of the visit, and its losses [step, member]."""
        return self._runs[key].visit()

    def end(self, key: str) -> None:
        del self._runs[key]


class _Run:
    def __init__(
        self, net: str, file: Path | None, members: int, precision: str, steps: int
    ) -> None:
        jax = import_module("jax")
        self._jax, self._batch, self._members = jax, NETS[net].batch, members
        self._shard, self._visits = make_shard(net, file, steps=steps), 0
        models = [initial(net, trial).state_dict() for trial in range(members)]
        self._weights = {
            name: jax.device_put(np.stack([model[name].numpy().T for model in models]))
            for name in models[0]
        }
        self._momentum = {name: 0 * weight for name, weight in self._weights.items()}
        rates = np.array([rate_of(trial) for trial in range(members)], np.float32)
        x, y = (jax.device_put(self._shard.columns[name]) for name in ("x", "y"))
        train = _make_visit(jax, x, y, jax.device_put(rates))
        self._train = jax.jit(train, donate_argnums=(0, 1))
        self._matmul = "highest" if precision == "fp32" else "tensorfloat32"

    def visit(self) -> tuple[float, np.ndarray]:
        orders = [
            order_of(self._shard, self._batch, trial, self._visits).reshape(-1, self._batch)
            for trial in range(self._members)
        ]
        rows = self._jax.device_put(np.stack(orders, 1).astype(np.int32))
        self._jax.block_until_ready((rows, self._weights))
        self._visits += 1
        clock = clock_of(self._jax.default_backend())
        with self._jax.default_matmul_precision(self._matmul):
            began = clock()
            self._weights, self._momentum, losses = self._train(self._weights, self._momentum, rows)
            found = np.asarray(losses)
            self._jax.block_until_ready(self._weights)
            return clock() - began, found


def _make_visit(jax: Any, x: Any, y: Any, rates: Any) -> Any:
    """A function of weights, momentum and rows [step, member, row]."""
    jnp = jax.numpy
    first, second = _LAYERS

    def loss_of(weights: Any, rows: Any) -> Any:
        pictures = x[rows].astype(jnp.float32) / 255
        hidden = pictures @ weights[f"{first}.weight"] + weights[f"{first}.bias"]
        scores = jax.nn.relu(hidden) @ weights[f"{second}.weight"] + weights[f"{second}.bias"]
        likely = jnp.take_along_axis(jax.nn.log_softmax(scores), y[rows][:, None], 1)
        return -likely.mean()

    grads_of = jax.vmap(jax.value_and_grad(loss_of))

    def step(carry: Any, rows: Any) -> Any:
        weights, momentum = carry
        losses, grads = grads_of(weights, rows)
        momentum = jax.tree.map(lambda m, g: MOMENTUM * m + g, momentum, grads)

        def update(weight: Any, m: Any) -> Any:
            return weight - rates.reshape(-1, *[1] * (weight.ndim - 1)) * m

        return (jax.tree.map(update, weights, momentum), momentum), losses

    def visit(weights: Any, momentum: Any, rows: Any) -> Any:
        (weights, momentum), losses = jax.lax.scan(step, (weights, momentum), rows)
        return weights, momentum, losses

    return visit


class JaxSide:
    """One stack in the process of JAX."""

    def __init__(
        self,
        peer: Peer,
        net: str,
        file: Path | None,
        members: int,
        *,
        precision: str = "fp32",
        steps: int | None = None,
    ) -> None:
        self._peer, self._key = peer, f"{net} {members} {precision}"
        self.members = members
        self.all_losses = np.empty((0, members))
        steps = steps or NETS[net].steps
        peer.call("begin", self._key, net, file, members, precision, steps)

    @property
    def losses(self) -> list[float]:
        return self.all_losses[:, 0].tolist()

    def visit(self) -> float:
        seconds, self.all_losses = self._peer.call("visit", self._key)
        return seconds

    def close(self) -> None:
        self._peer.call("end", self._key)
