"""Raw tables from files, patterns, several files, DataFrames and Arrow tables."""

from __future__ import annotations

import gzip
import os
import pickle

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.data.sources.content import Content
from cerebro.data.sources.csv_file import read_csv
from cerebro.data.sources.table import expand, read_table
from cerebro.errors import DataError, UsageError


def write(tmp_path, name, text):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


def test_types_are_guessed_or_given(tmp_path):
    file = write(tmp_path, "a.csv", "id,n,x,t,b,h\n1,2,0.5,a,true,1.5\n2,3,1,b,false,\n")
    raw = read_table(file, columns={"n": "uint8", "h": "float16"})
    assert {field.name: str(field.type) for field in raw.table.schema} == {
        "id": "int64",
        "n": "uint8",
        "x": "double",
        "t": "string",
        "b": "bool",
        "h": "halffloat",
    }
    assert raw.table["h"].to_pylist() == [1.5, None]


def test_rows_know_where_they_come_from(tmp_path):
    first = write(tmp_path, "a.csv", 'id,t\n1,"x\ny"\n\n2,z\n')
    second = write(tmp_path, "b.jsonl", '\n{"id": 3, "t": "x"}\n')
    raw = read_table([first, second])
    assert [raw.where(row) for row in range(3)] == [f"{first}:2", f"{first}:5", f"{second}:2"]
    placed = raw.with_places("file", "line").to_pydict()
    assert placed["file"] == [str(first), str(first), str(second)]
    assert placed["line"] == [2, 5, 2]


def test_a_pattern_stands_for_all_files_it_matches_in_order(tmp_path):
    for n in (2, 1, 3):
        write(tmp_path, f"part-{n}.csv", f"id\n{n}\n")
    raw = read_table(f"{tmp_path}/part-*.csv")
    assert raw.table["id"].to_pylist() == [1, 2, 3]
    with pytest.raises(DataError, match=r"no file matches .*none-\*"):
        read_table(f"{tmp_path}/none-*.csv")


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path):
    assert expand(write(tmp_path, "a[1].csv", "id\n1\n")) == [f"{tmp_path}/a[1].csv"]


def test_remote_files_are_read_and_called_by_their_names(tmp_path):
    for n, data in enumerate([b"id,x\n1,2\n", b"id,x\n2\n3,4\n"]):
        with fsspec.open(f"memory://tables/{n}.csv", "wb") as file:
            file.write(data)
    raw = read_table("memory://tables/*.csv", on_bad_row="skip", max_bad=1)
    assert raw.table["id"].to_pylist() == [1, 3]
    assert str(raw.bad.rows[0]).startswith("memory:///tables/1.csv:2: has 1 columns")
    with pytest.raises(DataError, match=r"memory://tables/9\.csv does not exist"):
        read_table("memory://tables/9.csv")


def test_files_follow_each_other_whatever_order_their_columns_have(tmp_path):
    first = write(tmp_path, "a.csv", "id,x,t\n1,1,a\n")
    second = write(tmp_path, "b.csv", "id,t,x\n2,b,0.5\n")
    empty = write(tmp_path, "c.csv", "id,t,x\n")
    raw = read_table([first, empty, second])
    assert raw.table.to_pydict() == {"id": [1, 2], "x": [1.0, 0.5], "t": ["a", "b"]}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("id,y\n2,1\n", r"b\.csv differ in: x, y"),
        ("id,x\n2,a\n", r"b\.csv differ in: x\. Give their types"),
        ("id,x\n1,2\n", r"b\.csv:2: column 'id' must be another one.*a\.csv:2"),
    ],
)
def test_files_that_do_not_go_together_are_named(tmp_path, other, message):
    files = [write(tmp_path, "a.csv", "id,x\n1,1\n"), write(tmp_path, "b.csv", other)]
    with pytest.raises(DataError, match=message):
        read_table(files)


def test_whole_numbers_are_not_rounded_for_another_files_fractions(tmp_path):
    files = [
        write(tmp_path, "a.csv", f"id,x\n1,{2**53 + 1}\n"),
        write(tmp_path, "b.csv", "id,x\n2,0.5\n"),
    ]
    with pytest.raises(DataError, match=r"a\.csv has whole numbers that are too large"):
        read_table(files)


def test_data_frames_and_arrow_tables_are_sources():
    frame = pd.DataFrame({"id": ["a", "b", "a"], "x": [1.0, 2.0, 3.0]}, index=[7, 8, 9])
    for source in (frame, pa.table({"id": ["a", "b", "a"], "x": [1.0, 2.0, 3.0]})):
        raw = read_table(source, columns={"x": "float32"}, on_bad_row="skip", max_bad=1)
        assert raw.table.to_pydict() == {"id": ["a", "b"], "x": [1.0, 2.0]}
        (bad,) = raw.bad
        assert (bad.line, bad.column, bad.value) == (3, "id", "a")
        assert bad.file == f"<{type(source).__name__}>"


