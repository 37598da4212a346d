"""Processes that do the benchmark's work without any of our machinery."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, Self

# One thread on every side; it must be said before NumPy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from benchmarks.workload import BareLoop, Weights, build, weights_of
from cerebro.mop.order import shard_at

Params = Mapping[str, Any]
#: Number and params of a trial.
Trial = tuple[int, Params]


class Peer:
    """One process with one thread; does one thing after another as told through a pipe.

    What it can be told are the methods of `commands`, a class made in the process.
    """

    def __init__(self, commands: type | None = None) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, commands), daemon=True)
        self._process.start()
        theirs.close()

    def send(self, command: str, *values: Any) -> None:
        self.connection.send((command, values))

    def receive(self) -> Any:
        answer = self.connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def call(self, command: str, *values: Any) -> Any:
        self.send(command, *values)
        return self.receive()

    def close(self) -> None:
        self.connection.close()
        self._process.join()


class Pair:
    """Two peers, started and told together."""

    def __init__(self) -> None:
        self.peers = [Peer(), Peer()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for peer in self.peers:
            peer.close()

    def call(self, command: str, *values: Any) -> list[Any]:
        """The same on both at once."""
        for peer in self.peers:
            peer.send(command, *values)
        return [peer.receive() for peer in self.peers]

    def seconds_per_step(self, trial: Trial) -> float:
        """CPU time of a training step while both cores are busy: neighbours disturb it little."""
        return float(np.mean(self.call("step_time", trial)))

    def halves(self, trials: Sequence[Trial], epochs: int) -> float:
        """Each trains every other trial; the time until both are done."""
        began = time.perf_counter()
        for peer, first in zip(self.peers, (0, 1), strict=True):
            peer.send("train", list(trials[first::2]), epochs)
        for peer in self.peers:
            peer.receive()
        return time.perf_counter() - began

    def sequence(self, trials: Sequence[Trial], epochs: int) -> float:
        """One process trains all of them."""
        began = time.perf_counter()
        self.peers[0].call("train", list(trials), epochs)
        return time.perf_counter() - began

    def pool(self, trials: Sequence[Trial], epochs: int) -> float:
        """Whoever is free takes the next trial."""
        tasks = deque(("train", [trial], epochs) for trial in trials)
        began = time.perf_counter()
        self._share_out(lambda: tasks.popleft() if tasks else None, lambda done: None)
        return time.perf_counter() - began

    def files(self, trials: Sequence[Trial], epochs: int, folder: str, poll_s: float) -> float:
        """Trials hop through files, one visit at a time; the scheduler polls, or waits if 0."""
        hopper = _FileHopper(trials, epochs, self.call("count_shards")[0], folder)
        began = time.perf_counter()
        if poll_s:
            self._poll(hopper, poll_s)
        else:
            self._share_out(hopper.next, hopper.done)
        return time.perf_counter() - began

    def data_parallel(self, trials: Sequence[Trial], epochs: int, folder: str) -> float:
        """One trial after the other, each on both with half of every batch (gloo)."""
        rendezvous = f"file://{folder}/rendezvous"
        for rank, peer in enumerate(self.peers):
            peer.send("join_group", rendezvous, rank)
        for peer in self.peers:
            peer.receive()
        began = time.perf_counter()
        self.call("train_data_parallel", list(trials), epochs)
        seconds = time.perf_counter() - began
        self.call("leave_group")
        return seconds

    def weights(self) -> dict[int, list[Weights]]:
        """Of the trials trained since the last call: after each epoch, by trial."""
        first, second = self.call("weights")
        return {**first, **second}

    def _share_out(
        self, next_task: Callable[[], tuple | None], done: Callable[[tuple], None]
    ) -> None:
        """Give tasks to idle peers until there are none; no waiting but for answers."""
        busy: dict[object, tuple[Peer, tuple]] = {}
        idle = list(self.peers)
        while True:
            while idle and (task := next_task()) is not None:
                peer = idle.pop(0)
                peer.send(*task)
                busy[peer.connection] = (peer, task)
            if not busy:
                return
            for connection in wait([peer.connection for peer, _ in busy.values()]):
                peer, task = busy.pop(connection)
                peer.receive()
                done(task)
                idle.append(peer)

    def _poll(self, hopper: _FileHopper, poll_s: float) -> None:
        """The scheduler of the original: look at all workers, hand out, sleep."""
        running: dict[int, tuple] = {}
        while True:
            for index, peer in enumerate(self.peers):
                if index in running and peer.connection.poll():
                    peer.receive()
                    hopper.done(running.pop(index))
                if index not in running and (task := hopper.next()) is not None:
                    peer.send(*task)
                    running[index] = task
            if not running:
                return
            time.sleep(poll_s)


class _FileHopper:
    """Which trial is ready for its next visit, and the file its state is in."""

    def __init__(self, trials: Sequence[Trial], epochs: int, shards: int, folder: str) -> None:
        self._folder = folder
        self._shards = shards
        self._left = {number: shards * epochs for number, _ in trials}
        self._done = dict.fromkeys(self._left, 0)
        self._ready = deque(trials)

    def next(self) -> tuple | None:
        if not self._ready:
            return None
        trial = self._ready.popleft()
        visit = self._done[trial[0]]
        path = os.path.join(self._folder, f"{trial[0]}.pt")
        return "file_visit", trial, *divmod(visit, self._shards), path, not self._left[trial[0]] - 1

    def done(self, task: tuple) -> None:
        trial: Trial = task[1]
        self._done[trial[0]] += 1
        self._left[trial[0]] -= 1
        if self._left[trial[0]]:
            self._ready.append(trial)


class _Commands:
    """What a peer can be told; runs in its process."""

    def __init__(self) -> None:
        self._loop: BareLoop | None = None
        self._weights: dict[int, list[Weights]] = {}
        self._rank = 0

    @property
    def loop(self) -> BareLoop:
        assert self._loop is not None, "load comes first"
        return self._loop

    def load(self, path: str, gather: str = "take") -> None:
        """The full data, in this process's own memory."""
        self._loop = BareLoop(path, gather=gather)

    def count_shards(self) -> int:
        return len(self.loop.shards)

    def step_time(self, trial: Trial) -> float:
        self.loop.train(*trial, epochs=1)
        _, seconds = self.loop.train(*trial, epochs=1)
        steps = -(-self.loop.rows[0] // trial[1]["batch_size"])
        return float(np.median(seconds)) / steps

    def train(self, trials: Sequence[Trial], epochs: int) -> None:
        for number, params in trials:
            self._weights[number], _ = self.loop.train(number, params, epochs=epochs)

    def train_timed(self, trial: Trial, epochs: int) -> float:
        began = time.perf_counter()
        self.train([trial], epochs)
        return time.perf_counter() - began

    def file_visit(self, trial: Trial, epoch: int, step: int, path: str, is_last: bool) -> None:
        number, params = trial
        model, optimizer = build(number, params)
        if (epoch, step) != (0, 0):
            state = torch.load(path)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        model.train()
        self.loop.visit(model, optimizer, params, (number, epoch, step))
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        if is_last:
            self._weights[number] = [weights_of(model)]

    def join_group(self, rendezvous: str, rank: int) -> None:
        distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
        self._rank = rank

    def train_data_parallel(self, trials: Sequence[Trial], epochs: int) -> None:
        for number, params in trials:
            model, optimizer = build(number, params)
            parallel = DistributedDataParallel(model)
            half = {**params, "batch_size": params["batch_size"] // 2}
            for epoch in range(epochs):
                for step in range(len(self.loop.shards)):
                    self._half_visit(parallel, optimizer, half, (number, epoch, step))
            self._weights[number] = [weights_of(model)]

    def _half_visit(
        self, model: Any, optimizer: Any, params: Params, key: tuple[int, int, int]
    ) -> None:
        trial, epoch, step = key
        loop, size = self.loop, params["batch_size"]
        shard = shard_at(trial % len(loop.shards), epoch, step, len(loop.shards))
        order = loop.order(shard, 2 * size, trial, epoch)
        # Whole batches only: half of each for this process.
        mine = order.reshape(-1, 2, size)[:, self._rank].reshape(-1)
        loop.train_rows(model, optimizer, params, shard, mine)

    def leave_group(self) -> None:
        distributed.destroy_process_group()

    def weights(self) -> dict[int, list[Weights]]:
        found, self._weights = self._weights, {}
        return found


def _serve(connection: Connection, made_of: type | None) -> None:
    torch.set_num_threads(1)
    commands = (made_of or _Commands)()
    while True:
        try:
            command, values = connection.recv()
        except EOFError:
            return
        try:
            answer = getattr(commands, command)(*values)
        except Exception as error:
            answer = error
        connection.send(answer)
