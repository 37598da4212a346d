"""Bytes to values and back."""

from __future__ import annotations

import io
import json
import pickle
import sys

import numpy as np
import pytest
from PIL import Image

from cerebro.data.archive import Decoder, SampleError
from cerebro.data.archive.encoders import encode_field
from cerebro.errors import DataError, MissingDependencyError, UsageError


def decode(decoder=None, /, **fields):
    sample = {"__key__": "7", "__source__": "a.tar"}
    sample |= {name.replace("_", "."): data for name, data in fields.items()}
    made = (decoder or Decoder())(sample)
    return {name: value for name, value in made.items() if not name.startswith("__")}


def picture(mode="RGB", form="PNG", size=(3, 2), **options):
    target = io.BytesIO()
    Image.new(mode, size, **options).save(target, form)
    return target.getvalue()


def npy(array, **options):
    target = io.BytesIO()
    np.save(target, array, **options)
    return target.getvalue()


@pytest.mark.parametrize("field", ["cls", "class", "count", "index", "id", "label_cls"])
def test_numbers(field):
    assert list(decode(**{field: b" -12\n"}).values()) == [-12]


def test_text_json_and_bytes():
    assert decode(txt="größe".encode(), json=b'{"a": [1]}', xyz=b"\0\1") == {
        "txt": "größe",
        "json": {"a": [1]},
        "xyz": b"\0\1",
    }


def test_arrays():
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    target = io.BytesIO()
    np.savez(target, a=array, b=array[0])
    made = decode(npy=npy(array), npz=target.getvalue())
    assert np.array_equal(made["npy"], array)
    assert made["npy"].flags.writeable
    assert {name: value.tolist() for name, value in made["npz"].items()} == {
        "a": array.tolist(),
        "b": array[0].tolist(),
    }


@pytest.mark.parametrize("form", ["PNG", "JPEG", "PPM"])
def test_pictures_are_arrays_of_height_width_channels(form):
    data = picture(form=form, color=(255, 0, 0))
    rgb = decode(jpg=data)["jpg"]
    assert (rgb.shape, rgb.dtype) == ((2, 3, 3), np.uint8)
    gray = decode(Decoder(images="gray8"), jpg=data)["jpg"]
    assert (gray.shape, gray.dtype) == ((2, 3, 1), np.uint8)
    floats = decode(Decoder(images="float"), jpg=data)["jpg"]
    assert floats.dtype == np.float32
    assert np.allclose(floats, rgb / 255)
    assert decode(Decoder(images="bytes"), jpg=data)["jpg"] == data


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA"])
def test_pictures_of_other_modes_get_three_channels(mode):
    assert decode(png=picture(mode))["png"].shape == (2, 3, 3)


@pytest.mark.parametrize(
    ("field", "data", "message"),
    [
        ("cls", b"seven", "written in digits, but got b'seven'"),
        ("cls", b"1_000", "written in digits"),
        ("cls", b"", "written in digits"),
        ("cls", b"9223372036854775808", "64 bits"),
        ("txt", b"\xff", "utf-8"),
        ("json", b"{", "Expecting"),
        ("json", b"[" * 200_000, "recursion|Recursion"),
        ("npy", b"junk", "magic"),
        ("npy", npy(np.array([{}], dtype=object), allow_pickle=True), "run code"),
        ("npy", npy(np.zeros(9))[:-1], "72 bytes is declared, but 71 follow"),
        ("npz", b"junk", "no whole zip"),
        ("jpg", b"junk", "cannot identify"),
        ("jpg", picture(size=(64, 64))[:-40], "truncated|broken|image file"),
        ("png", picture("I;16"), "8 bits a channel"),
        ("png", picture("1", size=(1 << 14, 1 << 13)), "at most 67108864 pixels"),
        ("jpg", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "cannot identify"),
    ],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_bad_data_is_named_by_shard_key_and_field(field, data, message):
    with pytest.raises(SampleError, match=message) as caught:
        decode(**{field: data})
    error = caught.value
    assert (error.shard, error.key, error.field) == ("a.tar", "7", field)
    assert str(error).startswith(f"a.tar, sample '7', field '{field}': ")


def test_an_array_with_a_huge_shape_takes_no_memory():
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }"
    data = b"\x93NUMPY\x01\x00" + len(header + b"\n").to_bytes(2, "little") + header + b"\n"
    with pytest.raises(SampleError, match="8796093022208 bytes is declared, but 0 follow"):
        decode(npy=data)