def test_a_data_frame_that_mixes_types_is_refused():
    with pytest.raises(DataError, match=r"<DataFrame> cannot be read as a table.*column x"):
        read_table(pd.DataFrame({"id": [1, 2], "x": [1, "a"]}))


def test_ids_in_any_order_may_be_numbers_or_text(tmp_path):
    for ids in ([3, 1, 2], ["c", "a", "b"]):
        text = "id\n" + "".join(f"{one}\n" for one in ids)
        assert read_table(write(tmp_path, "a.csv", text)).table["id"].to_pylist() == ids


def test_ids_that_are_all_missing_are_all_bad(tmp_path):
    file = write(tmp_path, "a.csv", "id,x\n,1\n,2\n")
    raw = read_table(file, on_bad_row="skip", max_bad=1.0)
    assert (len(raw), raw.rows_in) == (0, 2)


def test_more_bad_rows_than_may_be_are_an_error_that_lists_the_first(tmp_path):
    rows = ["1" if n < 7 else f"{n},1" for n in range(1, 1001)]
    file = write(tmp_path, "a.csv", "\n".join(["id,x", *rows]))
    with pytest.raises(DataError) as caught:
        read_table(file, on_bad_row="skip")
    text = str(caught.value)
    assert text.startswith("6 of 1000 rows are bad:")
    assert f"{file}:2: has 1 columns" in text
    assert f"{file}:6: has 1 columns" in text
    assert "and 1 more" in text
    assert "At most 1 may be (max_bad=0.001)" in text
    assert read_table(file, on_bad_row="skip", max_bad=6).rows_in == 1000


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_column_of_another_type_is_given_up_early(tmp_path, name):
    lines = [f"{n},word {n}" for n in range(50_000)]
    if name == "a.jsonl":
        lines = [f'{{"id": {n}, "x": "word {n}"}}' for n in range(50_000)]
    file = write(tmp_path, name, "\n".join([*(["id,x"] if name == "a.csv" else []), *lines]))
    with pytest.raises(DataError, match=r"a\.(csv:2|jsonl:1): column 'x' must be float32"):
        read_table(file, columns={"x": "float32"})
    with pytest.raises(DataError, match=r"at least 51 of 50000 rows are bad:(.|\n)*and 46 more"):
        read_table(file, columns={"x": "float32"}, on_bad_row="skip")


def test_a_directory_is_refused_with_a_hint(tmp_path):
    for name in ("parts", "parts.csv", "parts.parquet", "parts.jsonl.gz"):
        (tmp_path / name).mkdir()
        with pytest.raises(DataError, match=rf"{name} is a directory.*\*\.csv"):
            read_table(tmp_path / name)


def test_a_missing_file_is_named(tmp_path):
    for name in ("a.csv", "a.csv.gz", "a.jsonl", "a.parquet"):
        with pytest.raises(DataError, match=f"{name} does not exist"):
            read_table(tmp_path / name)


def test_a_file_that_cannot_be_opened_is_named_with_the_reason(tmp_path):
    for name in ("a.csv", "a.csv.gz", "a.parquet"):
        (tmp_path / name).symlink_to(tmp_path / name)
        with pytest.raises(DataError, match=rf"{name} cannot be read: .*symbolic links"):
            read_table(tmp_path / name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path):
    file = write(tmp_path, "a.csv", "id\n1\n")
    file.chmod(0)
    with pytest.raises(DataError, match=r"a\.csv cannot be read: Permission denied"):
        read_table(file)


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        ([], {}, "at least one file"),
        (7, {}, "files or a table, but got int"),
        ([7], {}, "files or a table, but got int"),
        ("a.txt", {}, r"\.csv, \.jsonl.*but got a\.txt.*format="),
        ("a.csv", {"format": "xlsx"}, "csv, jsonl, parquet.*format='xlsx'"),
        ("a.csv", {"on_bad_row": "ignore"}, "fail, skip, quarantine, but got 'ignore'"),
        ("a.csv", {"max_bad": 1.5}, "fraction from 0.0 to 1.0"),
        ("a.csv", {"max_bad": -1}, "max_bad=-1"),
        ("a.csv", {"max_bad": True}, "max_bad=True"),
        ("a.csv", {"columns": {"x": "float23"}}, "Did you mean 'float32'"),
        ("a.csv", {"columns": ["x"]}, "must be a mapping"),
        ("a.csv", {"delimiter": ";;"}, "one ASCII character"),
        ("a.csv", {"delimiter": '"'}, "one ASCII character"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, monkeypatch, source, arguments, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "a.csv", "id\n1\n")
    with pytest.raises(UsageError, match=message):
        read_table(source, **arguments)


def test_a_format_can_be_given_for_names_that_do_not_tell(tmp_path):
    file = write(tmp_path, "a.txt", "id;x\n1;2\n")
    raw = read_table(file, format="csv", delimiter=";")
    assert raw.table.to_pydict() == {"id": [1], "x": [2]}


