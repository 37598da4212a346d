"""R7: a damaged file is noticed, named and never used; what can be computed again is."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import random
import shutil

import pytest

from cerebro import Result
from cerebro.backend import LocalBackend
from cerebro.errors import (
    CheckpointCorruptError,
    DataError,
    JournalCorruptError,
    RunCorruptError,
    ShardCorruptError,
)
from cerebro.storage.disk import Disk
from cerebro.testing.faults import Corrupt, CountOnly, FaultyDisk, flip_bit
from cerebro.testing.history import check
from cerebro.testing.toy import ToyTask
from tests.experiments import (
    content,
    copy_run,
    fit_toy,
    learnt,
    make_toy_data,
    outcome,
    refusal,
    stop_after,
    toy_spec,
)

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300), pytest.mark.alone]

FLIPS = 200
CUTS = 50
#: Kinds of files -> the error that refuses one; None where it is computed again instead.
KINDS = {
    "data/*.arrow": ShardCorruptError,
    "data/dataset.json": DataError,
    "run/run.json": RunCorruptError,
    "run/journal.jsonl": JournalCorruptError,
    "run/trials/*/checkpoints/*.safetensors": None,
    "run/trials/*/checkpoints/*.json": None,
}
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Data, a run that was stopped two thirds through, and one that was not."""
    folder = tmp_path_factory.mktemp("corruption")
    make_toy_data(folder / "data")
    spec = toy_spec(folder / "data")
    fit_toy(folder / "whole", spec)
    stop_after(folder / "run", spec, visits=6)
    return folder


@pytest.fixture
def damaged(home, folder):
    """A copy to damage; the run's memory of where its data was does not matter."""
    for name in ("data", "run"):
        shutil.copytree(home / name, folder / name)
    return folder


def resume(home, **options):
    fit_toy(home / "run", toy_spec(home / "data"), **options)


def assert_never_silent(home, damaged, kind, file, what):
    """Resume what is damaged: exact, or refused by name, and exact once the file is whole again."""
    before, expected = content(damaged), KINDS[kind]
    error = refusal(lambda: resume(damaged))
    if error is not None:
        assert expected is not None, f"{what}: it must be computed again, but: {error}"
        assert isinstance(error, expected), f"{what}: {type(error).__name__}: {error}"
        assert file.name in str(error), f"{what}: {error}"
        if expected is not ShardCorruptError:
            assert content(damaged) == before, f"{what} changed something"
        shutil.copy(home / file.relative_to(damaged), file)
        resume(damaged)
    assert outcome(damaged / "run") == outcome(home / "whole"), what
    check(damaged / "run")
    return error is not None


def try_each(home, damaged, kind, damages):
    """Apply one damage after another, each to a fresh copy; how many were refused."""
    refused = 0
    for file, data, what in damages:
        file.write_bytes(data)
        refused += assert_never_silent(home, damaged, kind, file, what)
        copy_run(home / "run", damaged / "run")
        shutil.copy(home / file.relative_to(damaged), file)
    return refused


def files_of(damaged, kind):
    files = sorted(damaged.glob(kind))
    assert files, f"no file is a {kind}"
    return files


