from __future__ import annotations

import errno
import hashlib
import json
import random

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from cerebro.errors import CheckpointCorruptError, DiskFullError, UsageError
from cerebro.storage import DirectoryStore
from cerebro.storage.checkpoint import CheckpointRef, collect, load, save, sweep
from cerebro.storage.disk import Disk
from cerebro.storage.store import is_temp
from cerebro.testing.faults import WRITES, CountOnly, Fail, FaultyDisk, flip_bit

STATE = safetensors.numpy.save({"w": np.arange(12, dtype=np.float32)})
META = {"epoch": 1, "loss": 0.25, "scheduler": {"steps": [1, 2]}}
REF = CheckpointRef(unit=7, visits=12, name="v000012-a0", sha256="0" * 64, bytes=9, parent=None)


@pytest.fixture
def store(tmp_path):
    store = DirectoryStore(tmp_path / "run")
    yield store
    store.close()


def save_one(store, unit=0, visits=1, attempt=0, data=STATE, meta=META, parent=None):
    return save(store, unit, visits=visits, attempt=attempt, data=data, meta=meta, parent=parent)


def test_what_was_saved_is_loaded(store):
    ref = save_one(store)
    assert load(store, ref) == (ref, STATE, META)


def test_the_reference_holds_what_verifies_the_state(store):
    parent = "a" * 64
    assert save_one(store, unit=7, visits=12, attempt=1, parent=parent) == CheckpointRef(
        unit=7,
        visits=12,
        name="v000012-a1",
        sha256=hashlib.sha256(STATE).hexdigest(),
        bytes=len(STATE),
        parent=parent,
    )


def test_a_checkpoint_is_two_plain_files(store):
    save_one(store, unit=7, visits=12)
    assert store.list("trials/t0007/checkpoints") == ["v000012-a0.json", "v000012-a0.safetensors"]


def test_the_data_is_a_safetensors_file(store):
    ref = save_one(store)
    assert safetensors.numpy.load(store.read(ref.data_path))["w"].tolist() == list(range(12))


def test_the_manifest_is_json_for_people(store):
    ref = save_one(store)
    manifest = json.loads(store.read(ref.manifest_path))
    assert (manifest["format"], manifest["sha256"], manifest["meta"]) == (1, ref.sha256, META)


def test_the_data_gets_its_name_before_the_manifest(store, tmp_path):
    class Spy(Disk):
        renamed: tuple[str, ...] = ()

        def rename(self, source, target):
            self.renamed = (*self.renamed, target.rpartition(".")[2])
            super().rename(source, target)

    spy = Spy()
    save_one(DirectoryStore(tmp_path / "run", spy))
    assert spy.renamed == ("safetensors", "json")


def test_a_state_may_come_in_pieces(store):
    ref = save_one(store, data=[STATE[:10], memoryview(STATE)[10:]])
    assert load(store, ref).data == STATE


def test_a_state_is_loaded_into_a_given_buffer(store):
    ref = save_one(store)
    buffer = bytearray(len(STATE) + 100)
    data = load(store, ref, into=lambda size: memoryview(buffer)[: size + 50]).data
    assert buffer[: len(STATE)] == STATE
    assert data == STATE


def test_a_buffer_that_is_too_small_is_refused(store):
    ref = save_one(store)
    with pytest.raises(UsageError, match="must be given"):
        load(store, ref, into=lambda size: bytearray(size - 1))


def test_meta_with_tuples_and_integer_keys_verifies(store):
    ref = save_one(store, meta={"betas": (0.9, 0.99), "lr": {2: 0.1, 10: 0.2}})
    assert load(store, ref).meta == {"betas": [0.9, 0.99], "lr": {"2": 0.1, "10": 0.2}}


def test_meta_keeps_numbers_that_are_not_finite(store):
    ref = save_one(store, meta={"loss": float("inf")})
    assert load(store, ref).meta == {"loss": float("inf")}


@pytest.mark.parametrize("which", ["data_path", "manifest_path"])
def test_every_flipped_bit_is_detected(store, which):
    ref = save_one(store)
    path = getattr(ref, which)
    good = store.read(path)
    for bit in random.Random(0).sample(range(8 * len(good)), 200):
        store.write(path, flip_bit(good, bit))
        with pytest.raises(CheckpointCorruptError, match=path):
            load(store, ref)


@pytest.mark.parametrize("which", ["data_path", "manifest_path"])
def test_every_truncation_is_detected(store, which):
    ref = save_one(store)
    path = getattr(ref, which)
    # The manifest's last byte is a newline, without which it says the same.
    for size in range(store.size(path) - 2, -1, -1):
        store.truncate(path, size)
        with pytest.raises(CheckpointCorruptError, match=path):
            load(store, ref)


@pytest.mark.parametrize("which", ["data_path", "manifest_path"])
def test_swapped_files_are_detected(store, which):
    first = save_one(store, visits=1)
    second = save_one(store, visits=2, data=STATE[:-1] + b"\xff", parent=first.sha256)
    one, two = (store.read(getattr(ref, which)) for ref in (first, second))
    store.write_many({getattr(first, which): two, getattr(second, which): one})
    for ref in (first, second):
        with pytest.raises(CheckpointCorruptError, match=getattr(ref, which)):
            load(store, ref)


