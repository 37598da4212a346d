from __future__ import annotations

import pytest

from cerebro.backend.gang.nodelist import expand_nodelist
from cerebro.backend.gang.rendezvous import (
    Kind,
    find_lone_launcher,
    find_rendezvous,
    split_address,
)
from cerebro.errors import UsageError

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SLURM = {
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_JOB_ID": "41",
    "SLURM_JOB_NODELIST": "gpu-[07-08]",
}
BATCH = {name: value for name, value in SLURM.items() if "STEP" not in name}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "MASTER_ADDR": "node0",
}
PMI = {"PMI_RANK": "0", "PMI_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "1234"}
HYDRA = {**PMI, "PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        pytest.param({"nodes": 3, "master": "a:7"}, (3, 0, 1, "a:7"), id="the first of three"),
        pytest.param(
            {"nodes": 3, "procs": 1, "node": 2, "master": "a:7"}, (3, 2, 1, "a:7"), id="the last"
        ),
        pytest.param(
            {"nodes": 2, "procs": 4, "node": 1, "master": "a:7"}, (8, 4, 4, "a:7"), id="four each"
        ),
        pytest.param({"procs": 2}, (2, 0, 2, ""), id="one machine"),
        pytest.param({"nodes": 1, "procs": 1}, (1, 0, 1, ""), id="one rank"),
        pytest.param({"procs": 2, "master": "a:7"}, (2, 0, 2, ""), id="one machine and a master"),
    ],
)
def test_flags_say_which_ranks_a_machine_has(flags, expected):
    found = find_rendezvous({}, **flags)
    assert (found.world, found.first, found.local, found.address) == expected
    assert found.kind is Kind.FLAGS


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param(TORCHRUN, (4, 3, 1, "node0:29400", Kind.TORCHRUN), id="torchrun"),
        pytest.param(SLURM, (2, 1, 0, "gpu-07:13271", Kind.SLURM), id="srun"),
        pytest.param(
            {**SLURM, "SLURM_STEP_NODELIST": "n3", "SLURM_RESTART_COUNT": "2"},
            (2, 1, 0, "n3:13273", Kind.SLURM),
            id="a step on some nodes of a job that began again",
        ),
        pytest.param(
            {**SLURM, "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "5000"},
            (2, 1, 0, "10.0.0.9:5000", Kind.SLURM),
            id="srun with an address of one's own",
        ),
        pytest.param(OPEN_MPI, (3, 2, 1, "node0:29500", Kind.MPI), id="mpirun of Open MPI"),
        pytest.param(PMI, (2, 0, 0, "node0:1234", Kind.MPI), id="mpiexec of MPICH"),
        pytest.param({**SLURM, **TORCHRUN}, (4, 3, 1, "node0:29400", Kind.TORCHRUN), id="in srun"),
        pytest.param(
            {**SLURM, **OPEN_MPI}, (3, 2, 1, "node0:29500", Kind.MPI), id="mpirun in srun"
        ),
        pytest.param({**SLURM, **PMI}, (2, 1, 0, "node0:1234", Kind.SLURM), id="srun with PMI"),
        pytest.param(
            {**SLURM, **HYDRA}, (4, 2, 0, "node0:1234", Kind.MPI), id="mpirun of MPICH in a job"
        ),
    ],
)
def test_the_environment_of_a_launcher_says_which_rank_a_process_is(environ, expected):
    found = find_rendezvous(environ)
    assert (found.world, found.first, found.position, found.address, found.kind) == expected
    assert found.local == 1


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({}, id="nothing"),
        pytest.param(BATCH, id="a batch script, outside of srun"),
        pytest.param(
            {**SLURM, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, id="a step of one task"
        ),
        pytest.param({"RANK": "0", "WORLD_SIZE": "1"}, id="torchrun with one process"),
        pytest.param({"RANK": "5"}, id="a variable that happens to have this name"),
    ],
)
def test_one_process_alone_meets_nobody(environ):
    assert find_rendezvous(environ) is None


@pytest.mark.parametrize(
    "flags", [{"nodes": 1}, {"node": 0}, {"nodes": 1, "master": "a:7"}], ids=str
)
def test_one_machine_may_have_as_many_workers_as_it_likes(flags):
    assert find_rendezvous({}, **flags) is None


def test_the_address_of_flags_may_come_from_the_environment():
    environ = {"MASTER_ADDR": "10.10.1.1", "MASTER_PORT": "29501"}
    assert find_rendezvous(environ, nodes=2, node=1).address == "10.10.1.1:29501"


