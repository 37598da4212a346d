"""How long a trial's state takes from one process to the next, against a file in between.

    python -m benchmarks.hop [--json]

A trial with a state of 1, 20 and 200 MB (an MLP and Adam's moments) goes to and fro between two
processes, one training step in each. A hop is all of that but the step: the message to the process,
taking over the state, giving it back, the answer. Ours are workers of the local backend. The other
side is a pair of processes that exchange `torch.save` files (in the page cache, never synced) and
messages of the same kind. Both keep model and optimizer built. Both take turns of some
hops over several starts of all processes; figures are medians over all hops but the first of each
turn. Final weights are compared.

Predicted: 20 us a message and one copy at 8 GB/s: 0.3, 2.6 and 26 ms; torch.save and torch.load
copy four times and allocate: 10x, 15x, 15x. Measured: see README.md.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

# One thread on every side; it must be said before NumPy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import nn

from benchmarks.peers import Peer
from benchmarks.report import Report, arguments
from benchmarks.workload import SEED, Weights, difference, weights_of
from cerebro import Task
from cerebro import data as cdata
from cerebro.backend.base import Done, Failed, Joined, Lost, Setup, StateRef
from cerebro.backend.local import LocalBackend
from cerebro.train.runner import make_framework
from cerebro.train.seeds import derive_seed
from cerebro.train.torch import TorchFramework
from cerebro.train.torch_state import Components
from cerebro.train.visit import State, VisitCall
from cerebro.types import Params, Split

STARTS = 3
#: Hops of one side before the other's turn; the first of them do not count.
TURN, WARM = 10, 3
TOLERANCE = 1e-5
WIDTH = 64


@dataclass(frozen=True, slots=True)
class Case:
    """A state of about so many MB: `hidden` wide, `layers` deep."""

    megabytes: int
    hidden: int
    layers: int
    hops: int
    floor: float

    @property
    def params(self) -> dict[str, Any]:
        return {"hidden": self.hidden, "layers": self.layers}


CASES = [
    Case(1, 256, 1, 200, 8.0),
    Case(20, 720, 3, 60, 10.0),
    Case(200, 2048, 4, 20, 8.0),
]


class Wide(Task):
    """Square layers of one width, so that the size of the state is easy to choose."""

    framework = "benchmarks.hop:KeepsModels"

    def model(self, params):
        hidden = params["hidden"]
        square = [nn.Linear(hidden, hidden) for _ in range(params["layers"])]
        return nn.Sequential(nn.Linear(WIDTH, hidden), *square, nn.Linear(hidden, 1))

    def optimizer(self, model, params):
        # A large eps: Adam would blow up differences in rounding of gradients near 0.
        return torch.optim.Adam(model.parameters(), lr=1e-4, eps=1e-2)

    def loss(self, model, batch, params):
        return model(batch["x"]).square().mean()


class KeepsModels(TorchFramework):
    """Builds a model once, like the other side; all else is as in every visit."""

    kept: Components | None = None

    def _build(self, seed: int, trial: int, params: Params, *, is_new: bool) -> Components:
        if self.kept is None:
            self.kept = super()._build(seed, trial, params, is_new=is_new)
        return self.kept


def main() -> int:
    options = arguments("hops between processes")
    torch.set_num_threads(1)
    report = Report()
    print(f"{'state MB':>9}{'ours ms':>10}{'file ms':>10}{'ratio':>8}{'p90 ms':>9}{'GB/s':>7}")
    with tempfile.TemporaryDirectory(prefix="cerebro-hop-") as folder:
        rows = np.random.default_rng(SEED).normal(size=(4, WIDTH)).astype(np.float32)
        cdata.from_arrays(f"{folder}/data", {"x": rows}, shards=1, seed=SEED)
        for case in CASES:
            measure(case, folder, report)
    return report.finish(as_json=options.json)


def measure(case: Case, folder: str, report: Report) -> None:
    """One line of the table."""
    ours: list[float] = []
    files: list[float] = []
    for _ in range(STARTS):
        with our_hops(case, folder) as hopper, Exchange(case, folder) as exchange:
            for first in range(0, case.hops, TURN):
                turn = range(first, first + TURN)
                # The first hops of a process map its memory and warm its allocator; those of a
                # turn find the caches full of the other side's data.
                ours += [hopper.hop(number) for number in turn][WARM:]
                files += [exchange.hop(number) for number in turn][WARM:]
            worst = difference(hopper.weights(), exchange.weights())
            if not worst <= TOLERANCE:
                raise SystemExit(f"weights differ by {worst:.2g}, more than {TOLERANCE:.0e}")
            size = hopper.state.bytes
    middle, theirs = statistics.median(ours), statistics.median(files)
    ninth = statistics.quantiles(ours, n=10)[-1]
    print(f"{size / 1e6:>9.1f}{1e3 * middle:>10.3f}{1e3 * theirs:>10.2f}", end="")
    print(f"{theirs / middle:>8.1f}{1e3 * ninth:>9.3f}{size / middle / 1e9:>7.1f}", flush=True)
    key = f"{case.megabytes}mb"
    report.gate(f"speedup_vs_file_{key}", theirs / middle, at_least=case.floor, digits=1)
    report.add(f"hop_ms_{key}", 1e3 * middle)
    report.add(f"file_ms_{key}", 1e3 * theirs, 2)


class OurHops:
    """A trial that two workers of the local backend pass to each other."""

    state: StateRef

    def __init__(self, backend: LocalBackend, case: Case) -> None:
        self._backend = backend
        self._params = case.params
        self._source: StateRef | None = None

    def hop(self, number: int) -> float:
        """One visit; what it took but for the training."""
        call = VisitCall(
            unit=0,
            trials=(0,),
            params=(self._params,),
            seed=SEED,
            epoch=number,
            step=0,
            steps=1,
            split=Split.TRAIN,
            shard=0,
            attempt=0,
            batch_size=4,
        )
        began = time.perf_counter()
        self._backend.submit(number % 2, call, self._source)
        (event,) = self._backend.events()
        seconds = time.perf_counter() - began
        if not isinstance(event, Done) or event.state is None:
            raise SystemExit(f"a visit gave no state: {event!r:.500}")
        if self._source is not None:
            self._backend.release(self._source)
        self._source = self.state = event.state
        return seconds - event.report.compute_s

    def weights(self) -> Weights:
        view = self._backend._arena.view(self._backend._slots[self.state.key])
        framework = make_framework(Wide(), device="cpu", threads=1)
        model: Any = framework.load(self._params, State(view[: self.state.bytes], self.state.meta))
        return weights_of(model)


@contextmanager
def our_hops(case: Case, folder: str) -> Iterator[OurHops]:
    backend = LocalBackend()
    setup = Setup(task=Wide(), data=f"{folder}/data", store=folder, device="cpu")
    backend.start(setup, 2)
    try:
        joined = 0
        while joined < 2:
            for event in backend.events():
                if isinstance(event, Failed | Lost):
                    raise SystemExit(f"a worker did not start: {event!r:.500}")
                joined += isinstance(event, Joined)
        yield OurHops(backend, case)
    finally:
        backend.stop()


class Exchange:
    """A trial that two plain processes pass to each other as a file."""

    def __init__(self, case: Case, folder: str) -> None:
        self._peers = Peer(FileVisits), Peer(FileVisits)
        self._path = f"{folder}/{case.megabytes}.pt"
        for peer in self._peers:
            peer.call("build", case.params, f"{folder}/data")

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *exc: object) -> None:
        for peer in self._peers:
            peer.close()

    def hop(self, number: int) -> float:
        began = time.perf_counter()
        compute: float = self._peers[number % 2].call("visit", self._path, number == 0)
        return time.perf_counter() - began - compute

    def weights(self) -> Weights:
        state = torch.load(self._path)["model"]
        return {name: tensor.numpy() for name, tensor in state.items()}


class FileVisits:
    """What the plain processes can be told."""

    def build(self, params: dict[str, Any], data: str) -> None:
        torch.manual_seed(derive_seed("model", SEED, 0))
        self._params = params
        self._model = Wide().model(params)
        self._optimizer = Wide().optimizer(self._model, params)
        shard = cdata.open_dataset(data).open_shard("train", 0)
        self._batch = {"x": torch.from_numpy(np.array(shard.columns["x"]))}

    def visit(self, path: str, is_first: bool) -> float:
        """Load, one step, save; the time of the step."""
        if not is_first:
            state = torch.load(path)
            self._model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
        began = time.perf_counter()
        loss = Wide().loss(self._model, self._batch, self._params)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        compute_s = time.perf_counter() - began
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        torch.save(state, path)
        return compute_s


if __name__ == "__main__":
    sys.exit(main())
