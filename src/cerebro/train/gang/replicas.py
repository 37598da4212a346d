"""Whether all ranks of a gang hold the same numbers, told from sums over their bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cerebro.errors import ReplicaError
from cerebro.train.gang.group import Gang

_WORD_BYTES = 8


def fingerprint(tensor: Tensor) -> Tensor:
    """A number that depends on every bit of a tensor, at the speed of memory.

    >>> one, other = torch.ones(3), torch.ones(3)
    >>> other[2] += 1e-7
    >>> bool(fingerprint(one) == fingerprint(other))
    False
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
    found = raw[:end].view(torch.int64).sum()
    return found if end == len(raw) else found + raw[end:].sum(dtype=torch.int64) * 31


def differing(gang: Gang, tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Tensors that are not the same for all ranks -> the first rank that differs from rank 0."""
    numbers = [fingerprint(tensor) for tensor in tensors.values()]
    own = torch.stack([*numbers, torch.tensor(0, device=numbers[0].device)]) if numbers else None
    row = torch.zeros(1, dtype=torch.int64) if own is None else own.cpu()
    counts = gang.gather(torch.tensor([len(row)]))
    if bool((counts != counts[0]).any()):
        names = gang.gather_json(list(tensors))
        return _missing(names)
    rows = gang.gather(row)
    if bool((rows == rows[0]).all()):
        return {}
    wrong = rows != rows[0]
    return {
        name: int(wrong[:, index].nonzero()[0])
        for index, name in enumerate(tensors)
        if bool(wrong[:, index].any())
    }


def require_same(gang: Gang, tensors: Mapping[str, Tensor], when: str, why: str) -> None:
    """Raise a ReplicaError, on all ranks, that names the first tensor that is not the same."""
    for name, rank in differing(gang, tensors).items():
        raise ReplicaError(
            f"the ranks of a gang must hold the same weights, but {when} {name} of rank {rank} "
            f"differs from that of rank 0. {why}"
        )


def _missing(names: Sequence[object]) -> dict[str, int]:
    sets = [set(row) if isinstance(row, list) else set() for row in names]
    return {
        str(name): rank for rank, own in enumerate(sets) for name in sorted(map(str, own ^ sets[0]))
    }