@pytest.mark.parametrize("which", ["data_path", "manifest_path"])
def test_a_missing_file_is_detected(store, which):
    ref = save_one(store)
    store.remove(getattr(ref, which))
    with pytest.raises(CheckpointCorruptError, match="missing"):
        load(store, ref)


def test_the_error_names_both_digests(store):
    ref = save_one(store)
    bad = flip_bit(STATE, 1000)
    store.write(ref.data_path, bad)
    found = hashlib.sha256(bad).hexdigest()
    with pytest.raises(CheckpointCorruptError, match=f"must be {ref.sha256}, but is {found}"):
        load(store, ref)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"null", b"{}", b'{"digest":"x"}', b"\xff", b"[" * 100_000, b"\x80\x04."]
)
def test_a_manifest_that_is_none_is_detected(store, text):
    ref = save_one(store)
    store.write(ref.manifest_path, text)
    with pytest.raises(CheckpointCorruptError, match=ref.manifest_path):
        load(store, ref)


def test_a_full_disk_at_every_operation_harms_nothing(tmp_path):
    old = save_one(DirectoryStore(tmp_path))
    counter = FaultyDisk(Disk(), CountOnly())
    save_one(DirectoryStore(tmp_path, counter), visits=2)
    for at, name in enumerate(counter.operations, 1):
        if name == "make_dir":
            continue
        disk = FaultyDisk(Disk(), Fail(at, errno.ENOSPC, only=WRITES))
        with pytest.raises(DiskFullError):
            save_one(DirectoryStore(tmp_path, disk), visits=2)
        store = DirectoryStore(tmp_path)
        assert load(store, old).data == STATE
        assert not any(map(is_temp, store.list("trials/t0000/checkpoints")))


def test_collect_keeps_only_what_it_is_told_to(store):
    refs = [save_one(store, visits=visits) for visits in (1, 2, 3)]
    assert collect(store, 0, {refs[2].name}) == 4
    assert store.list("trials/t0000/checkpoints") == ["v000003-a0.json", "v000003-a0.safetensors"]


def test_collect_removes_manifests_first(store, tmp_path):
    class Spy(Disk):
        removed: tuple[str, ...] = ()

        def remove(self, path):
            self.removed = (*self.removed, path.rpartition(".")[2])
            super().remove(path)

    save_one(store)
    spy = Spy()
    collect(DirectoryStore(tmp_path / "run", spy), 0, set())
    assert spy.removed == ("json", "safetensors")


def test_collect_leaves_other_files_alone(store):
    store.write("trials/t0000/checkpoints/notes.json", b"{}")
    assert collect(store, 0, set()) == 0
    assert store.list("trials/t0000/checkpoints") == ["notes.json"]


def test_collect_touches_no_other_trial(store):
    save_one(store, unit=1)
    assert collect(store, 0, set()) == 0


def test_sweep_removes_what_killed_writers_left(store):
    ref = save_one(store)
    places = ["", "trials/", "trials/t0000/", "trials/t0000/checkpoints/"]
    for place in places:
        store.append(f"{place}.tmp-12-3-half", b"x")
    assert sweep(store) == len(places)
    assert load(store, ref).data == STATE
    assert store.list() == ["trials"]


def test_sweep_of_one_unit_leaves_alone_what_others_are_writing(store):
    ref = save_one(store)
    others = [".tmp-12-3-half", "trials/t0001/checkpoints/.tmp-12-3-half"]
    for path in [*others, "trials/t0000/checkpoints/.tmp-12-3-half"]:
        store.append(path, b"x")
    assert sweep(store, 0) == 1
    assert load(store, ref).data == STATE
    assert all(map(store.exists, others))


def test_sweep_of_a_new_run_finds_nothing(store):
    assert sweep(store) == 0


@given(
    st.builds(
        CheckpointRef,
        unit=st.integers(),
        visits=st.integers(0),
        name=st.from_regex(r"\Av[0-9]{6,9}-a[0-9]{1,3}\Z"),
        sha256=st.from_regex(r"\A[0-9a-f]{64}\Z"),
        bytes=st.integers(0),
        parent=st.none() | st.from_regex(r"\A[0-9a-f]{64}\Z"),
    )
)
def test_a_reference_survives_the_journal(ref):
    assert CheckpointRef.from_json(json.loads(json.dumps(ref.to_json()))) == ref


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("trial", -1),
        ("trial", "7"),
        ("visits", True),
        ("bytes", 1.0),
        ("name", "../v000012-a0"),
        ("name", "v000012-a0.json"),
        ("name", None),
        ("sha256", "0" * 63),
        ("sha256", None),
        ("parent", "x"),
        ("parent", 0),
    ],
)
def test_a_wrong_reference_is_refused(field, wrong):
    with pytest.raises(CheckpointCorruptError, match="not a reference"):
        CheckpointRef.from_json({**REF.to_json(), field: wrong})


@pytest.mark.parametrize("value", [None, [], {}, {**REF.to_json(), "more": 1}])
def test_something_else_than_a_reference_is_refused(value):
    with pytest.raises(CheckpointCorruptError, match="not a reference"):
        CheckpointRef.from_json(value)