@kinds
def test_a_flipped_bit_is_never_used(home, damaged, kind, seed):
    rng = random.Random(f"{seed} {kind}")
    files = files_of(damaged, kind)
    damages = []
    for _ in range(FLIPS):
        file = rng.choice(files)
        data = file.read_bytes()
        bit = rng.randrange(8 * len(data))
        damages.append((file, flip_bit(data, bit), f"bit {bit} of {file} flipped"))
    refused = try_each(home, damaged, kind, damages)
    # A journal's last record looks as if it was being written; 1e-5 and 1E-5 are the same number.
    assert refused >= (0 if KINDS[kind] is None else FLIPS // 2)


@kinds
def test_a_file_cut_short_is_never_used(home, damaged, kind, seed):
    rng = random.Random(f"{seed} {kind}")
    files = files_of(damaged, kind)
    damages = []
    for number in range(CUTS):
        file = rng.choice(files)
        data = file.read_bytes()
        size = 0 if number == 0 else rng.randrange(len(data) - 1)
        damages.append((file, data[:size], f"{file} cut to {size} bytes"))
    refused = try_each(home, damaged, kind, damages)
    # A journal that ends early is one of a run that was killed early.
    assert refused == (0 if kind == "run/journal.jsonl" or KINDS[kind] is None else CUTS)


@kinds
def test_a_file_that_is_gone_is_missed(home, damaged, kind):
    for file in files_of(damaged, kind):
        file.unlink()
        is_refused = assert_never_silent(home, damaged, kind, file, f"{file} removed")
        # A run without a journal is one that was killed as it began.
        assert is_refused == (kind != "run/journal.jsonl" and KINDS[kind] is not None)
        copy_run(home / "run", damaged / "run")


def test_a_run_whose_document_is_gone_can_be_started_afresh(home, damaged):
    (damaged / "run" / "run.json").unlink()
    resume(damaged, fresh=True)
    assert outcome(damaged / "run") == outcome(home / "whole")
    assert (damaged / "run.1" / "journal.jsonl").exists()


def all_files(damaged):
    return [file for kind in KINDS for file in files_of(damaged, kind)]


def test_two_files_that_changed_places_are_never_used(home, damaged):
    pairs = list(itertools.combinations(all_files(damaged), 2))
    for one, other in pairs:
        datas = one.read_bytes(), other.read_bytes()
        one.write_bytes(datas[1])
        other.write_bytes(datas[0])
        error = refusal(lambda: resume(damaged))
        if error is None:
            assert outcome(damaged / "run") == outcome(home / "whole"), f"{one} is {other}"
            check(damaged / "run")
        else:
            assert isinstance(error, tuple(expected for expected in KINDS.values() if expected))
            assert one.name in str(error) or other.name in str(error), error
        for file in (one, other):
            shutil.copy(home / file.relative_to(damaged), file)
        copy_run(home / "run", damaged / "run")
    assert len(pairs) > 50


# Checkpoints


def checkpoints(root, trial=0):
    """Paths of the tensors of a trial's checkpoints, oldest first."""
    return sorted((root / "trials" / f"t{trial:04d}" / "checkpoints").glob("*.safetensors"))


def flip(file):
    file.write_bytes(flip_bit(file.read_bytes(), 8 * file.stat().st_size - 1))


def rollbacks(root):
    lines = (root / "journal.jsonl").read_bytes().splitlines()
    found = [json.loads(line.split(b" ", 2)[2]) for line in lines]
    return [(r["trial"], r["visits"]) for r in found if r["type"] == "rollback"]


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
@pytest.mark.parametrize("damage", [flip, os.unlink], ids=["flipped", "removed"])
def test_a_damaged_newest_checkpoint_costs_one_visit(home, damaged, caplog, suffix, damage):
    newest = checkpoints(damaged / "run", trial=1)[-1].with_suffix(suffix)
    damage(newest)
    visits = int(newest.name[1:7])
    with caplog.at_level(logging.WARNING, logger="cerebro"):
        resume(damaged, task=ToyTask(log=str(damaged / "visits")))
    assert rollbacks(damaged / "run") == [(1, visits - 1)]
    damage_told, task_told = caplog.messages
    assert newest.name in damage_told
    # The task has a log now, and had none.
    assert "arguments" in task_told
    # Of the 8 visits 6 were durable; one of them is done again.
    assert len((damaged / "visits").read_text().splitlines()) == 3
    assert outcome(damaged / "run") == outcome(home / "whole")
    check(damaged / "run")


def test_a_trial_without_a_good_checkpoint_starts_over(home, damaged):
    for file in checkpoints(damaged / "run"):
        flip(file)
    resume(damaged)
    assert rollbacks(damaged / "run") == [(0, 0)]
    assert outcome(damaged / "run") == outcome(home / "whole")
    check(damaged / "run")


def test_a_checkpoint_damaged_under_a_running_driver_is_not_used(home, damaged):
    """The disk writes a wrong bit, and the state is not in memory when it is needed."""
    spec = toy_spec(damaged / "data")
    counting = FaultyDisk(Disk(), CountOnly())
    fit_toy(damaged / "count", spec, disk=counting, memory_bytes=0)
    creates = [n for n, name in enumerate(counting.operations, 1) if name == "create"]
    noticed = 0
    for n in creates:
        root = damaged / f"run{n}"
        disk = FaultyDisk(Disk(), Corrupt(n, bit=-1))
        error = refusal(lambda: fit_toy(root, spec, disk=disk, memory_bytes=0))  # noqa: B023
        if error is not None:
            assert isinstance(error, CheckpointCorruptError)
            assert "/checkpoints/v" in str(error)
            noticed += 1
            fit_toy(root, spec)
            check(root)
        assert disk.has_fired
        with contextlib.suppress(RunCorruptError, JournalCorruptError):
            assert outcome(root) == outcome(home / "whole")
    assert noticed > 5


def test_a_damaged_checkpoint_of_a_finished_run_is_refused_by_name(home, folder):
    root = copy_run(home / "whole", folder / "run")
    for file in checkpoints(root):
        flip(file)
    before = content(root)
    with pytest.raises(CheckpointCorruptError, match=rf"{checkpoints(root)[-1].name}.*SHA-256"):
        Result.open(root).load(0, which="final")
    assert content(root) == before
    assert learnt(root) == learnt(home / "whole")


# Bits that flip on their way


def test_bits_flipped_by_the_disk_while_a_run_resumes_never_change_a_result(home, damaged, seed):
    """Whatever operation it hits, reading or writing: exact, or refused and exact afterwards."""
    rng = random.Random(seed)
    noticed_errors = RunCorruptError, JournalCorruptError
    for n in itertools.count(1):
        disk = FaultyDisk(Disk(), Corrupt(n, rng.randrange(1 << 20)))
        error = refusal(lambda: resume(damaged, disk=disk))  # noqa: B023
        assert error is None or isinstance(error, noticed_errors), error
        if n > len(disk.operations):
            break
        try:
            resume(damaged)
            found = outcome(damaged / "run")
        except noticed_errors:
            # What was written wrongly is noticed when it is read.
            assert disk.operations[n - 1] in ("create", "append")
        else:
            assert found == outcome(home / "whole"), f"another result after operation {n}"
        copy_run(home / "run", damaged / "run")
    assert n > 50


# Worker processes


def test_a_damaged_shard_ends_a_run_of_worker_processes_too(home, damaged):
    shard = files_of(damaged, "data/train-00001-*.arrow")[0]
    whole = shard.read_bytes()
    flip(shard)
    options = {"backend": LocalBackend(), "workers": 2, "threaded": True}
    with pytest.raises(ShardCorruptError, match=rf"{shard.name}.*SHA-256 must be"):
        resume(damaged, **options)
    check(damaged / "run", is_settled=False)
    shard.write_bytes(whole)
    resume(damaged, **{**options, "backend": LocalBackend()})
    assert outcome(damaged / "run") == outcome(home / "whole")
    check(damaged / "run")
