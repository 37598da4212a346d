"""How many machines a run has, as far as who started it has said so."""

from __future__ import annotations

from collections.abc import Mapping

from cerebro.backend.gang.rendezvous import Kind, Rendezvous

#: Where SLURM and torchrun say how many machines there are.
_NODES = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES", "GROUP_WORLD_SIZE")
#: Where MPI says how many ranks there are in all, and on this machine.
_RANKS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_SIZE", "MPI_LOCALNRANKS"),
)


def count_machines(environ: Mapping[str, str], spot: Rendezvous | None = None) -> int:
    """The most machines that flags, the batch system or a launcher say there are.

    >>> count_machines({"SLURM_JOB_NUM_NODES": "4"}), count_machines({})
    (4, 1)
    """
    found = [_count(environ.get(name)) for name in _NODES]
    for world, local in _RANKS:
        here = _count(environ.get(local))
        if here:
            found.append(-(-_count(environ.get(world)) // here))
    if spot is not None and spot.kind is Kind.FLAGS:
        found.append(spot.world // spot.local)
    return max(1, *found)


def _count(text: str | None) -> int:
    """A number of the environment; 0: it says nothing."""
    return int(text) if text is not None and text.isdecimal() else 0
