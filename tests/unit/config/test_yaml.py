from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.config import yaml as reader
from cerebro.config.yaml import MAX_BYTES, MAX_DEPTH, MAX_NODES, Place, load_yaml, parse_yaml
from cerebro.errors import ConfigError

LOADERS = [getattr(yaml, name) for name in ("CSafeLoader", "SafeLoader") if hasattr(yaml, name)]
PYTHON_TAGS = [
    "!!python/object:os.system",
    "!!python/object/new:os.system",
    "!!python/object/apply:os.system",
    "!!python/name:os.system",
    "!!python/module:os",
    "!!python/none",
    "!!python/bool",
    "!!python/bytes",
    "!!python/str",
    "!!python/unicode",
    "!!python/int",
    "!!python/long",
    "!!python/float",
    "!!python/complex",
    "!!python/list",
    "!!python/tuple",
    "!!python/dict",
]
ALIAS_BOMB = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [*{before}, *{before}]\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)

#: name -> (file, line of the error, part of the message)
BAD: dict[str, tuple[bytes, int, str]] = {
    **{tag: (f"a: 1\nb: {tag} x\n".encode(), 2, "tags are not allowed") for tag in PYTHON_TAGS},
    "core tag": (b"a: !!str 1\n", 1, "tags are not allowed"),
    "own tag": (b"a: !mine 1\n", 1, "tags are not allowed"),
    "bare tag": (b"a: ! 1\n", 1, "tags are not allowed"),
    "tag on a list": (b"a: 1\nb: !!python/tuple [1]\n", 2, "tags are not allowed"),
    "tag on a mapping": (b"!!python/dict {a: 1}\n", 1, "tags are not allowed"),
    "tag directive": (b"%TAG ! tag:x,2000:\n---\na: 1\n", 1, "directives"),
    "version directive": (b"%YAML 1.1\n---\na: 1\n", 1, "directives"),
    "anchor": (b"a: 1\nb: &x 2\n", 2, "anchors (&x) are not allowed"),
    "alias bomb": (ALIAS_BOMB.encode(), 1, "anchors (&a) are not allowed"),
    "alias": (b"a: 1\nb: *x\n", 2, "aliases (*name) are not allowed"),
    "merge key": (b"a: 1\n<<: {b: 2}\n", 2, "merge keys (<<) are not allowed"),
    "duplicate key": (b"a: 1\nb: 2\na: 3\n", 3, "the key 'a' is already on line 1"),
    "duplicate key below": (b"s:\n  a: 1\n  'a': 3\n", 3, "the key 'a' is already on line 2"),
    "duplicate key of a null": (b"a:\na:\n", 2, "the key 'a' is already on line 1"),
    "integer key": (b"a: 1\n7: 2\n", 2, "a key must be a string, but got 7. Quote it."),
    "null key": (b"a: 1\n? \n: 2\n", 2, "a key must be a string, but got nothing"),
    "boolean key": (b"true: 2\n", 1, "a key must be a string, but got true"),
    "list as key": (b"a: 1\n? [1, 2]\n: 3\n", 2, "a key must be a string, but got a list"),
    "two documents": (b"a: 1\n---\nb: 2\n", 2, "a second document"),
    "3000 brackets": (b"[" * 3000, 1, "nesting deeper than 32"),
    "3000 braces": (b"{a: " * 3000, 1, "nesting deeper than 32"),
    "3000 dashes": (b"- " * 3000, 1, "nesting deeper than 32"),
    "3000 indents": (
        b"".join(b" " * i + b"a:\n" for i in range(1000)),
        33,
        "nesting deeper than 32",
    ),
    "too many values": (b"[" + b"1," * MAX_NODES + b"]", 1, "more than 10000 values"),
    "too many bytes": (b"#" * (MAX_BYTES + 1), 1, "at most 1048576 bytes"),
    "5000 digits": (b"a: 1\nb: " + b"9" * 5000, 2, "a number of 5000 digits"),
    "5000 hex digits": (b"a: 0x" + b"9" * 5000, 1, "a number of 5002 digits"),
    "5000 decimals": (b"a: 1." + b"9" * 5000, 1, "a number of 5002 digits"),
    "infinite by exponent": (b"a: 1e999\n", 1, "the number '1e999' is too large"),
    "NUL": (b"a: 1\nb: x\0y\n", 2, "control character '\\x00'"),
    "escape character": (b"a: 1\nb: \x1b[0m\n", 2, "control character '\\x1b'"),
    "UTF-16": ("a: 1\n".encode("utf-16"), 1, "must be UTF-8"),
    "UTF-16 without mark": ("a: 1\n".encode("utf-16-le"), 1, "must be UTF-8"),
    "UTF-16 big without mark": ("a: 1\n".encode("utf-16-be"), 1, "must be UTF-8"),
    "UTF-32": ("a: 1\n".encode("utf-32"), 1, "must be UTF-8"),
    "Latin-1": (b"a: 1\nb: caf\xe9\n", 2, "must be UTF-8, but has the byte 0xe9"),
    "lone surrogate": (b"a: \xed\xa0\x80\n", 1, "must be UTF-8"),
    "tab as indent": (b"a:\n\tb: 1\n", 2, "not valid YAML"),
    "unclosed bracket": (b"a: 1\nb: [1, 2\n", 3, "not valid YAML"),
    "unclosed quote": (b"a: 'x\n", 2, "not valid YAML"),
    "two values": (b"a: 1\nb: c: d\n", 2, "not valid YAML"),
    "at sign": (b"a: 1\nb: @x\n", 2, "not valid YAML"),
}

