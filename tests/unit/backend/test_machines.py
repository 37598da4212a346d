from __future__ import annotations

import pytest

from cerebro.backend.gang.machines import count_machines
from cerebro.backend.gang.rendezvous import find_rendezvous

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node0"}


@pytest.mark.parametrize(
    ("environ", "machines"),
    [
        ({}, 1),
        ({"SLURM_JOB_NUM_NODES": "4", "SLURM_NNODES": "4"}, 4),
        ({**TORCHRUN, "GROUP_WORLD_SIZE": "4"}, 4),
        ({"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, 3),
        ({"PMI_SIZE": "8", "MPI_LOCALNRANKS": "2"}, 4),
        ({"SLURM_NNODES": "many"}, 1),
    ],
    ids=["alone", "slurm", "torchrun", "open mpi", "pmi", "nonsense"],
)
def test_launchers_say_how_many_there_are(environ, machines):
    assert count_machines(environ) == machines


@pytest.mark.parametrize(("nodes", "procs"), [(1, 4), (3, 1), (3, 2)])
def test_flags_say_how_many_there_are(nodes, procs):
    spot = find_rendezvous({}, nodes=nodes, procs=procs, node=0, master="node0:29500")
    assert count_machines({}, spot) == nodes
