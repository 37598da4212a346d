"""Whether all ranks of a gang hold the same numbers, told from sums over their bits."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import torch
from torch import Tensor

from cerebro.errors import ReplicaError
from cerebro.train.gang.group import Gang
from cerebro.types import Json

_WORD_BYTES = 8
#: Odd, so that no difference is lost, and such that its powers have nothing in common.
_MIXED = 0x2545F4914F6CDD1D
#: Of a tensor with more words than the first, as many neighbours as the second count as one.
_FEW, _ROW = 1 << 13, 512


def fingerprint(tensor: Tensor) -> Tensor:
    """A number that depends on the bits of a tensor and their places, at the speed of memory.

    Of a large one, those of some 500 neighbouring words are added up: neither their order shows,
    nor the signs of an even number of them.

    >>> one, other = torch.arange(3.0), torch.arange(3.0)
    >>> other[2] += 1e-6
    >>> [bool(fingerprint(one) == fingerprint(each)) for each in (other, one.flip(0))]
    [False, False]
    """
    data = tensor.detach()
    if data.is_complex():
        data = torch.view_as_real(data)
    if not data.is_contiguous():
        data = data.contiguous()
    raw = data.reshape(-1).view(torch.uint8)
    if raw.storage_offset() % _WORD_BYTES:
        raw = raw.clone()
    end = len(raw) // _WORD_BYTES * _WORD_BYTES
    words, rest = raw[:end].view(torch.int64), raw[end:]
    whole = len(words) // _ROW * _ROW if len(words) > _FEW else 0
    parts = [words[whole:]]
    if whole:
        parts.append(words[:whole].view(-1, _ROW).sum(1))
    if len(rest):
        parts.append(rest.to(torch.int64))
    return _mix(parts[0] if len(parts) == 1 else torch.cat(parts))


def _mix(words: Tensor) -> Tensor:
    """The sum of numbers of which each is that of a word at its place, and of no other there."""
    mixed = words + torch.arange(1, len(words) + 1, device=words.device) * _MIXED
    mixed = (mixed ^ _upper(mixed)) * _MIXED
    return (mixed ^ _upper(mixed)).sum()


def _upper(words: Tensor) -> Tensor:
    """Their upper halves, without their signs."""
    return (words >> 32) & 0xFFFFFFFF


def compare(
    gang: Gang, tensors: Mapping[str, Tensor], when: str, why: str, loose: Container[str] = ()
) -> list[str]:
    """Raise a ReplicaError, on all ranks, unless they hold the same numbers.

    Args:
        loose: Names of tensors that may differ; returns those that do.
    """
    row = _fingerprints(list(tensors.values()))
    # One number of all: where ranks agree, as they should, it says so in one round.
    weights = torch.full_like(row, _MIXED).cumprod(0)
    found = gang.gather(torch.stack([torch.tensor(len(row)), (row * weights).sum()]))
    if bool((found == found[0]).all()):
        return []
    is_same_kind = bool((found[:, 0] == found[0, 0]).all())
    if is_same_kind:
        wrong = _differing(gang.gather(row), list(tensors))
    else:
        wrong = _missing(gang.gather_json(list(tensors)))
    for name, rank in wrong.items():
        if name not in loose or not is_same_kind:
            raise ReplicaError(
                f"the ranks of a gang must hold the same weights, but {when} {name} of rank {rank} "
                f"differs from that of rank 0. {why}"
            )
    return list(wrong)


def require_same_shapes(gang: Gang, tensors: Mapping[str, Tensor], when: str) -> None:
    """Raise a ReplicaError, on all ranks, unless one rank's tensors fit those of the others."""
    own: list[Json] = [[n, str(t.dtype), *t.shape] for n, t in tensors.items()]
    rows = gang.gather_json(own)
    for rank, row in enumerate(rows):
        if row != rows[0]:
            raise ReplicaError(
                f"the ranks of a gang must hold tensors of the same shapes, but {when} those of "
                f"rank {rank} differ from those of rank 0. A model must not depend on its process."
            )


def _fingerprints(tensors: Sequence[Tensor]) -> Tensor:
    """One number of each, on the CPU; optimizers keep some there, whatever device trains."""
    numbers = [fingerprint(tensor) for tensor in tensors]
    row = torch.zeros(len(numbers), dtype=torch.int64)
    for device in {number.device for number in numbers}:
        places = [place for place, number in enumerate(numbers) if number.device == device]
        row[places] = torch.stack([numbers[place] for place in places]).cpu()
    return row


def _differing(rows: Tensor, names: Sequence[str]) -> dict[str, int]:
    """Names of columns -> the first row that differs there from the first one."""
    wrong = rows != rows[0]
    return {
        name: int(wrong[:, index].nonzero()[0])
        for index, name in enumerate(names)
        if bool(wrong[:, index].any())
    }


def _missing(names: Sequence[object]) -> dict[str, int]:
    sets = [set(row) if isinstance(row, list) else set() for row in names]
    return {
        str(name): rank for rank, own in enumerate(sets) for name in sorted(map(str, own ^ sets[0]))
    }
