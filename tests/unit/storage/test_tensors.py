from __future__ import annotations

import json
import time

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.errors import CheckpointCorruptError, UsageError
from cerebro.storage import tensors
from cerebro.storage.tensors import ITEM_BYTES, Layout

DTYPES = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "F16": np.float16,
    "U32": np.uint32,
    "I32": np.int32,
    "F32": np.float32,
    "U64": np.uint64,
    "I64": np.int64,
    "F64": np.float64,
    "C64": np.complex64,
}

shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
specs = st.dictionaries(
    names.filter(lambda name: name != "__metadata__"),
    st.tuples(st.sampled_from(sorted(DTYPES)), shapes),
    max_size=8,
)


def plan(specs):
    return Layout.plan((name, dtype, shape) for name, (dtype, shape) in specs.items())


def fill(layout):
    """A file of this layout and the arrays in it."""
    file = bytearray(layout.total_bytes)
    file[: layout.data_start] = layout.header_bytes()
    generator = np.random.default_rng(0)
    file[layout.data_start :] = generator.integers(0, 2, layout.data_bytes, np.uint8).tobytes()
    return bytes(file), {entry.name: view(file, layout, entry) for entry in layout.entries}


def view(file, layout, entry):
    data = bytes(file[layout.span(entry.name)])
    return np.frombuffer(data, DTYPES[entry.dtype]).reshape(entry.shape)