def test_a_start_has_a_key_of_its_own():
    again = {**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"}
    assert find_rendezvous(TORCHRUN).key != find_rendezvous(again).key
    assert find_rendezvous(SLURM).key == find_rendezvous({**SLURM, "SLURM_PROCID": "0"}).key


def test_the_store_of_torchrun_keeps_its_port():
    assert find_rendezvous(TORCHRUN).is_borrowed
    by_hand = {name: value for name, value in TORCHRUN.items() if "ELASTIC" not in name}
    assert not find_rendezvous(by_hand).is_borrowed


def test_patience_is_a_flag_or_a_variable():
    assert find_rendezvous(TORCHRUN, patience_s=5).patience_s == 5
    assert find_rendezvous({**TORCHRUN, "CEREBRO_PATIENCE_S": "9"}).patience_s == 9


@pytest.mark.parametrize(
    ("environ", "flags", "message"),
    [
        pytest.param({}, {"nodes": 2, "node": 2, "master": "a:7"}, "-nr 2 of -n 2", id="rank"),
        pytest.param({}, {"node": 1}, "-nr 1 of -n 1", id="rank without nodes"),
        pytest.param({}, {"nodes": 2}, "no --master", id="no master"),
        pytest.param({}, {"nodes": 0}, "-n >= 1", id="no nodes"),
        pytest.param({}, {"nodes": 2, "master": "a"}, "HOST:PORT", id="no port"),
        pytest.param({}, {"nodes": 2, "master": "a:99999"}, "HOST:PORT", id="no such port"),
        pytest.param(TORCHRUN, {"nodes": 2}, "torchrun has started as rank 3 of 4", id="both"),
        pytest.param(SLURM, {"procs": 2}, "SLURM has started as rank 1 of 2", id="both with SLURM"),
        pytest.param({**TORCHRUN, "RANK": "4"}, {}, "rank 4 of 4", id="rank of torchrun"),
        pytest.param({**TORCHRUN, "RANK": "x"}, {}, "RANK must be a number", id="no number"),
        pytest.param({**TORCHRUN, "MASTER_ADDR": ""}, {}, "no MASTER_ADDR", id="no address"),
        pytest.param({**OPEN_MPI, "MASTER_ADDR": ""}, {}, "MPI has set no MASTER_ADDR", id="MPI"),
        pytest.param({**SLURM, "SLURM_JOB_NODELIST": ""}, {}, "SLURM_JOB_NODELIST", id="no nodes"),
        pytest.param({**SLURM, "SLURM_JOB_NODELIST": "n[1-"}, {}, "n[1-3,7]", id="damaged list"),
    ],
)
def test_what_does_not_fit_together_is_refused(environ, flags, message):
    with pytest.raises(UsageError) as error:
        find_rendezvous(environ, **flags)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("gpu-[01-04]", ["gpu-01", "gpu-02", "gpu-03", "gpu-04"]),
        ("a,b[9-11],c", ["a", "b9", "b10", "b11", "c"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("gpu-[098-101]-ib0", ["gpu-098-ib0", "gpu-099-ib0", "gpu-100-ib0", "gpu-101-ib0"]),
        ("", []),
    ],
)
def test_lists_of_nodes_are_expanded(text, expected):
    assert expand_nodelist(text) == expected


@pytest.mark.parametrize(
    "text", ["n[", "n]1", "n[a]", "n[2-1]", "n[1-", "n[0-999999999]", "n[[1]]"]
)
def test_damaged_lists_of_nodes_are_refused(text):
    with pytest.raises(UsageError, match="MASTER_ADDR"):
        expand_nodelist(text)


def test_addresses_of_the_new_kind_stand_in_brackets():
    assert split_address("[fd00::1]:80") == ("[fd00::1]", 80)
    with pytest.raises(UsageError):
        split_address("fd00::1:80")


LONE = {**SLURM, "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param(LONE, Kind.SLURM, id="srun"),
        pytest.param({**LONE, "SLURM_PTY_PORT": "41234"}, None, id="a shell by srun --pty"),
        pytest.param(SLURM, None, id="one of two"),
        pytest.param({}, None, id="nobody"),
    ],
)
def test_the_only_rank_of_a_launcher_is_known_from_a_shell(environ, expected):
    assert find_lone_launcher(environ) is expected