#: text -> what YAML 1.2's core schema makes of it
GOOD: dict[str, Any] = {
    "1e-3": 0.001,
    "1E+2": 100.0,
    ".5": 0.5,
    "5.": 5.0,
    "-1.5e-2": -0.015,
    "+3": 3,
    "-0": 0,
    "017": 17,
    "0o17": 15,
    "0x1F": 31,
    "0b11": "0b11",
    "1_000": "1_000",
    "12:30:45": "12:30:45",
    "2024-01-01": "2024-01-01",
    "no": "no",
    "yes": "yes",
    "on": "on",
    "off": "off",
    "y": "y",
    "true": True,
    "False": False,
    "tRUE": "tRUE",
    "null": None,
    "~": None,
    "": None,
    "nil": "nil",
    ".inf": math.inf,
    "-.INF": -math.inf,
    "'1e-3'": "1e-3",
    '"null"': "null",
    "''": "",
    "e5": "e5",
    ".": ".",
    "-": [None],
    "[1, a, 2.5]": [1, "a", 2.5],
    "{a: {b: [1]}}": {"a": {"b": [1]}},
    "=": "=",
    "'<<'": "<<",
}


@pytest.fixture(params=LOADERS, ids=lambda loader: loader.__name__)
def _loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_LOADER", request.param)


