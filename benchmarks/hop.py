"""How long a trial's state takes from one process to the next, against a file in between.

    python -m benchmarks.hop [--json]

A trial with a state of 1, 20 and 200 MB (an MLP and Adam's moments) goes to and fro between two
processes. A hop is the message to the process, taking over the state so that model and optimizer
have it, giving it on, and the answer. Ours are workers of the local backend. The other side is a
pair of processes that exchange `torch.save` files (in the page cache, never synced) and messages of
the same kind. Both keep model and optimizer built and train nothing between hops. A state that is
durable and read by nobody is handed over: the receiver trains in its memory. "With copy" is the hop
of one that is not: the receiver gets a copy, and the state stays as it was. All sides take turns of
some hops over several starts of all processes; figures are medians over all hops but the first
of each turn. In the end the weights are compared.

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
from cerebro.train.torch.buffer import copy_state
from cerebro.train.torch.framework import TorchFramework
from cerebro.train.torch.state import Components
from cerebro.train.visit import Allocate, MemberReport, State, VisitCall, VisitReport
from cerebro.types import Split

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

    framework = "benchmarks.hop:HopsOnly"

    def model(self, params):
        hidden = params["hidden"]
        square = [nn.Linear(hidden, hidden) for _ in range(params["layers"])]
        return nn.Sequential(nn.Linear(WIDTH, hidden), *square, nn.Linear(hidden, 1))

    def optimizer(self, model, params):
        # A large eps: Adam would blow up differences in rounding of gradients near 0.
        return torch.optim.Adam(model.parameters(), lr=1e-4, eps=1e-2)

    def loss(self, model, batch, params):
        return model(batch["x"]).square().mean()


class HopsOnly(TorchFramework):
    """Takes a state over and gives it back; builds its model once and trains nothing."""

    kept: Components | None = None

    def train(
        self, call: VisitCall, shard: cdata.Shard, state: State | None, allocate: Allocate
    ) -> tuple[State, VisitReport]:
        report = VisitReport(rows=shard.rows, members=(MemberReport(sums={}),))
        if state is None:
            # Adam has its moments after a first step.
            return super().train(call, shard, None, allocate)[0], report
        if self.kept is None:
            self.kept = self._build(call.seed, call.trials[0], call.params[0], is_new=False)
        layout, buffer = copy_state(state, allocate)
        self.kept.bind(layout, buffer, state.meta)
        return State(buffer, state.meta), report


def main() -> int:
    options = arguments("hops between processes")
    torch.set_num_threads(1)
    report = Report()
    print(f"{'state MB':>9}{'file ms':>10}{'ours ms':>10}{'ratio':>8}{'p90 ms':>9}", end="")
    print(f"{'with copy ms':>14}{'ratio':>8}")
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
    copied: list[float] = []
    for _ in range(STARTS):
        with our_hops(case, folder) as hopper, Exchange(case, folder) as exchange:
            for first in range(0, case.hops, TURN):
                turn = range(first, first + TURN)
                # The first hops of a process map its memory and warm its allocator; those of a
                # turn find the caches full of the other side's data.
                ours += [hopper.hop(number, consume=True) for number in turn][WARM:]
                files += [exchange.hop(number) for number in turn][WARM:]
                copied += [hopper.hop(number, consume=False) for number in turn][WARM:]
            worst = difference(hopper.weights(), exchange.weights())
            if not worst <= TOLERANCE:
                raise SystemExit(f"weights differ by {worst:.2g}, more than {TOLERANCE:.0e}")
            size = hopper.state.bytes
    middle, theirs, once = map(statistics.median, (ours, files, copied))
    ninth = statistics.quantiles(ours, n=10)[-1]
    print(f"{size / 1e6:>9.1f}{1e3 * theirs:>10.2f}{1e3 * middle:>10.3f}", end="")
    print(f"{theirs / middle:>8.1f}{1e3 * ninth:>9.3f}", end="")
    print(f"{1e3 * once:>14.3f}{theirs / once:>8.1f}", flush=True)
    key = f"{case.megabytes}mb"
    report.gate(f"speedup_vs_file_{key}", theirs / middle, at_least=case.floor, digits=1)
    report.add(f"hop_ms_{key}", 1e3 * middle)
    report.add(f"copied_ms_{key}", 1e3 * once)
    report.add(f"copied_speedup_{key}", theirs / once, 1)
    report.add(f"file_ms_{key}", 1e3 * theirs, 2)


class OurHops:
    """A trial that two workers of the local backend pass to each other."""

    state: StateRef

    def __init__(self, backend: LocalBackend, case: Case) -> None:
        self._backend = backend
        self._params = case.params
        self._source: StateRef | None = None

    def hop(self, number: int, *, consume: bool) -> float:
        """To the other worker; the time until its answer."""
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
        self._backend.submit(number % 2, call, self._source, consume=consume and number > 0)
        (event,) = self._backend.events()
        seconds = time.perf_counter() - began
        if not isinstance(event, Done) or event.state is None:
            raise SystemExit(f"a visit gave no state: {event!r:.500}")
        if self._source is not None and not consume:
            self._backend.release(self._source)
        self._source = self.state = event.state
        return seconds

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
        self._peers[number % 2].call("visit", self._path, number == 0)
        return time.perf_counter() - began

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

    def visit(self, path: str, is_first: bool) -> None:
        """Load and save; a first visit takes a step instead, so that Adam has its moments."""
        if is_first:
            Wide().loss(self._model, self._batch, self._params).backward()
            self._optimizer.step()
        else:
            state = torch.load(path)
            self._model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        torch.save(state, path)


if __name__ == "__main__":
    sys.exit(main())