class Harmful:
    def __reduce__(self):
        return print, ("this ran",)


@pytest.mark.parametrize("field", ["pickle", "pkl", "pt", "pth", "pyd", "x_pyd"])
def test_pickles_are_refused_and_not_run(field, capsys):
    with pytest.raises(UsageError, match="runs code"):
        decode(**{field: pickle.dumps(Harmful())})
    assert capsys.readouterr().out == ""
    assert decode(Decoder(decoders={"pyd": len}), pyd=b"123") == {"pyd": 3}
    assert decode(Decoder(fields=["cls"]), pyd=b"123", cls=b"1") == {"cls": 1}


def test_own_decoders_come_first_the_whole_field_before_its_extension():
    decoder = Decoder(decoders={"seg.png": len, "png": bytes.hex})
    assert decode(decoder, png=b"\1", seg_png=b"123") == {"png": "01", "seg.png": 3}
    with pytest.raises(SampleError, match=r"field 'txt': it cannot be decoded: division"):
        decode(Decoder(decoders={"txt": lambda data: 1 / 0}), txt=b"")


def test_fields_that_are_asked_for_must_be_there():
    with pytest.raises(SampleError, match="fields png must be there, but it has: cls, txt"):
        decode(Decoder(fields=["cls", "png"]), cls=b"1", txt=b"")


def test_wrong_options_are_refused():
    with pytest.raises(UsageError, match="Known: rgb8, gray8, float, bytes"):
        Decoder(images="rgb")
    with pytest.raises(UsageError, match="list of names"):
        Decoder(fields="cls")


@pytest.mark.parametrize(("module", "field"), [("PIL", "jpg"), ("msgpack", "mp")])
def test_a_package_that_is_missing_is_named_with_its_remedy(monkeypatch, module, field):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        decode(**{field: b"\x01"})


VALUES = {
    "cls": 7,
    "txt": "größe",
    "json": {"b": [1, None], "a": "ü"},
    "seg.png": np.arange(18, dtype=np.uint8).reshape(2, 3, 3),
    "npy": np.arange(4.0),
    "xyz": b"raw",
}


def test_what_is_encoded_is_decoded_to_the_same():
    data = {name: encode_field("7", name, value, {}) for name, value in VALUES.items()}
    made = Decoder()({"__key__": "7", "__source__": "a", **data})
    for name, value in VALUES.items():
        assert np.array_equal(made[name], value), name


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("cls", 1.5, "whole number"),
        ("cls", 2**63, "whole number"),
        ("txt", 3, "must be text"),
        ("json", {1j}, "JSON"),
        ("npy", np.array([object()]), "[Oo]bject"),
        ("npz", [1], "mapping of names"),
        ("png", np.zeros((2, 2)), "uint8"),
        ("png", np.zeros((2, 2, 4), np.uint8), "1 or 3"),
        ("xyz", 3, "must be bytes"),
        ("pyd", {}, "must be bytes"),
    ],
)
def test_what_cannot_be_encoded_is_named_by_key_and_field(field, value, message):
    with pytest.raises(DataError, match=message) as caught:
        encode_field("7", field, value, {})
    assert f"sample '7', field '{field}'" in str(caught.value)


def test_own_encoders_come_first():
    assert (
        encode_field("7", "xyz", {"a": 1}, {"xyz": lambda v: json.dumps(v).encode()}) == b'{"a": 1}'
    )