@pytest.mark.usefixtures("_loader")
@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_file_and_line(name: str) -> None:
    data, line, message = BAD[name]
    with pytest.raises(ConfigError) as caught:
        parse_yaml(data, "experiment.yaml")
    assert str(caught.value).startswith(f"experiment.yaml:{line}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("name", BAD)
def test_the_error_is_one_short_paragraph(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(BAD[name][0], "experiment.yaml")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.usefixtures("_loader")
@pytest.mark.parametrize("text", GOOD)
def test_values_follow_the_core_schema(text: str) -> None:
    tree = parse_yaml(f"key: {text}\n".encode() if text != "-" else b"key:\n-\n", "x.yaml").tree
    assert tree == {"key": GOOD[text]}
    assert isinstance(tree, dict)
    assert type(tree["key"]) is type(GOOD[text])


def test_nan_is_a_number() -> None:
    tree = parse_yaml(b".nan", "x.yaml").tree
    assert isinstance(tree, float)
    assert math.isnan(tree)


LARGE: dict[str, bytes] = {
    "comments": b"# comment\n" * (MAX_BYTES // 10),
    "one string": b"a: " + b"x" * (MAX_BYTES - 3),
    "one quoted string": b'a: "' + b"x" * (MAX_BYTES - 5) + b'"',
    "many values": b"[" + b"1," * (MAX_NODES - 2) + b"1]",
    "half a million brackets": b"[" * (MAX_BYTES // 2),
    "half a million dashes": b"- " * (MAX_BYTES // 2),
    "half a million question marks": b"? " * (MAX_BYTES // 2),
    "half a million commas": b"[" + b"1," * (MAX_BYTES // 2 - 1),
    "blanks": b" " * MAX_BYTES,
    "newlines": b"\n" * MAX_BYTES,
    "keys": b"".join(b"k%d: 1\n" % i for i in range(4900)),
}


@pytest.mark.skipif(not hasattr(yaml, "CSafeLoader"), reason="PyYAML without libyaml")
@pytest.mark.skipif(sys.gettrace() is not None, reason="times mean nothing while tracing")
@pytest.mark.parametrize("name", [*LARGE, *BAD])
def test_no_file_takes_more_than_100_ms(name: str) -> None:
    data = LARGE[name] if name in LARGE else BAD[name][0]
    assert min(_seconds_to_read(data) for _ in range(3)) < 0.1


def _seconds_to_read(data: bytes) -> float:
    start = time.thread_time()
    with contextlib.suppress(ConfigError):
        parse_yaml(data, "x.yaml")
    return time.thread_time() - start


printable = st.characters(
    exclude_categories=("Cs", "Cc", "Zl", "Zp", "Cn"), exclude_characters="\ufeff\ufffe\uffff"
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(10**50), 10**50)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(printable, max_size=20)
)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(printable, max_size=10), inner, max_size=4)
    ),
    max_leaves=15,
)


@settings(max_examples=150, deadline=None)
@given(trees)
def test_json_reads_as_itself(tree: object) -> None:
    text = json.dumps(tree, ensure_ascii=False)
    again = parse_yaml(text.encode(), "x.yaml").tree
    assert json.dumps(again) == json.dumps(tree)


@settings(max_examples=150, deadline=None)
@given(
    st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace"))
)
def test_any_bytes_give_a_tree_or_a_config_error(data: bytes) -> None:
    with contextlib.suppress(ConfigError):
        json.dumps(parse_yaml(data, "x.yaml").tree)


def test_every_key_and_item_has_its_line() -> None:
    document = parse_yaml(b"a: 1\nb:\n  c:\n    - x\n    - {d: 1,\n       e: 2}\n", "x.yaml")
    lines = {path: place.line for path, place in document.places.items()}
    assert lines == {
        (): 1,
        ("a",): 1,
        ("b",): 2,
        ("b", "c"): 3,
        ("b", "c", 0): 4,
        ("b", "c", 1): 5,
        ("b", "c", 1, "d"): 5,
        ("b", "c", 1, "e"): 6,
    }


def test_an_unknown_path_is_placed_at_what_is_around_it() -> None:
    document = parse_yaml(b"a: 1\nb:\n  c: 1\n", "x.yaml")
    assert document.place(("b", "zzz", 3)) == Place(2, "x.yaml:2")


def test_an_empty_file_is_placed_nowhere() -> None:
    document = parse_yaml(b"", "x.yaml")
    assert document.tree is None
    assert document.place(("a",)) == Place(0, "x.yaml")


def test_depth_up_to_the_limit_is_read() -> None:
    assert parse_yaml(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, "x.yaml").tree is not None


def test_a_byte_order_mark_of_utf_8_is_ignored() -> None:
    assert parse_yaml(b"\xef\xbb\xbfa: 1\n", "x.yaml").tree == {"a": 1}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no experiment file .*nothing\.yaml"):
        load_yaml(tmp_path / "nothing.yaml")


@pytest.mark.parametrize("path", ["x" * 5000, "a\0b", ""])
def test_a_name_no_file_can_have_is_a_missing_file(path: str) -> None:
    with pytest.raises(ConfigError, match="there is no experiment file"):
        load_yaml(path)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a regular file"):
        load_yaml(tmp_path)


def test_a_file_too_large_is_not_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(ConfigError, match="at most 1048576 bytes"):
        load_yaml(file)


def test_a_file_is_named_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.yaml").write_text("a: 1\na: 2\n")
    with pytest.raises(ConfigError, match=r"^e\.yaml:2: "):
        load_yaml("e.yaml")
