from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from cerebro.errors import CheckpointCorruptError, UsageError
from cerebro.storage import DirectoryStore, layout
from cerebro.storage.checkpoint import collect, load, save, sweep
from cerebro.storage.stacked import members_of, take_member, taken_out

META = {"trials": [3, 7], "members": [{"steps": 1}, {"steps": 2}]}
TENSORS = {
    "weight": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "count": np.array([5, 6], dtype=np.int64),
}


@pytest.fixture
def store(tmp_path):
    found = DirectoryStore(tmp_path)
    yield found
    found.close()


def test_a_member_taken_out_is_a_file_of_its_own():
    data, meta = take_member(save_safetensors(TENSORS), META, 7)
    found = load_safetensors(bytes(data))
    assert meta == {"steps": 2}
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert np.array_equal(found[name], tensor[1])
    assert found["count"].shape == ()


@given(
    shapes=st.lists(st.lists(st.integers(0, 3), max_size=3), max_size=4),
    members=st.integers(1, 4),
    dtype=st.sampled_from(["float64", "float16", "uint8", "int32", "bool"]),
)
def test_every_member_gets_its_slice(shapes, members, dtype):
    rng = np.random.default_rng(0)
    tensors = {
        f"t{n}": rng.integers(0, 2, (members, *shape)).astype(dtype)
        for n, shape in enumerate(shapes)
    }
    meta = {"trials": list(range(members)), "members": [{"n": n} for n in range(members)]}
    data = save_safetensors(tensors)
    for trial in range(members):
        taken, its = take_member(data, meta, trial)
        found = load_safetensors(bytes(taken))
        assert its == {"n": trial}
        assert all(np.array_equal(found[name], t[trial]) for name, t in tensors.items())


def test_a_trial_that_is_not_in_the_stack_cannot_be_taken_out():
    with pytest.raises(UsageError, match=r"trial 4 must be in the stack, but \[3, 7\] are"):
        take_member(save_safetensors(TENSORS), META, 4)


@pytest.mark.parametrize("meta", [{}, {"trials": [1]}, {"trials": [1, 2], "members": [{}]}])
def test_what_is_no_stack_is_refused(meta):
    with pytest.raises(CheckpointCorruptError, match="must name its trials"):
        members_of(meta)


def test_tensors_without_an_axis_for_the_members_are_refused():
    data = save_safetensors({"weight": np.zeros((3, 2), np.float32)})
    with pytest.raises(CheckpointCorruptError, match="axis"):
        take_member(data, META, 3)


def test_checkpoints_of_a_stack_have_a_place_of_their_own(store):
    data = save_safetensors(TENSORS)
    ref = save(store, -8, visits=2, attempt=0, data=data, meta=META, parent=None)
    assert ref.is_stack
    assert ref.to_json()["stack"] == 7
    assert store.list("stacks/s0007/checkpoints") == ["v000002-a0.json", "v000002-a0.safetensors"]
    assert taken_out(load(store, ref), 3).meta == {"steps": 1}
    store.write(f"{layout.checkpoints(-8)}/.tmp-1-1-x", b"half")
    assert sweep(store) == 1
    assert collect(store, -8, set()) == 2


def test_a_checkpoint_of_a_trial_is_its_own(store):
    ref = save(store, 3, visits=2, attempt=0, data=b"state", meta={}, parent=None)
    found = load(store, ref)
    assert taken_out(found, 3) == found
