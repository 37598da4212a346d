"""Optuna around a plain loop: what people write without a system that trains."""

from __future__ import annotations

import time
from multiprocessing.connection import wait
from typing import Any

import optuna
import torch
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import Trial, TrialState

from benchmarks.peers import Peer
from benchmarks.search_work import Epoch, Found, Loop, Params, Work


class LoopCommands:
    """Trains one trial at a time, an epoch when told."""

    def load(self, work: Work) -> None:
        torch.set_num_threads(1)
        self._work = work
        self._arrays = work.arrays()

    def begin(self, number: int, params: Params) -> float:
        self._loop = Loop(self._arrays, params, self._work.batch_size, number)
        return self._loop.train_epoch()

    def go_on(self) -> float:
        return self._loop.train_epoch()


def search(work: Work) -> Found:
    """The params of the work in order, pruned by successive halving, on processes of their own."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    began = time.perf_counter()
    peers = [Peer(LoopCommands) for _ in range(work.workers)]
    study = _Study(work, peers, began)
    try:
        study.run()
        call_s = time.perf_counter() - began
        study.drain()
    finally:
        for peer in peers:
            peer.close()
    return Found.of(study.told, work, call_s=call_s)


class _Study:
    """A study, and who trains what of it."""

    def __init__(self, work: Work, peers: list[Peer], began: float) -> None:
        self._work, self._began = work, began
        self._peers: dict[Any, Peer] = {peer.connection: peer for peer in peers}
        pruner = optuna.pruners.SuccessiveHalvingPruner(
            min_resource=work.grace, reduction_factor=work.eta
        )
        self._study = optuna.create_study(direction="maximize", pruner=pruner)
        for params in work.params:
            self._study.enqueue_trial(dict(params))
        self._left = len(work.params)
        #: By the connection that trains it: a trial, and the epoch under way.
        self._trials: dict[Any, tuple[Trial, int]] = {}
        self.told: list[Epoch] = []

    def run(self) -> None:
        for peer in self._peers.values():
            peer.send("load", self._work)
        for connection, peer in self._peers.items():
            peer.receive()
            self._begin(connection)
        while self._trials:
            for connection in wait(list(self._trials)):
                if self._answered(connection):
                    return

    def drain(self) -> None:
        """Wait for epochs that nobody needs any more."""
        for connection in self._trials:
            self._peers[connection].receive()

    def _begin(self, connection: Any) -> None:
        if not self._left:
            return
        self._left -= 1
        trial = self._study.ask(_distributions(self._work))
        self._trials[connection] = (trial, 1)
        self._peers[connection].send("begin", trial.number, trial.params)

    def _answered(self, connection: Any) -> bool:
        """Take an answer in; whether the target is reached."""
        accuracy = self._peers[connection].receive()
        trial, epoch = self._trials.pop(connection)
        now = time.perf_counter() - self._began
        self.told.append(Epoch(trial.number, trial.params, accuracy, now))
        trial.report(accuracy, epoch)
        if accuracy >= self._work.target:
            return True
        if epoch == self._work.epochs:
            self._study.tell(trial, accuracy)
        elif trial.should_prune():
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._trials[connection] = (trial, epoch + 1)
            self._peers[connection].send("go_on")
            return False
        self._begin(connection)
        return False


def _distributions(work: Work) -> dict[str, BaseDistribution]:
    """Wide enough for all that is enqueued; nothing is drawn from them."""
    found: dict[str, BaseDistribution] = {}
    for name in work.params[0]:
        values = [params[name] for params in work.params]
        if isinstance(values[0], float):
            found[name] = FloatDistribution(min(values), max(values))
        else:
            found[name] = CategoricalDistribution(sorted(set(values)))
    return found
