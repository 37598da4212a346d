"""Gradients of all ranks added up, while the backward pass is still at work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cerebro.errors import UsageError
from cerebro.train.gang.group import Gang

#: What goes to the other ranks at a time.
_BUCKET_BYTES = 25 << 20
#: A gradient of so many travels by itself, and from where it is if nobody else may read it there.
_LARGE_BYTES = 4 << 20
#: Gradients begin at multiples of this.
_ALIGNMENT_BYTES = 64
#: In which a loss and flags can be added up without loss.
_EXACT = (torch.float32, torch.float64)


@dataclass(eq=False, slots=True)
class _Bucket:
    """Gradients that travel together: views of one flat tensor, or one large gradient."""

    params: list[Tensor] = field(default_factory=list)
    is_large: bool = False
    views: list[Tensor] = field(default_factory=list)
    flat: Tensor = field(default_factory=lambda: torch.empty(0))
    #: Parameters whose gradient is not there yet.
    waiting: set[int] = field(default_factory=set)
    #: It is on its way.
    is_sent: bool = False


class BucketMemory:
    """Flat tensors that are used again by the visits of one gang."""

    def __init__(self) -> None:
        self._flats: dict[tuple[int, torch.dtype, torch.device, int], Tensor] = {}
        self._used: set[tuple[int, torch.dtype, torch.device, int]] = set()

    def take(self, index: int, numel: int, like: Tensor) -> Tensor:
        key = (index, like.dtype, like.device, numel)
        self._used.add(key)
        if key not in self._flats:
            self._flats[key] = torch.zeros(numel, dtype=like.dtype, device=like.device)
        return self._flats[key]

    def sweep(self) -> None:
        """Give back what was not taken since the last call."""
        self._flats = {key: flat for key, flat in self._flats.items() if key in self._used}
        self._used.clear()


class GradientSync:
    """Replaces the gradients of a trial's parameters by their sums over all ranks, step by step.

    A bucket is on its way as soon as the last of its gradients is there, always in the same order.
    A parameter that no rank has used has no gradient afterwards, as with one worker. The loss
    travels with the last bucket.
    """

    def __init__(self, gang: Gang, params: Sequence[Tensor], memory: BucketMemory) -> None:
        self._gang = gang
        self._memory = memory
        trained = list({id(p): p for p in params if p.requires_grad}.values())
        self._index = {id(param): index for index, param in enumerate(trained)}
        self._buckets = _fill_buckets(trained)
        self._tail = self._lay_out(trained)
        self._is_armed = False
        self._next = 0
        self._unused: list[Tensor] = []
        self._hooks = [
            param.register_post_accumulate_grad_hook(self._hook(bucket))  # type: ignore[no-untyped-call]
            for bucket in self._buckets
            for param in bucket.params
        ]

    def begin(self, loss: Tensor | float) -> None:
        """The last backward pass of a step comes next; this rank's part of the loss is known."""
        self._tail.fill_(1.0)
        self._tail[0] = loss
        self._next, self._unused = 0, []
        for bucket in self._buckets:
            bucket.waiting = {id(param) for param in bucket.params}
            bucket.is_sent = False
        self._is_armed = True

    def finish(self) -> Tensor:
        """Wait for all ranks; the loss of the whole batch, which is valid until the next step."""
        self._is_armed = False
        while self._next < len(self._buckets):
            self._launch()
        self._gang.finish()
        if self._unused:
            self._give_up_unused()
        return self._tail[0]

    def close(self) -> None:
        """Leave the parameters as they were found."""
        for hook in self._hooks:
            hook.remove()

    def _lay_out(self, trained: list[Tensor]) -> Tensor:
        """Give the buckets their memory; the part of the last one that holds loss and flags."""
        last = self._buckets[-1] if self._buckets else None
        if last is None or last.is_large or last.params[0].dtype not in _EXACT:
            self._buckets.append(_Bucket())
        tail_count, tail = 1 + len(trained), torch.empty(0)
        for number, bucket in enumerate(self._buckets):
            if bucket.is_large:
                continue
            is_last = number == len(self._buckets) - 1
            if bucket.params:
                like = bucket.params[0]
            else:
                device = trained[0].device if trained else torch.device("cpu")
                like = torch.empty(0, device=device)
            step = _ALIGNMENT_BYTES // like.element_size()
            starts, end = [], 0
            for param in bucket.params:
                starts.append(end)
                end += -(-param.numel() // step) * step
            bucket.flat = self._memory.take(number, end + tail_count * is_last, like)
            bucket.views = [
                _view(bucket.flat, start, param)
                for start, param in zip(starts, bucket.params, strict=True)
            ]
            tail = bucket.flat[end:]
        return tail

    def _hook(self, bucket: _Bucket) -> Callable[[Tensor], None]:
        def arrived(param: Tensor) -> None:
            if not self._is_armed:
                return
            if bucket.is_sent:
                raise UsageError(
                    "a gradient must be ready once in a backward pass to be averaged over the "
                    "ranks of a gang, but one came again: use "
                    "torch.utils.checkpoint(..., use_reentrant=False)."
                )
            bucket.waiting.discard(id(param))
            while self._next < len(self._buckets) and not self._buckets[self._next].waiting:
                self._launch()

        return arrived

    def _launch(self) -> None:
        """Send the next bucket on its way; what has no gradient here counts as zeros."""
        number, bucket = self._next, self._buckets[self._next]
        self._next += 1
        bucket.is_sent = True
        grads = [param.grad for param in bucket.params]
        found = [grad for grad in grads if grad is not None]
        if any(grad.layout is not torch.strided for grad in found):
            raise UsageError(
                "gradients must be dense to be averaged over the ranks of a gang, but one is "
                "sparse: build nn.Embedding with sparse=False."
            )
        if bucket.is_large:
            if found and _is_own(found[0], bucket.params[0]):
                self._gang.add_up(found[0].as_strided((found[0].numel(),), (1,)))
                return
            # Other ranks need not know: what they send has the same order and size.
            param = bucket.params[0]
            bucket.flat = self._memory.take(number, param.numel(), param)
            bucket.views = [_view(bucket.flat, 0, param)]
        if len(found) == len(grads):
            if found:
                torch._foreach_copy_(bucket.views, found)
        else:
            for param, view, grad in zip(bucket.params, bucket.views, grads, strict=True):
                if grad is None:
                    view.zero_()
                    self._tail[1 + self._index[id(param)]] = 0.0
                    self._unused.append(param)
                else:
                    view.copy_(grad)
        for param, view in zip(bucket.params, bucket.views, strict=True):
            param.grad = view
        self._gang.add_up(bucket.flat)

    def _give_up_unused(self) -> None:
        """What no rank has used gets no gradient, and so no update."""
        flags = self._tail.tolist()
        for param in self._unused:
            if flags[1 + self._index[id(param)]] == 0.0:
                param.grad = None


def _fill_buckets(trained: list[Tensor]) -> list[_Bucket]:
    """Buckets in the order in which they are full, roughly: the last parameters come first."""
    buckets: list[_Bucket] = []
    filling: _Bucket | None = None
    room = 0
    for param in reversed(trained):
        size = param.numel() * param.element_size()
        if size >= _LARGE_BYTES:
            buckets.append(_Bucket([param], is_large=True))
            continue
        if filling is not None and (filling.params[0].dtype != param.dtype or size > room):
            buckets.append(filling)
            filling = None
        if filling is None:
            filling, room = _Bucket(), _BUCKET_BYTES
        filling.params.append(param)
        room -= size
    return buckets if filling is None else [*buckets, filling]


def _is_own(grad: Tensor, param: Tensor) -> bool:
    """Whether a gradient has its memory for itself, all of it, and laid out as on other ranks.

    Gradients of views of several parameters may be views of one: to change one of them would change
    the others, of which some may not have been used yet.
    """
    storage = grad.untyped_storage()
    elsewhere = _view(torch.empty(param.numel(), device="meta"), 0, param)
    return (
        grad.dtype == param.dtype
        and grad.stride() == elsewhere.stride()
        and storage.nbytes() == grad.numel() * grad.element_size()
        # Memory of NumPy, say, may be that of several storages.
        and storage.resizable()
        and _users(grad) == _NO_OTHERS
    )


def _users(tensor: Tensor) -> int:
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


#: Of the memory of a tensor that nobody shares: the tensor, and what counts them.
_NO_OTHERS = _users(torch.empty(1))


def _view(flat: Tensor, start: int, param: Tensor) -> Tensor:
    """A part of a flat tensor with the shape of a parameter, and its strides if they fill it."""
    part = flat[start : start + param.numel()]
    strides = sorted(zip(param.stride(), param.shape, strict=True))
    expected = 1
    for stride, length in strides:
        if length > 1 and stride != expected:
            return part.view(param.shape)
        expected *= length
    return part.as_strided(param.shape, param.stride())
