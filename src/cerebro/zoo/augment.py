"""Pictures shifted, zoomed, cropped and mirrored at random, a whole batch at a time.

Each change moves the rows and columns of a picture as a whole. So a batch is changed by one lookup:
for every row and column of every picture, which one of the original it shows; or, once it is
zoomed, which two it lies between.
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
    zoom: float = 0.0
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
        tall, wide = self._factors(rows, generator, x.device)
        ys, is_y = self._places(height, down, tall, top, None)
        xs, is_x = self._places(width, right, wide, left, mirror if self.flip else None)
        if self.zoom:
            changed = _resample(x, ys, xs)
        else:
            index = (ys[:, :, None] * width + xs[:, None, :]).reshape(rows, 1, height * width)
            changed = x.flatten(2).gather(2, index.expand(-1, x.shape[1], -1)).view(x.shape)
        if is_y is not None and is_x is not None:
            changed = changed * (is_y[:, None, :, None] & is_x[:, None, None, :])
        return changed

    def _factors(
        self, rows: int, generator: torch.Generator, device: torch.device
    ) -> tuple[Tensor | None, Tensor | None]:
        """How many lines of each original a line stands for, along both axes."""
        if not self.zoom:
            return None, None  # Nothing is drawn: what comes next is as ever.
        draws = torch.rand((2, rows, 1), generator=generator, device=generator.device).to(device)
        tall, wide = 1 - self.zoom + 2 * self.zoom * draws
        return tall, wide

    def _places(
        self,
        size: int,
        shift: Tensor,
        factor: Tensor | None,
        crop: Tensor,
        mirror: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Which line of its original each line of a picture shows, and whether it shows one."""
        at = torch.arange(size, device=shift.device).expand(len(shift), size)
        if mirror is not None:
            at = torch.where(mirror < 0.5, size - 1 - at, at)
        is_there = torch.ones_like(at, dtype=torch.bool)
        if self.crop:
            at = at + (crop * (2 * self.crop + 1)).long() - self.crop
            is_there = (at >= 0) & (at < size)
        if factor is not None:
            middle = (size - 1) / 2
            at = middle + (at - middle) * factor
        if self.shift:
            # Whole pixels, all from -furthest to +furthest alike.
            furthest = int(self.shift * size + 0.5)
            at = at - ((shift * (2 * furthest + 1)).long() - furthest)
        is_black = self.fill == "zero" and bool(self.shift or self.zoom)
        if is_black:
            # A line is as wide as a pixel.
            is_there = is_there & (at > -0.5) & (at < size - 0.5)
        return at.clamp(0, size - 1), is_there if self.crop or is_black else None


def _resample(x: Tensor, ys: Tensor, xs: Tensor) -> Tensor:
    """What pictures have at these rows and columns, which may lie between theirs."""
    changed = _between(_between(x, ys[:, None, :, None], 2), xs[:, None, None, :], 3)
    return (changed if x.is_floating_point() else changed.round_()).to(x.dtype)


def _between(x: Tensor, at: Tensor, axis: int) -> Tensor:
    """Lines of an axis, each a mixture of its two neighbours, as floats."""
    low = at.floor().long()
    high = (low + 1).clamp_(max=x.shape[axis] - 1)
    kind = torch.promote_types(x.dtype, torch.float32)
    first, second = (x.gather(axis, line.expand(x.shape)).to(kind) for line in (low, high))
    return first.lerp_(second, (at - low).to(kind))


def make_augment(options: Mapping[str, Any]) -> Change:
    """A function of a batch of pictures and a `torch.Generator`, for `Task.augment`.

    It takes and gives batches (rows, channels, height, width) of any type, usually uint8.

    Args:
        options: `shift`: by up to this share of the picture, in whole pixels, along both axes, with
            the border repeated (`fill: nearest`) or black (`fill: zero`). `zoom`: height and width
            each show a part of the picture about its middle, of 1 - zoom to 1 + zoom of its size,
            with the border as for shift, and pixels mixed of their neighbours. `crop`: so many
            black pixels are added on all sides, and a picture of the old size is cut out. `flip`:
            half of the pictures are mirrored.

    >>> change = make_augment({"shift": 0.1, "flip": True})
    >>> x = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4)
    >>> change(x, torch.Generator().manual_seed(0)).shape
    torch.Size([1, 1, 4, 4])
    >>> make_augment({"rotate": 10})
    Traceback (most recent call last):
    cerebro.errors.UsageError: unknown augmentation 'rotate'. Known: shift, zoom, crop, flip, fill.
    """
    check_augment(options)
    return Augment(**options)
