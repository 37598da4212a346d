"""Operations that a stack does in its own way while a step is traced.

For dropout each member draws its masks from a generator of its own, so that they depend neither on
the other members nor on how many there are. On the CPU they are the masks it would get alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from cerebro.train.stack.conv import conv2d


class StackOps(TorchFunctionMode):
    """Puts them in the place of PyTorch's.

    Args:
        member: A tensor that vmap takes apart along the stack, so that an operation on what all
            members share (a batch) still knows that it is done for each of them.
    """

    def __init__(self, member: Callable[[], Tensor]) -> None:
        super().__init__()
        self._member = member
        self._layers = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.item:
            # A number for each member, which goes where a number would go.
            return args[0].detach()
        if func is functional.dropout:
            return self._dropout(*args, **(kwargs or {}))
        if func is functional.conv2d:
            return conv2d(*args, **(kwargs or {}))
        if func is functional.adaptive_avg_pool2d:
            return _adaptive_avg_pool2d(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _dropout(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p in (0.0, 1.0) or inplace:
            return functional.dropout(input, p, training, inplace)
        self._layers += 1
        mask: Tensor = keep(input.detach(), self._member(), 1.0 - p, self._layers)
        return input * mask


def _adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    if output_size in (1, (1, 1), [1, 1]):
        # PyTorch's own asks for the strides of channels-last images, which vmap does not know.
        return input.mean((-2, -1), keepdim=True)
    return functional.adaptive_avg_pool2d(input, output_size)


class Masks:
    """Where the masks of the stack that is being trained come from."""

    def __init__(self) -> None:
        self._generators: list[torch.Generator] = []
        #: On a device: the members' seeds, and the number of the step.
        self.on_device: tuple[Tensor, Tensor] | None = None

    def seed(self, seeds: Sequence[int]) -> None:
        """Begin a visit: on the CPU one generator for each member."""
        if len(self._generators) != len(seeds):
            self._generators = [torch.Generator() for _ in seeds]
        for generator, seed in zip(self._generators, seeds, strict=True):
            generator.manual_seed(seed)

    def draw(self, like: Tensor, keep: float) -> Tensor:
        """Zero, or what makes up for the zeros."""
        masks = torch.empty_like(like)
        for mask, generator in zip(masks.unbind(0), self._generators, strict=True):
            mask.bernoulli_(keep, generator=generator)
        return masks.div_(keep)


MASKS = Masks()


@torch.library.custom_op("cerebro::stack_keep", mutates_args=())
def stack_keep(like: Tensor, keep: float, layer: int) -> Tensor:
    """The masks of all members for one dropout layer."""
    if like.is_cuda:
        from cerebro.train.stack.kernels import draw_masks

        if MASKS.on_device is None:
            raise RuntimeError("masks on a device need seeds there")
        return draw_masks(like, keep, layer, *MASKS.on_device)
    return MASKS.draw(like, keep)


@stack_keep.register_fake
def _(like: Tensor, keep: float, layer: int) -> Tensor:
    return torch.empty_like(like)


@torch.library.custom_op("cerebro::keep", mutates_args=())
def keep(like: Tensor, member: Tensor, keep: float, layer: int) -> Tensor:
    """The mask of one member; only ever called under vmap."""
    raise NotImplementedError("a mask is drawn for a stack")


@keep.register_fake
def _(like: Tensor, member: Tensor, keep: float, layer: int) -> Tensor:
    return torch.empty_like(like)


@keep.register_vmap
def _(
    info: Any,
    in_dims: tuple[int | None, ...],
    like: Tensor,
    member: Tensor,
    keep: float,
    layer: int,
) -> tuple[Tensor, int]:
    dim = in_dims[0]
    stacked = like.expand(info.batch_size, *like.shape) if dim is None else like.movedim(dim, 0)
    return stack_keep(stacked.contiguous(), keep, layer), 0
