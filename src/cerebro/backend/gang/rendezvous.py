"""Which ranks of a gang a process owns, and where all of them meet: from flags or environment."""

from __future__ import annotations

import enum
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cerebro.backend.gang.nodelist import expand_nodelist
from cerebro.errors import UsageError

#: What PyTorch's launchers take where nobody says otherwise.
DEFAULT_PORT = 29500
#: How long processes wait for each other: one may be busy preparing data.
PATIENCE_S = 1800.0
PATIENCE = "CEREBRO_PATIENCE_S"
#: Ports of SLURM jobs: below those that systems hand out by themselves.
_SLURM_PORTS = range(12000, 32000)


class Kind(enum.StrEnum):
    """Who has said so."""

    FLAGS = "flags"
    TORCHRUN = "torchrun"
    SLURM = "SLURM"
    MPI = "MPI"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """The place of one process among those that train together.

    >>> read_flags(nodes=3, procs=2, node=1, master="10.0.0.1:29500")
    Rendezvous(world=6, first=2, local=2, address='10.0.0.1:29500', kind=<Kind.FLAGS: 'flags'>, \
position=0, here=2, key='', patience_s=1800.0, is_borrowed=False)
    """

    #: Ranks in all.
    world: int
    #: This process owns the ranks from `first` on, `local` of them.
    first: int
    local: int
    #: "host:port" of rank 0's machine; "" where one process owns all ranks.
    address: str
    kind: Kind
    #: Of the first rank among those of its machine: decides its device.
    position: int = 0
    #: Ranks of this machine, those of other processes included.
    here: int = 1
    #: The same for all processes of one start, and for no other start.
    key: str = ""
    #: How long a process without rank 0 waits for the one with it, and that for all others.
    patience_s: float = PATIENCE_S
    #: The launcher's own store listens at the address: the port to meet at is published there.
    is_borrowed: bool = False
    #: Set once this process meets the others, or looks for them: then they hear how it ends.
    met: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)

    @property
    def is_leading(self) -> bool:
        """Whether rank 0 is here."""
        return self.first == 0

    @property
    def is_spread(self) -> bool:
        """Whether other processes own ranks, too."""
        return self.local < self.world

    def flags(self) -> list[str]:
        """Those of which `read_flags` makes this place.

        >>> read_flags(nodes=3, procs=2, node=1, master="a:7").flags()
        ['-n', '3', '-np', '2', '-nr', '1', '--master', 'a:7']
        """
        procs = ["-np", str(self.local)]
        if not self.is_spread:
            return procs
        nodes, node = self.world // self.local, self.first // self.local
        return ["-n", str(nodes), *procs, "-nr", str(node), "--master", self.address]


def find_rendezvous(
    environ: Mapping[str, str],
    *,
    nodes: int | None = None,
    procs: int | None = None,
    node: int | None = None,
    master: str | None = None,
    patience_s: float | None = None,
) -> Rendezvous | None:
    """What flags or environment say; None where they leave it to one machine.

    Args:
        environ: The environment; `CEREBRO_PATIENCE_S` in it is how long to wait for others.

    >>> found = find_rendezvous({"SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7",
    ...                          "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "gpu-[07-08]"})
    >>> found.first, found.world, found.address
    (1, 2, 'gpu-07:12217')
    """
    found = _find(environ, nodes=nodes, procs=procs, node=node, master=master)
    if patience_s is None:
        patience_s = _number(environ, PATIENCE, int(PATIENCE_S))
    return None if found is None else replace(found, patience_s=patience_s)