def make(header, data=b""):
    """A file with any header, right or wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def claim(begin, end, shape=None, dtype="U8"):
    shape = [end - begin] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def refused(file, match=None):
    # Of this thread alone: other processes may have the machine meanwhile.
    start = time.thread_time()
    with pytest.raises(CheckpointCorruptError, match=match):
        Layout.parse(file)
    assert time.thread_time() - start < 5


@settings(max_examples=60)
@given(specs)
def test_the_library_reads_what_we_lay_out(specs):
    file, arrays = fill(plan(specs))
    loaded = safetensors.numpy.load(file)
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape
        assert loaded[name].tobytes() == array.tobytes()


@settings(max_examples=60)
@given(specs)
def test_we_read_what_the_library_writes(specs):
    _, arrays = fill(plan(specs))
    file = safetensors.numpy.save(arrays)
    layout = Layout.parse(file)
    assert {entry.name for entry in layout.entries} == arrays.keys()
    for entry in layout.entries:
        assert entry.shape == arrays[entry.name].shape
        assert view(file, layout, entry).tobytes() == arrays[entry.name].tobytes()


@settings(max_examples=60)
@given(specs)
def test_parsing_gives_back_the_plan(specs):
    layout = plan(specs)
    parsed = Layout.parse(fill(layout)[0])
    assert parsed.entries == layout.entries
    assert parsed.data_start == layout.data_start


@settings(max_examples=60)
@given(specs)
def test_every_tensor_is_aligned_to_its_items_and_whole_lines_to_64(specs):
    layout = plan(specs)
    for entry in layout.entries:
        start = layout.span(entry.name).start
        assert start % (64 if entry.nbytes % 64 == 0 else ITEM_BYTES[entry.dtype]) == 0


@given(specs, st.randoms())
@settings(max_examples=30)
def test_the_layout_does_not_depend_on_the_order_given(specs, random):
    items = list(specs.items())
    random.shuffle(items)
    assert plan(dict(items)).header_bytes() == plan(specs).header_bytes()


def test_every_dtype_of_whole_bytes_that_the_library_knows_is_known():
    with pytest.raises(safetensors.SafetensorError) as caught:
        safetensors.numpy.load(make({"a": claim(0, 1, dtype="?")}, b"x"))
    known = {
        part for part in str(caught.value).split("`")[3::2] if not part.startswith(("F4", "F6_"))
    }
    assert known == set(ITEM_BYTES)


def test_metadata_comes_back():
    layout = Layout.plan([("a", "U8", (2,))], {"framework": "torch"})
    assert Layout.parse(layout.header_bytes() + b"xy").metadata == {"framework": "torch"}


def test_an_entry_is_found_by_its_name():
    layout = Layout.plan([("a", "F32", (2, 3))])
    assert layout["a"] == ("a", "F32", (2, 3), 0, 24)
    assert "a" in layout
    assert "b" not in layout


def test_no_tensors_are_a_layout_too():
    assert Layout.parse(Layout.plan([]).header_bytes()).entries == ()


@pytest.mark.parametrize(
    ("tensor", "match"),
    [
        (("a", "F33", (1,)), "unknown dtype 'F33'"),
        (("a", "F32", (-1,)), "possible shape"),
        (("a", "F32", (2**62, 2)), "possible shape"),
        (("a", "F32", (1,) * 65), "possible shape"),
        (("__metadata__", "F32", (1,)), "tensor name"),
        (("\ud800", "F32", (1,)), "tensor name"),
    ],
)
def test_an_impossible_tensor_is_refused(tensor, match):
    with pytest.raises(UsageError, match=match):
        Layout.plan([tensor])


def test_planning_a_name_twice_is_refused():
    with pytest.raises(UsageError, match="unique"):
        Layout.plan([("a", "U8", (1,)), ("a", "U8", (2,))])


def test_planning_too_large_a_header_is_refused(monkeypatch):
    monkeypatch.setattr(tensors, "MAX_HEADER_BYTES", 100)
    with pytest.raises(UsageError, match="header of at most"):
        Layout.plan([("a" * 100, "U8", (1,))]).header_bytes()


def test_header_too_small():
    refused(b"", "at least 8 bytes")
    refused(b"1234567", "at least 8 bytes")


def test_header_too_large():
    refused((100_000_001).to_bytes(8, "little") + b"{}", "at most 100000000")
    refused(b"\xff" * 8 + b"{}", "at most 100000000")


def test_header_longer_than_the_file():
    refused((3).to_bytes(8, "little") + b"{}", "only 2 follow")


@pytest.mark.parametrize(
    "header", [b"", b"[]", b" {}", b"{", b"null", b'{"a":}', b'{"\xff":1}', b"{}x", b'{"a":1e999}']
)
def test_header_not_a_json_object(header):
    refused(make(header))


def test_header_nested_deeply():
    refused(make(b'{"a":' + b"[" * 100_000), "nested")


def test_header_of_very_many_parts():
    refused(make(b'{"a":[' + b"[]," * 5_000_000 + b"0]}"), "brackets and commas")


def test_number_of_very_many_digits():
    refused(make(b'{"a":{"dtype":"U8","shape":[' + b"9" * 100_000 + b'],"data_offsets":[0,1]}}'))


def test_duplicate_names():
    entry = json.dumps(claim(0, 1)).encode()
    refused(make(b'{"a":%b,"a":%b}' % (entry, entry), b"x"), "twice")
    refused(
        make(b'{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"), "twice"
    )


def test_overlapping_tensors():
    refused(make({"a": claim(0, 4), "b": claim(2, 6)}, b"x" * 6), "must start at 4")
    refused(make({"a": claim(0, 4), "b": claim(0, 4)}, b"x" * 4), "must start at 4")


def test_holes():
    refused(make({"a": claim(0, 4), "b": claim(5, 8)}, b"x" * 8), "must start at 4")
    refused(make({"a": claim(1, 4)}, b"x" * 4), "must start at 0")


@pytest.mark.parametrize("length", [0, 3, 5, 100])
def test_wrong_length_of_data(length):
    refused(make({"a": claim(0, 4)}, b"x" * length), "the file must have")


@pytest.mark.parametrize(
    "shape", [[2**32, 2**32], [2**62, 4], [2**64], [10**30], [2**40, 2**40, 0], [1] * 65]
)
def test_overflowing_shapes(shape):
    refused(make({"a": claim(0, 4, shape, "F32")}, b"x" * 4), "does not fit")


def test_offsets_out_of_range():
    refused(make({"a": claim(2**63, 2**63 + 1)}, b"x"))
    refused(make({"a": claim(2**64 - 4, 2**64, [1], "F32")}, b"x" * 4))


def test_offsets_backwards():
    refused(make({"a": claim(4, 0, [4])}, b"x" * 4), "does not fit")


def test_offsets_that_do_not_match_the_shape():
    refused(make({"a": claim(0, 4, [3])}, b"x" * 4), "does not fit")


@pytest.mark.parametrize("wrong", [[-1], [1.0], [True], ["1"], [None], 1, "1", None, {}])
def test_shapes_that_are_not_counts(wrong):
    refused(make({"a": {**claim(0, 1), "shape": wrong}}, b"x"), "non-negative integers")


@pytest.mark.parametrize("wrong", [[-1, 0], [0], [0, 1, 2], [0.0, 1.0], [False, True], "01", None])
def test_offsets_that_are_not_two_counts(wrong):
    refused(make({"a": {**claim(0, 1), "data_offsets": wrong}}, b"x"), "non-negative integers")


@pytest.mark.parametrize("wrong", ["f32", "F4", "", "object", None, 1, ["F32"], {}])
def test_bad_dtypes(wrong):
    refused(make({"a": {**claim(0, 1), "dtype": wrong}}, b"x"), "unknown dtype")


@pytest.mark.parametrize("wrong", [None, 1, [], {}, {"dtype": "U8"}, {**claim(0, 1), "more": 1}])
def test_entries_with_other_fields(wrong):
    refused(make({"a": wrong}, b"x"), "dtype, shape and data_offsets only")


@pytest.mark.parametrize("wrong", [None, 1, [], {"a": 1}, {"a": {}}, {"a": None}])
def test_bad_metadata(wrong):
    refused(make({"__metadata__": wrong}), "strings to strings")


def test_names_that_are_not_text():
    refused(make(b'{"\\ud800":%b}' % json.dumps(claim(0, 1)).encode(), b"x"), "not text")


def test_a_pickle_is_refused():
    refused(b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x04true\x94\x85\x94R\x94.")


GOOD = fill(plan({"w": ("F32", (4, 8)), "b": ("F32", (3,)), "n": ("I64", ()), "e": ("U8", (0,))}))[
    0
]
HEADER_BYTES = 8 + int.from_bytes(GOOD[:8], "little")


def mutate(file, edits):
    mutated = bytearray(file)
    for kind, place, value in edits:
        position = place % (len(mutated) + 1)
        if kind == "insert":
            mutated.insert(position, value)
        elif kind == "cut":
            del mutated[position : position + value]
        elif position < len(mutated):
            mutated[position] = value
    return bytes(mutated)


edits = st.lists(
    st.tuples(
        st.sampled_from(["replace", "insert", "cut"]),
        st.integers(0, HEADER_BYTES),
        st.integers(0, 255) | st.sampled_from(list(b'0129-,:[]{}" ')),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=500)
@given(edits)
def test_a_mutated_file_is_refused_or_still_consistent(edits):
    file = mutate(GOOD, edits)
    try:
        layout = Layout.parse(file)
    except CheckpointCorruptError:
        return
    end = 0
    for entry in layout.entries:
        assert entry.offset == end
        assert entry.nbytes == ITEM_BYTES[entry.dtype] * int(np.prod(entry.shape, dtype=object))
        end += entry.nbytes
    assert layout.data_start + end == len(file)


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_by_name(data):
    with pytest.raises(CheckpointCorruptError):
        Layout.parse(data)
