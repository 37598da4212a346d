"""Pictures shifted, cropped and mirrored at random, a whole batch at a time.

Each change moves the rows and columns of a picture as a whole. So a batch is changed by one lookup:
for every row and column of every picture, which one of the original it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from cerebro.errors import UsageError
from cerebro.zoo.preprocess import check_augment

#: From a batch (rows, channels, height, width) and a source of random numbers to another batch.
Change: TypeAlias = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Augment:
    """What may happen to a picture; see `make_augment`."""

    shift: float = 0.0
    crop: int = 0
    flip: bool = False
    fill: str = "nearest"

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The batch, each picture changed by numbers of its own; the type stays as it is."""
        if x.ndim != 4:
            raise UsageError(
                "pictures must be (rows, channels, height, width) to be augmented, but are "
                f"{tuple(x.shape)}."
            )
        rows, _, height, width = x.shape
        draws = torch.rand((5, rows, 1), generator=generator, device=generator.device)
        down, right, top, left, mirror = draws.to(x.device)
        ys, is_y = self._places(height, down, top, None)
        xs, is_x = self._places(width, right, left, mirror if self.flip else None)
        index = (ys[:, :, None] * width + xs[:, None, :]).reshape(rows, 1, height * width)
        changed = x.flatten(2).gather(2, index.expand(-1, x.shape[1], -1)).view(x.shape)
        if is_y is not None and is_x is not None:
            changed = changed * (is_y[:, None, :, None] & is_x[:, None, None, :])
        return changed

    def _places(
        self, size: int, shift: Tensor, crop: Tensor, mirror: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Which line of its original each line of a picture shows, and whether it shows one."""
        at = torch.arange(size, device=shift.device).expand(len(shift), size)
        if mirror is not None:
            at = torch.where(mirror < 0.5, size - 1 - at, at)
        is_there = torch.ones_like(at, dtype=torch.bool)
        if self.crop:
            at = at + (crop * (2 * self.crop + 1)).long() - self.crop
            is_there = (at >= 0) & (at < size)
        if self.shift:
            # Whole pixels, all from -furthest to +furthest alike.
            furthest = int(self.shift * size + 0.5)
            at = at - ((shift * (2 * furthest + 1)).long() - furthest)
            if self.fill == "zero":
                is_there = is_there & (at >= 0) & (at < size)
        fills = self.crop or (self.shift and self.fill == "zero")
        return at.clamp(0, size - 1), is_there if fills else None


def make_augment(options: Mapping[str, Any]) -> Change:
    """A function of a batch of pictures and a `torch.Generator`, for `Task.augment`.

    It takes and gives batches (rows, channels, height, width) of any type, usually uint8.

    Args:
        options: `shift`: by up to this share of the picture, in whole pixels, along both axes, with
            the border repeated (`fill: nearest`) or black (`fill: zero`). `crop`: so many black
            pixels are added on all sides, and a picture of the old size is cut out. `flip`: half of
            the pictures are mirrored.

    >>> change = make_augment({"shift": 0.1, "flip": True})
    >>> x = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4)
    >>> change(x, torch.Generator().manual_seed(0)).shape
    torch.Size([1, 1, 4, 4])
    >>> make_augment({"rotate": 10})
    Traceback (most recent call last):
    cerebro.errors.UsageError: unknown augmentation 'rotate'. Known: shift, crop, flip, fill.
    """
    check_augment(options)
    return Augment(**options)
