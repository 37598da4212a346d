"""Files with something wrong, or with something unusual that is right: what each has to give.

`good` are the ids of the rows that come out, `bad` the (line, column) of those that do not. A file
that cannot be a table at all has a `refusal` instead, whatever the policy.
"""

from __future__ import annotations

import gzip
import io
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet

WIDE = 5000
LONG = 10_000_000
TAIL = [f"{n},{n}.5,t{n}" for n in range(3, 203)]
SOUND = list(range(3, 203))


@dataclass(frozen=True)
class Case:
    """One file, how it is read, and what comes out."""

    data: bytes
    good: list[Any] = field(default_factory=list)
    bad: list[tuple[int | None, str | None]] = field(default_factory=list)
    #: Part of the error with "fail", after the file's name.
    message: str = ""
    refusal: str | None = None
    columns: dict[str, str] | None = None
    name: str = "raw.csv"
    #: Values to look at: (column, position among the good rows) -> value.
    values: dict[tuple[str, int], Any] = field(default_factory=dict)


def csv(*rows: str, tail: bool = True) -> bytes:
    """`id,x,t` with these rows and 200 sound ones after them."""
    return "\n".join(["id,x,t", *rows, *(TAIL if tail else []), ""]).encode("latin-1")


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(table, sink)
    return sink.getvalue()


def jsonl(*lines: str) -> bytes:
    return "\n".join([*lines, *(f'{{"id": {n}, "x": {n}.5}}' for n in SOUND), ""]).encode()