def _find(
    environ: Mapping[str, str],
    *,
    nodes: int | None,
    procs: int | None,
    node: int | None,
    master: str | None,
) -> Rendezvous | None:
    told = read_environment(environ)
    if nodes is None and procs is None and node is None and master is None:
        return told
    if told is not None:
        raise UsageError(
            f"ranks are given by flags or by the launcher, but -n, -np, -nr or --master came in a "
            f"process that {told.kind} has started as rank {told.first} of {told.world}. Leave the "
            "flags out, or start it without the launcher."
        )
    if master is None and "MASTER_ADDR" in environ:
        master = f"{environ['MASTER_ADDR']}:{environ.get('MASTER_PORT', DEFAULT_PORT)}"
    found = read_flags(
        nodes=1 if nodes is None else nodes,
        procs=1 if procs is None else procs,
        node=0 if node is None else node,
        master=master,
    )
    # How many workers one machine has is its own affair, unless that is said, too.
    return None if procs is None and found.world == 1 else found


def read_flags(*, nodes: int, procs: int, node: int, master: str | None) -> Rendezvous:
    """Node i of `nodes` owns the ranks from i * procs on, `procs` of them."""
    if nodes < 1 or procs < 1:
        raise UsageError(f"`-n >= 1` and `-np >= 1` must hold, but got -n {nodes} -np {procs}.")
    if not 0 <= node < nodes:
        raise UsageError(
            f"`0 <= -nr < -n` must hold, but got -nr {node} of -n {nodes}: nodes are numbered "
            f"from 0 to {nodes - 1}."
        )
    if nodes > 1 and master is None:
        raise UsageError(
            f"{nodes} nodes must know where to meet, but got no --master. Give all of them "
            "--master HOST:PORT, an address of node 0 and a free port there."
        )
    address = "" if nodes == 1 or master is None else ":".join(map(str, split_address(master)))
    return Rendezvous(
        world=nodes * procs,
        first=node * procs,
        local=procs,
        address=address,
        kind=Kind.FLAGS,
        here=procs,
    )


def read_environment(environ: Mapping[str, str]) -> Rendezvous | None:
    """What a launcher has set; None where it has started one process only."""
    found = _read_launcher(environ)
    return found if found is not None and found.world > 1 else None


def find_lone_launcher(environ: Mapping[str, str]) -> Kind | None:
    """Who has started this process as the only rank there is; None if it was nobody.

    >>> find_lone_launcher({"RANK": "0", "WORLD_SIZE": "1"})
    <Kind.TORCHRUN: 'torchrun'>
    """
    found = _read_launcher(environ)
    if found is None or found.world > 1 or "SLURM_PTY_PORT" in environ:
        # `srun --pty` starts a shell, in which people work as anywhere.
        return None
    return found.kind


def _read_launcher(environ: Mapping[str, str]) -> Rendezvous | None:
    # A launcher may itself run in a step of SLURM: the innermost has the last word. `srun` may set
    # the variables of PMI, though, and knows more.
    for reader in (_read_torchrun, _read_open_mpi, _read_hydra, _read_slurm, _read_pmi):
        found = reader(environ)
        if found is None:
            continue
        if not 0 <= found.first < found.world:
            raise UsageError(
                f"`0 <= rank < world` must hold, but {found.kind} has set rank {found.first} of "
                f"{found.world}."
            )
        return found
    return None


