from __future__ import annotations

import numpy as np
import pytest
import torch

from cerebro import MiniBatchSpec
from cerebro.data import from_arrays
from cerebro.errors import UsageError
from cerebro.train.spec.batches import Minibatches, Roles, roles_of
from cerebro.train.torch.batches import TorchBatches
from tests.unit.train.bare import make_call

CPU = torch.device("cpu")


def spec(**attributes):
    return type("Given", (MiniBatchSpec,), attributes)()


@pytest.mark.parametrize(
    ("columns", "attributes", "roles"),
    [
        (["x", "y", "id"], {}, Roles("x", "y", "id")),
        (["x", "y"], {}, Roles("x", "y", None)),
        (["id", "x"], {}, Roles("x", None, "id")),
        (["a", "b", "y"], {}, Roles({"a": "a", "b": "b"}, "y", None)),
        (["x", "mask", "y"], {}, Roles({"x": "x", "mask": "mask"}, "y", None)),
        (["x", "y.a", "y.b"], {}, Roles("x", {"a": "y.a", "b": "y.b"}, None)),
        (["x", "w", "y"], {"input_columns": "x"}, Roles("x", "y", None)),
        (["x", "w", "y"], {"input_columns": ["w"]}, Roles({"w": "w"}, "y", None)),
        (["x", "y", "z"], {"label_columns": "z"}, Roles({"x": "x", "y": "y"}, "z", None)),
        (["x", "z", "w"], {"label_columns": ("z", "w")}, Roles("x", {"z": "z", "w": "w"}, None)),
        (["x", "y", "key"], {"id_column": "key"}, Roles("x", "y", "key")),
        (["x", "y", "id"], {"id_column": None}, Roles({"x": "x", "id": "id"}, "y", None)),
    ],
)
def test_the_names_of_columns_say_what_they_are(columns, attributes, roles):
    assert roles_of(spec(**attributes), columns) == roles


@pytest.mark.parametrize(
    ("columns", "attributes", "said"),
    [
        (["x"], {"input_columns": "image"}, r"Given\.input_columns .* no 'image'\. Known: 'x'"),
        (["x", "y"], {"label_columns": ["a"]}, r"Given\.label_columns .* no 'a'"),
        (["x", "y"], {"id_column": "key"}, r"Given\.id_column .* no 'key'"),
        (["y", "id"], {}, r"Given\.input_columns .* no 'one for the input'"),
    ],
)
def test_columns_that_are_not_there_are_told(columns, attributes, said):
    with pytest.raises(UsageError, match=said):
        roles_of(spec(**attributes), columns)


def test_data_to_predict_need_no_labels():
    given = spec(label_columns="digit")
    assert roles_of(given, ["x", "id"], has_labels=False) == Roles("x", "digit", "id")


def test_a_minibatch_has_input_label_and_row_ids(tmp_path):
    x = np.arange(10, dtype=np.float32).reshape(10, 1)
    columns = {"x": x, "y": x[:, 0] * 2, "id": np.arange(100, 110)}
    shard = from_arrays(tmp_path / "data", columns, shards=1).open_shard("train", 0)
    batches = Minibatches(MiniBatchSpec(), TorchBatches(CPU), CPU)
    seen = []
    for batch in batches.shuffled(shard, make_call(batch_size=4)):
        given, label, ids = batch.parts
        assert torch.equal(label, given[:, 0] * 2)
        assert torch.equal(ids, given[:, 0].long() + 100)
        assert batch.rows == len(ids)
        seen += batch.ids.tolist()
    assert sorted(seen) == list(range(100, 110))
    assert [len(batch.parts) for batch in batches.in_order(shard, 4, has_labels=False)] == [2] * 3


def test_text_ids_and_dicts_of_inputs_come_as_they_are(tmp_path):
    columns = {
        "image": np.zeros((4, 2), np.float32),
        "text": list("abcd"),
        "y.kind": np.arange(4),
        "y.size": np.arange(4) * 2.0,
        "id": [f"row{n}" for n in range(4)],
    }
    shard = from_arrays(tmp_path / "data", columns, shards=1).open_shard("train", 0)
    batches = Minibatches(MiniBatchSpec(), TorchBatches(CPU), CPU)
    (batch,) = batches.in_order(shard, 4)
    given, label, ids = batch.parts
    assert set(given) == {"image", "text"}
    assert torch.equal(label["size"], label["kind"] * 2.0)
    assert [f"row{'abcd'.index(letter)}" for letter in given["text"]] == ids


def test_without_an_id_rows_have_their_number_in_the_shard(tmp_path):
    columns = {"x": np.arange(10, dtype=np.float32), "y": np.zeros(10)}
    shard = from_arrays(tmp_path / "data", columns, shards=1).open_shard("train", 0)
    batches = Minibatches(MiniBatchSpec(), TorchBatches(CPU), CPU)
    stored = torch.from_numpy(np.array(shard.columns["x"]))
    for batch in batches.shuffled(shard, make_call(batch_size=4)):
        given, _, ids = batch.parts
        assert ids.dtype == torch.int64
        assert torch.equal(stored[ids], given)
    ordered = torch.cat([batch.ids for batch in batches.in_order(shard, 4)])
    assert ordered.tolist() == list(range(10))
