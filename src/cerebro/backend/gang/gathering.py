"""How the ranks of a gang are called together: what a leader does before it needs torch."""

from __future__ import annotations

import gc
import socket

from cerebro.backend.base import Setup
from cerebro.backend.gang.follower import JOIN_S, FollowerProcess, start_follower
from cerebro.backend.gang.interface import listening_address, own_address
from cerebro.backend.gang.rendezvous import split_address
from cerebro.errors import UsageError

_LOOPBACK = "127.0.0.1"


class Gathering:
    """Listens for the ranks, and starts those of this machine.

    They import torch and open the task and the data while this process does.

    Args:
        setup: With the gang's place.
        first_seat: The place of rank 0 among the ranks of this machine.
    """

    def __init__(self, setup: Setup, first_seat: int) -> None:
        place = setup.gang
        if place is None:
            raise UsageError("a gang must have a place, but got none.")
        host, port = split_address(place.address) if place.address else (_LOOPBACK, 0)
        bound = listening_address(host)
        #: The address at which ranks of other machines reach this one.
        self.own_host = own_address(host)
        #: The address that is listened at, as this process reaches it.
        self.host = bound or self.own_host
        # An error that somebody keeps may hold on to the last gang.
        gc.collect()
        self.listener = _listen(bound, port, place.address)
        self.followers: list[FollowerProcess] = []
        # The number of a port that the system chose.
        port = self.listener.getsockname()[1]
        address = f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"
        try:
            for rank in range(1, place.local):
                seat = first_seat + rank
                started = start_follower(setup, rank, seat=seat, address=address, join_s=JOIN_S)
                self.followers.append(started)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Nobody comes: end the ranks of this machine."""
        self.listener.close()
        for follower in self.followers:
            follower.kill()


def _listen(bound: str, port: int, address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # The last gang may have listened here a moment ago.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((bound, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"rank 0 of a gang must be able to listen at {address or bound}, but cannot "
            f"({error.strerror}). Choose another port."
        ) from error
    return listener