def split_address(text: str) -> tuple[str, int]:
    """Host and port.

    >>> split_address("node0:29500"), split_address("[fe80::1]:29500")
    (('node0', 29500), ('[fe80::1]', 29500))
    """
    host, _, port = text.rpartition(":")
    if (
        not host
        or not port.isdigit()
        or not 0 < int(port) < 65536
        or (":" in host) != ("[" in host)
    ):
        raise UsageError(
            f"an address must be HOST:PORT, such as 10.0.0.1:{DEFAULT_PORT}, but got {text!r}."
        )
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """The reverse of it.

    >>> join_address("fe80::1", 29500)
    '[fe80::1]:29500'
    """
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _read_torchrun(environ: Mapping[str, str]) -> Rendezvous | None:
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    world = _number(environ, "WORLD_SIZE")
    run, restart = (environ.get(f"TORCHELASTIC_{name}", "") for name in ("RUN_ID", "RESTART_COUNT"))
    return Rendezvous(
        world=world,
        first=_number(environ, "RANK"),
        local=1,
        address=_master(environ, Kind.TORCHRUN) if world > 1 else "",
        kind=Kind.TORCHRUN,
        position=_number(environ, "LOCAL_RANK", 0),
        here=_number(environ, "LOCAL_WORLD_SIZE", 1),
        key=f"torchrun {run} {restart}".strip(),
        is_borrowed=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _read_open_mpi(environ: Mapping[str, str]) -> Rendezvous | None:
    prefix = "OMPI_COMM_WORLD_"
    return _read_mpi(
        environ, *(prefix + name for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
    )


def _read_hydra(environ: Mapping[str, str]) -> Rendezvous | None:
    """The mpirun of MPICH and Intel, which has one task of SLURM on each node start the ranks."""
    return _read_pmi(environ) if "MPI_LOCALNRANKS" in environ else None


def _read_pmi(environ: Mapping[str, str]) -> Rendezvous | None:
    return _read_mpi(environ, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")


def _read_mpi(
    environ: Mapping[str, str], rank: str, size: str, local: str, here: str
) -> Rendezvous | None:
    if rank not in environ or size not in environ:
        return None
    world = _number(environ, size)
    return Rendezvous(
        world=world,
        first=_number(environ, rank),
        local=1,
        address=_master(environ, Kind.MPI) if world > 1 else "",
        kind=Kind.MPI,
        position=_number(environ, local, 0),
        here=_number(environ, here, 1),
    )


def _read_slurm(environ: Mapping[str, str]) -> Rendezvous | None:
    # Without a step it is the batch script itself, or a shell: one process, whatever was allocated.
    if "SLURM_PROCID" not in environ or "SLURM_STEP_ID" not in environ:
        return None
    world = _number(environ, "SLURM_STEP_NUM_TASKS", _number(environ, "SLURM_NTASKS", 1))
    job, step = _number(environ, "SLURM_JOB_ID"), _number(environ, "SLURM_STEP_ID")
    restart = _number(environ, "SLURM_RESTART_COUNT", 0)
    address = _slurm_address(environ, job, step, restart) if world > 1 else ""
    return Rendezvous(
        world=world,
        first=_number(environ, "SLURM_PROCID"),
        local=1,
        address=address,
        kind=Kind.SLURM,
        position=_number(environ, "SLURM_LOCALID", 0),
        here=_slurm_tasks(environ),
        key=f"SLURM {job}.{step} {restart}",
    )


def _slurm_address(environ: Mapping[str, str], job: int, step: int, restart: int) -> str:
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    host = environ.get("MASTER_ADDR") or next(iter(expand_nodelist(nodes)), "")
    if not host:
        raise UsageError(
            "SLURM must say which nodes a job has, but SLURM_JOB_NODELIST is not set. Set "
            "MASTER_ADDR to the name of the first one."
        )
    # Two jobs on one node, two steps of a job and a job that begins again do not meet each other.
    offset = (31 * job + 7 * step + restart) % len(_SLURM_PORTS)
    return f"{host}:{_number(environ, 'MASTER_PORT', _SLURM_PORTS[offset])}"


def _slurm_tasks(environ: Mapping[str, str]) -> int:
    """Of the node that has most of them, as all have as many threads: `2(x3),1`."""
    told = environ.get("SLURM_STEP_TASKS_PER_NODE", "1").split(",")
    counts = [count for each in told if (count := each.partition("(")[0]).isdigit()]
    return max(map(int, counts), default=1)


def _master(environ: Mapping[str, str], kind: Kind) -> str:
    host = environ.get("MASTER_ADDR")
    if not host:
        raise UsageError(
            f"ranks must know where to meet, but {kind} has set no MASTER_ADDR. Set it to the name "
            f"of the machine of rank 0, and MASTER_PORT unless {DEFAULT_PORT} is free there."
        )
    return f"{host}:{_number(environ, 'MASTER_PORT', DEFAULT_PORT)}"


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdigit():
        found = "it is not set" if text is None else f"got {text!r}"
        raise UsageError(f"the environment variable {name} must be a number, but {found}.")
    return int(text)
