"""The device that a worker uses, chosen and made ready."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from cerebro.errors import UsageError


def warm_up(device: torch.device) -> None:
    """Make PyTorch load what it loads at a first step (over a second) before the first visit."""
    weight = torch.zeros(1, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with warnings.catch_warnings():
        # On CUDA it may say that the thread of the backward pass had no context: now it has.
        warnings.simplefilter("ignore", UserWarning)
        nn.functional.linear(weight, weight.unsqueeze(0)).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def pick_device(device: str, worker: int) -> torch.device:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
        if chosen.type == "cuda" and chosen.index is None:
            chosen = torch.device("cuda", worker % max(1, torch.cuda.device_count()))
        if chosen.type != "cpu":
            torch.empty(1, device=chosen)
        if chosen.type == "cuda":
            # Graphs, streams and kernels go by the current device.
            torch.cuda.set_device(chosen)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            f"device must name a device of this machine, but {device!r}: {error}"
        ) from error
    return chosen