CORPUS = {
    "short row": Case(
        csv("1,1.5", "2,2.5,b"),
        good=[2, *SOUND],
        bad=[(2, None)],
        message=r":2: has 2 columns instead of 3, but got '1,1\.5'",
    ),
    "long row": Case(
        csv("1,1.5,a,", "2,2.5,b"),
        good=[2, *SOUND],
        bad=[(2, None)],
        message=":2: has 4 columns instead of 3",
    ),
    "every row has a trailing delimiter": Case(
        csv("1,1.5,a,", "2,2.5,b,", tail=False),
        bad=[(2, None), (3, None)],
        message=":2: has 4 columns instead of 3",
    ),
    "quote never closed": Case(
        csv("1,1.5,a", '2,2.5,"b'),
        good=[1, *SOUND],
        bad=[(3, None)],
        message=":3: has a quote that is never closed",
    ),
    "quote closed by the next row's": Case(
        csv('1,1.5,"a', '2,2.5,"b"'),
        good=[2, *SOUND],
        bad=[(2, None)],
        message=":2: has text after a closing quote",
        values={("t", 0): "b"},
    ),
    "text after a quote": Case(
        csv('1,1.5,"a"a', '2,2.5,"b"'),
        good=[2, *SOUND],
        bad=[(2, None)],
        message=":2: has text after a closing quote",
    ),
    "NUL byte": Case(
        csv("1,1.5,a\0b", "2,2.5,b"),
        good=[2, *SOUND],
        bad=[(2, None)],
        message=":2: holds a NUL byte",
    ),
    "bad UTF-8": Case(
        csv("1,1.5,a", "2,2.5,caf\xe9"),
        good=[1, *SOUND],
        bad=[(3, "t")],
        message=r":3: column 't' must be UTF-8 text.*'caf\\\\xe9'",
    ),
    "bad UTF-8 in a number": Case(
        csv("1,\xe9,a", "2,2.5,b"),
        good=[2, *SOUND],
        bad=[(2, "x")],
        message=r":2: column 'x' must be float64.*'\\\\xe9'",
    ),
    "text among numbers": Case(
        csv("1,tall,a", "2,2.5,b"),
        good=[2, *SOUND],
        bad=[(2, "x")],
        message=":2: column 'x' must be float64, as the others are, but got 'tall'",
        values={("x", 0): 2.5},
    ),
    "text where numbers were asked for": Case(
        csv("1,1.5,a", "2,x,b", "9,y,c", tail=False),
        good=[1],
        bad=[(3, "x"), (4, "x")],
        message=":3: column 'x' must be float32, but got 'x'",
        columns={"x": "float32"},
    ),
    "fraction where whole numbers were asked for": Case(
        csv("1,1,a", "2,2.5,b", tail=False),
        good=[1],
        bad=[(3, "x")],
        message=r":3: column 'x' must be uint8, but got '2\.5'",
        columns={"x": "uint8"},
    ),
    "too large for its type": Case(
        csv("1,255,a", "2,256,b", "3,-1,c", tail=False),
        good=[1],
        bad=[(3, "x"), (4, "x")],
        message=":3: column 'x' must be uint8, but got '256'",
        columns={"x": "uint8"},
    ),
    "whole number beyond int64": Case(
        csv("1,9223372036854775808,a", "2,9223372036854775807,b", tail=False),
        good=[2],
        bad=[(2, "x")],
        message=":2: column 'x' must be int64.*'9223372036854775808'",
        values={("x", 0): 9223372036854775807},
    ),
    "id twice": Case(
        csv("1,1.5,a", "1,2.5,b", "7,0.5,c"),
        good=[1, 7, *(n for n in SOUND if n != 7)],
        bad=[(3, "id"), (9, "id")],
        message=r":3: column 'id' must be another one.*raw\.csv:2.*'1'",
    ),
    "id missing in a row": Case(
        csv("1,1.5,a", ",2.5,b"),
        good=[1, *SOUND],
        bad=[(3, "id")],
        message=":3: column 'id' must have a value",
    ),
    "several things at once, quotes over lines between them": Case(
        csv("1,1.5", '2,2.5,"b\nb"', "x,1.5,c", "4,oops,d", '5,5.5,"""q"""', tail=False)
        + "".join(f"{n},{n}.5,t{n}\n" for n in range(6, 506)).encode(),
        good=[2, *range(5, 506)],
        bad=[(2, None), (5, "id"), (6, "x")],
        message=":2: has 2 columns",
        values={("t", 0): "b\nb", ("t", 1): '"q"'},
    ),
    "spaces in a blank line": Case(
        csv("1,1.5,a", "   ", "2,2.5,b"),
        good=[1, 2, *SOUND],
        bad=[(3, None)],
        message=":3: has 1 columns instead of 3",
    ),
    "byte order mark": Case(b"\xef\xbb\xbf" + csv("1,1.5,a", tail=False), good=[1]),
    "CRLF": Case(
        csv("1,1.5,a", "2,2.5,b", tail=False).replace(b"\n", b"\r\n"),
        good=[1, 2],
        values={("t", 1): "b"},
    ),
    "CR alone": Case(csv("1,1.5,a", "2,2.5,b").replace(b"\n", b"\r"), good=[1, 2, *SOUND]),
    "CR alone and a bad row": Case(
        csv("1,1.5,a", "2,2.5").replace(b"\n", b"\r"),
        good=[1, *SOUND],
        bad=[(3, None)],
        message=":3: has 2 columns",
    ),
    "blank lines": Case(
        b"\n" + csv("1,1.5,a", "", "", "2,2.5", "", "3,3.5,c", tail=False) + b"\n\n",
        good=[1, 3],
        bad=[(6, None)],
        message=":6: has 2 columns",
    ),
    "no newline at the end": Case(csv("1,1.5,a", tail=False).rstrip(b"\n"), good=[1]),
    "newline and delimiter in quotes": Case(
        csv('1,1.5,"a\n,b"', "2,2.5,c", tail=False), good=[1, 2], values={("t", 0): "a\n,b"}
    ),
    "quotes inside of a value": Case(
        csv('1,1.5,5" pipe', '2,2.5,"say ""x"""', tail=False),
        good=[1, 2],
        values={("t", 0): '5" pipe', ("t", 1): 'say "x"'},
    ),
    "infinite and not a number": Case(
        csv("1,inf,a", "2,-inf,b", "3,nan,c", "4,1e3,d", tail=False),
        good=[1, 2, 3, 4],
        values={("x", 0): float("inf"), ("x", 1): -float("inf"), ("x", 3): 1000.0},
    ),
    "missing values": Case(
        csv("1,,", "2,NA,NA", tail=True),
        good=[1, 2, *SOUND],
        values={("x", 0): None, ("x", 1): None, ("t", 0): "", ("t", 1): "NA"},
    ),
    "field of 10 MB": Case(
        csv("1,1.5," + "a" * LONG, "2,2.5,b", tail=False),
        good=[1, 2],
        values={("t", 0): "a" * LONG},
    ),
    "field of 10 MB in a bad row": Case(
        csv("1," + "a" * LONG + ",a", "2,2.5,b"),
        good=[2, *SOUND],
        bad=[(2, "x")],
        message=r":2: column 'x' must be float64.*but got 'a{60}… \(10000000\)'",
    ),
    "very many columns": Case(
        "\n".join(
            [
                ",".join(["id", *(f"c{n}" for n in range(WIDE))]),
                ",".join(["1", *["0.5"] * WIDE]),
                ",".join(["2", *["0.5"] * (WIDE - 1), "x"]),
                ",".join(["3", *["0.5"] * (WIDE - 1)]),
            ]
        ).encode(),
        good=[1],
        bad=[(3, "c4999"), (4, None)],
        message=":3: column 'c4999' must be float",
        columns={f"c{n}": "float32" for n in range(WIDE)},
    ),
    "fractions after many whole numbers": Case(
        b"id,x\n" + b"".join(b"%d,%d\n" % (n, n) for n in range(300)) + b"300,0.5\n",
        good=list(range(301)),
        values={("x", 1): 1.0, ("x", 300): 0.5},
    ),
    "a column of bytes": Case(
        csv("1,1.5,\xff", tail=False), good=[1], columns={"t": "bytes"}, values={("t", 0): b"\xff"}
    ),
    "gzip by its name": Case(
        gzip.compress(csv("1,1.5,a", "2,2.5", "3,3.5,c", tail=False)),
        good=[1, 3],
        bad=[(3, None)],
        message=":3: has 2 columns",
        name="raw.csv.gz",
    ),
    "empty file": Case(b"", refusal="the first line must name the columns, but is empty"),
    "header only": Case(csv(tail=False), refusal="must have at least one row of data"),
    "name twice": Case(b"id,a,a\n1,2,3\n", refusal=":1: every column needs its own name.*'a'"),
    "name missing": Case(b"id,a,\n1,2,3\n", refusal=":1: every column needs a name.*number 3"),
    "no id": Case(b"key,a\n1,2\n", refusal=":1: the first column must be 'id', but is 'key'"),
    "id not first": Case(b"a,id\n1,2\n", refusal=":1: the first column must be 'id'.*front"),
    "semicolons": Case(b"id;a\n1;2\n", refusal="must be 'id', but is 'id;a'.*delimiter=';'"),
    "UTF-16": Case("id,a\n1,2\n".encode("utf-16"), refusal="must be UTF-8 text, but is UTF-16"),
    "gzip named csv": Case(gzip.compress(b"id\n1\n"), refusal=r"gzip-compressed.*\.gz"),
    "csv named gzip": Case(b"id\n1\n", name="raw.csv.gz", refusal="must be a whole gzip file"),
    "gzip cut off": Case(
        gzip.compress(csv())[:-20], name="raw.csv.gz", refusal="must be a whole gzip file"
    ),
    "Parquet named csv": Case(parquet(pa.table({"id": [1]})), refusal="a Parquet file"),
    "header that is no UTF-8": Case(b"id,caf\xe9\n1,2\n", refusal=":1: .*UTF-8.*xe9"),
    "quote in the header never closed": Case(b'id,"a\n1,2\n', refusal=":1: .*never closed"),
    "ids that are fractions": Case(b"id\n1.5\n2.5\n", refusal="must hold whole numbers or text"),
    "type for a column that is not there": Case(
        csv(), columns={"xx": "text"}, refusal="no column 'xx'.*Did you mean 'x'"
    ),
    "Parquet cut off": Case(
        parquet(pa.table({"id": [1, 2]}))[:-10],
        name="raw.parquet",
        refusal="cannot be read as Parquet",
    ),
    "text named Parquet": Case(csv(), name="raw.parquet", refusal="cannot be read as Parquet"),
    "Parquet values that do not fit": Case(
        parquet(pa.table({"id": [1, 2, 3], "x": [1, 300, 3]})),
        good=[1, 3],
        bad=[(2, "x")],
        message=":2: column 'x' must be uint8, but got '300'",
        columns={"x": "uint8"},
        name="raw.parquet",
    ),
    "Parquet of another kind": Case(
        parquet(pa.table({"id": [1], "x": ["a"]})),
        columns={"x": "uint8"},
        name="raw.parquet",
        refusal="column 'x' must be uint8, but is string",
    ),
    "Parquet without id": Case(
        parquet(pa.table({"a": [1]})), name="raw.parquet", refusal="must be 'id', but is 'a'"
    ),
    "bad JSON line": Case(
        jsonl('{"id": 1, "x": 1.5', '{"id": 2, "x": 2.5}'),
        good=[2, *SOUND],
        bad=[(1, None)],
        message=r":1: must be a JSON object \(Expecting",
        name="raw.jsonl",
    ),
    "JSON that is no object": Case(
        jsonl("[1, 2]", "", '{"id": 2, "x": 2.5}'),
        good=[2, *SOUND],
        bad=[(1, None)],
        message=r":1: must be a JSON object",
        name="raw.jsonl",
    ),
    "JSON with a key missing, and one too many": Case(
        jsonl('{"id": 1}', '{"id": 2, "x": 2.5, "y": 1}'),
        good=SOUND,
        bad=[(1, "x"), (2, "y")],
        message=":1: column 'x' is missing: write null",
        name="raw.jsonl",
    ),
    "JSON with text among numbers": Case(
        jsonl('{"id": 1, "x": "1.5"}', '{"x": 2, "id": 2}', '{"id": 3333, "x": null}'),
        good=[2, 3333, *SOUND],
        bad=[(1, "x")],
        message=":1: column 'x' must be a number, as the others are, but got '\"1.5\"'",
        name="raw.jsonl",
        values={("x", 0): 2.0, ("x", 1): None},
    ),
    "JSON beyond int64": Case(
        b'{"id": 1, "n": 9223372036854775808}\n{"id": 2, "n": 9223372036854775807}\n',
        good=[2],
        bad=[(1, "n")],
        message=":1: column 'n' must be int64",
        name="raw.jsonl",
        values={("n", 0): 9223372036854775807},
    ),
    "JSON values that do not fit": Case(
        jsonl('{"id": 1, "x": "tall"}'),
        good=SOUND,
        bad=[(1, "x")],
        message=":1: column 'x' must be float32, but got '\"tall\"'",
        columns={"x": "float32"},
        name="raw.jsonl",
    ),
    "JSON key twice": Case(
        jsonl('{"id": 1, "x": 1, "x": 2}'),
        good=SOUND,
        bad=[(1, None)],
        message=r":1: must be a JSON object \(key 'x' is there twice",
        name="raw.jsonl",
    ),
    "JSON that is no UTF-8": Case(
        jsonl().replace(b"3.5", b'"\xff"', 1),
        good=SOUND[1:],
        bad=[(1, None)],
        message=":1: must be a JSON object",
        name="raw.jsonl",
    ),
    "JSON, gzip, CRLF and blank lines": Case(
        gzip.compress(b'{"a": "x", "id": 1}\r\n\r\n{"a": "y", "id": 2}'),
        good=[1, 2],
        name="raw.jsonl.gz",
        values={("a", 1): "y"},
    ),
    "two JSON objects in a line": Case(
        b'{"id": 1} {"id": 2}\n{"id": 3}\n',
        good=[3],
        bad=[(1, None)],
        message=":1: must be a JSON object",
        name="raw.jsonl",
    ),
    "JSON, empty file": Case(b"", name="raw.jsonl", refusal="must have at least one row"),
    "JSON without id": Case(b'{"a": 1}\n', name="raw.jsonl", refusal="must be 'id', but is 'a'"),
}