def test_parquet_rows_are_read_with_their_numbers(tmp_path):
    file = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pa.table({"id": [5, 6], "x": [[1], [2]]}), file)
    raw = read_table(file)
    assert raw.table["x"].to_pylist() == [[1], [2]]
    assert raw.where(1) == f"{file}:2"


def test_a_large_file_is_read_in_blocks_with_the_right_lines(tmp_path):
    rows = 120_000  # some 3 MB: the reader works in blocks of 1 MB
    plain = "".join(f"{n},{n}.5,text of {n}\n" for n in range(rows))
    quoted = "".join(f'{n},{n}.5,"text\nof {n}"\n' for n in range(rows))
    raw = read_table(write(tmp_path, "plain.csv", f"id,x,t\n{plain}"))
    assert (raw.lines == np.arange(2, rows + 2)).all()
    raw = read_table(write(tmp_path, "quoted.csv", f"id,x,t\n{quoted}"))
    assert (raw.lines == np.arange(2, 2 * rows + 2, 2)).all()
    late = plain + f'{rows},1.5,"a\nb"\n{rows + 1},2.5\n{rows + 2},x,c\n'
    raw = read_table(write(tmp_path, "late.csv", f"id,x,t\n{late}"), on_bad_row="skip")
    assert [row.line for row in raw.bad] == [rows + 4, rows + 5]
    assert raw.where(rows).endswith(f":{rows + 2}")


def test_a_raw_table_can_be_sent_to_workers(tmp_path):
    raw = read_table(write(tmp_path, "a.csv", "id,x\n1,2\n3\n"), on_bad_row="skip", max_bad=1)
    copy = pickle.loads(pickle.dumps(raw))
    assert copy.table.equals(raw.table)
    assert copy.bad == raw.bad


TEXT = st.text(st.sampled_from("ab\",\n\r 'é;0"), max_size=6)
NUMBER = st.integers(-(2**63), 2**63 - 1)
FLAWS = st.sampled_from(["short", "long", "type", "nul", "utf8", "after", None, None, None])


@settings(max_examples=150)
@given(
    rows=st.lists(st.tuples(NUMBER, TEXT, FLAWS), min_size=1, max_size=30),
    blank=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
    all_quoted=st.booleans(),
    is_gzip=st.booleans(),
)
def test_every_row_comes_out_exactly_once_or_is_bad(
    tmp_path_factory, rows, blank, end, all_quoted, is_gzip
):
    """Rows in = rows out + rows bad, at the right lines, and good values are exact."""
    data = b"id,n,t" + end.encode()
    line, good, bad = 2, {}, []
    for number, (n, text, flaw) in enumerate(rows):
        if blank and number % 3 == 0:
            data += end.encode()
            line += 1
        record = with_flaw([str(number), str(n), text], flaw, end, all_quoted)
        if flaw is None:
            good[line] = (number, n, text)
        else:
            bad.append(line)
        data += record
        line += len(record.splitlines())
    suffix = ".csv.gz" if is_gzip else ".csv"
    file = tmp_path_factory.mktemp("table") / f"raw{suffix}"
    file.write_bytes(gzip.compress(data) if is_gzip else data)
    types = {"id": "int64", "n": "int64", "t": "text"}
    raw = read_table(file, columns=types, on_bad_row="skip", max_bad=1.0)
    found = raw.table.to_pydict()
    values = zip(found["id"], found["n"], found["t"], strict=True)
    assert dict(zip(raw.lines.tolist(), values, strict=True)) == good
    assert [row.line for row in raw.bad] == bad
    assert raw.rows_in == len(rows)


def with_flaw(cells: list[str], flaw: str | None, end: str, all_quoted: bool) -> bytes:
    last = {"nul": b"a\0b", "utf8": b"a\xff", "after": b'"a"b'}.get(flaw or "")
    if last is not None:
        return b",".join([cells[0].encode(), cells[1].encode(), last]) + end.encode()
    if flaw in ("short", "long"):
        cells = cells[:2] if flaw == "short" else [*cells, "more"]
    if flaw == "type":
        cells[1] = "many"
    return (",".join(quoted(cell, all_quoted) for cell in cells) + end).encode()


def quoted(cell: str, always: bool) -> str:
    if always or any(sign in cell for sign in '",\r\n'):
        return '"' + cell.replace('"', '""') + '"'
    return cell


def test_the_careful_way_reads_what_the_fast_one_does(tmp_path):
    """A file with one bad row more must give the same rows as without it."""
    sound = "id,n,t,d\n" + "".join(
        f'{n},{n % 7},"a ""{n}""",2024-01-0{n % 9 + 1}\n' for n in range(300)
    )
    one = read_csv(Content("a", str(write(tmp_path, "a.csv", sound))), {})
    two = read_csv(Content("b", str(write(tmp_path, "b.csv", sound + "x\n"))), {})
    assert (len(one.bad), len(two.bad)) == (0, 1)
    assert one.table.equals(two.table)
    assert (one.lines == two.lines).all()
