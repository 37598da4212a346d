"""The options of `cerebro run` for several machines."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cerebro.backend.gang.rendezvous import Rendezvous

Nodes = Annotated[
    int | None,
    typer.Option(
        "--nodes", "-n", metavar="N", min=1, help="Machines that train together.", show_default="1"
    ),
]
Procs = Annotated[
    int | None,
    typer.Option(
        "--num_proc",
        "-np",
        metavar="N",
        min=1,
        help="Ranks of each machine; of one alone, its workers.",
        show_default="1 of several machines, as many as pay of one",
    ),
]
Node = Annotated[
    int | None,
    typer.Option(
        "--nr", "-nr", metavar="I", min=0, help="Which machine this is, from 0.", show_default="0"
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="Where machine 0 waits for the others.", show_default=False
    ),
]
Patience = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0,
        help="How long machines wait for each other to come; default 1800.",
        show_default=False,
    ),
]


def find_nodes(
    nodes: int | None,
    procs: int | None,
    node: int | None,
    master: str | None,
    patience_s: float | None,
) -> Rendezvous | None:
    """What the options say, or what torchrun, SLURM or MPI have set; None for a machine alone."""
    from cerebro.backend.gang.rendezvous import find_rendezvous

    return find_rendezvous(
        os.environ,
        nodes=nodes,
        procs=procs,
        node=node,
        master=master,
        patience_s=patience_s,
    )
