"""ETL: every row once, the same shards for everyone, bad rows told, nothing lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.backend import InlineBackend, LocalBackend
from cerebro.data import open_dataset
from cerebro.errors import DataError, UsageError
from cerebro.etl_spec import ETLSpec
from cerebro.run.etl import EtlSettings, run_etl
from cerebro.storage import DirectoryStore
from cerebro.types import Split
from tests.etl import Doubled, Vectorised, content, prepare, raw_of, rows_of
from tests.processes import started_by_tests


@given(st.integers(1, 60), st.integers(1, 7))
def test_every_row_comes_out_exactly_once(tmp_path_factory, rows, shards):
    path = tmp_path_factory.mktemp("etl")
    report = prepare(path, raw_of(range(rows)), shards=min(rows, shards))
    found = rows_of(open_dataset(path), "train")
    assert sorted(found) == [(100 + n, 2.0 * n, n % 2) for n in range(rows)]
    assert (report.splits["train"].rows_in, report.splits["train"].rows) == (rows, rows)


@pytest.mark.parametrize("rows", [8, 100, 250, 251, 1000])
def test_no_row_is_lost_at_sizes_at_which_the_ancestor_lost_some(tmp_path, rows):
    prepare(tmp_path, raw_of(range(rows)), shards=4)
    assert open_dataset(tmp_path).rows("train") == rows


def test_train_rows_are_in_random_order_and_predict_rows_stay_in_theirs(tmp_path):
    splits = {Split.TRAIN: raw_of(range(50)), Split.PREDICT: raw_of(range(30))}
    prepare(tmp_path, splits, shards=5)
    data = open_dataset(tmp_path)
    ids = [row[0] for row in rows_of(data, "train")]
    assert ids != sorted(ids)
    assert [row[0] for row in rows_of(data, "predict")] == list(range(100, 130))
    assert len(data.shards("predict")) == 3


def test_a_predict_split_has_no_labels_and_the_others_have(tmp_path):
    splits = {Split.TRAIN: raw_of(range(8)), Split.PREDICT: raw_of(range(4))}
    prepare(tmp_path, splits)
    data = open_dataset(tmp_path)
    assert set(data.schema_of("train")) == {"x", "y", "id"}
    assert set(data.schema_of("predict")) == {"x", "id"}
    data.verify()


def test_another_seed_gives_another_order_of_the_same_rows(tmp_path):
    for seed in (1, 2):
        prepare(tmp_path / str(seed), raw_of(range(40)), seed=seed)
    one, other = (rows_of(open_dataset(tmp_path / str(seed)), "train") for seed in (1, 2))
    assert one != other
    assert sorted(one) == sorted(other)


def test_a_fraction_of_train_and_val_is_taken_but_all_of_test(tmp_path):
    splits = {split: raw_of(range(100)) for split in (Split.TRAIN, Split.VAL, Split.TEST)}
    report = prepare(tmp_path, splits, fraction=0.25)
    data = open_dataset(tmp_path)
    assert [data.rows(split) for split in ("train", "val", "test")] == [25, 25, 100]
    assert report.splits["train"].left_out == 75


@pytest.mark.parametrize("fraction", [0, 1.5, -0.1, True])
def test_a_fraction_that_is_none_is_refused(tmp_path, fraction):
    with pytest.raises(UsageError, match="0 < fraction <= 1"):
        prepare(tmp_path, raw_of(range(9)), fraction=fraction)


def test_more_shards_than_rows_are_refused(tmp_path):
    with pytest.raises(DataError, match="3 training rows for shards=4"):
        prepare(tmp_path, raw_of(range(3)), shards=4)


def test_the_same_shards_come_out_inline_and_on_any_number_of_workers(tmp_path):
    raw = {Split.TRAIN: raw_of(range(40)), Split.VAL: raw_of(range(9))}
    prepare(tmp_path / "inline", raw, shards=4)
    for workers in (1, 3):
        path = tmp_path / str(workers)
        prepare(path, raw, shards=4, backend=LocalBackend(), workers=workers)
        assert content(path) == content(tmp_path / "inline")


def test_many_rows_at_once_give_what_single_rows_give(tmp_path):
    raw = {Split.TRAIN: raw_of(range(20)), Split.PREDICT: raw_of(range(5))}
    prepare(tmp_path / "one", raw, Doubled())
    prepare(tmp_path / "all", raw, Vectorised())
    assert content(tmp_path / "one") == content(tmp_path / "all")


def test_a_second_etl_of_the_same_rows_does_nothing(tmp_path):
    first = prepare(tmp_path, raw_of(range(20)))
    before = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.arrow")}
    again = prepare(tmp_path, raw_of(range(20)))
    assert {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.arrow")} == before
    assert (first.prepared, again.prepared) == (20, 0)
    assert again.splits == first.splits
    assert "was prepared before" in str(again)
    assert prepare(tmp_path, raw_of(range(20)), is_fresh=True).prepared == 20


def test_other_rows_replace_those_that_were_there(tmp_path):
    prepare(tmp_path, raw_of(range(20)))
    prepare(tmp_path, raw_of(range(5, 30)))
    data = open_dataset(tmp_path)
    assert sorted(row[1] for row in rows_of(data, "train")) == [2.0 * n for n in range(5, 30)]
    assert len(list(tmp_path.glob("*.arrow"))) == 2


def test_a_split_can_be_added_to_a_dataset_that_is_there(tmp_path):
    prepare(tmp_path, raw_of(range(20)))
    train = content(tmp_path)
    prepare(tmp_path, {Split.TEST: raw_of(range(15))})
    data = open_dataset(tmp_path)
    assert [str(split) for split in data.splits] == ["train", "test"]
    assert train.items() <= content(tmp_path).items()
    # Shards like those that are there.
    assert [info.rows for info in data.shards("test")] == [8, 7]


# Bad rows


def test_a_bad_row_fails_by_default_and_is_named_by_file_line_and_id(tmp_path):
    with pytest.raises(
        DataError, match=r"train.csv:5: the row with id 103 .*ValueError: no -1"
    ) as e:
        prepare(tmp_path, raw_of([1, 2, 3, -1, 5]), shards=1)
    assert "etl.py, line" in str(e.value)
    assert not (tmp_path / "dataset.json").exists()


@pytest.mark.parametrize("backend", [None, LocalBackend])
def test_bad_rows_are_left_out_and_counted(tmp_path, backend):
    raw = raw_of([-1 if n % 10 == 3 else n for n in range(50)])
    made = None if backend is None else backend()
    report = prepare(tmp_path, raw, policy="skip", max_bad=0.1, backend=made)
    split = report.splits["train"]
    assert (split.rows_in, split.rows, split.bad) == (50, 45, 5)
    assert open_dataset(tmp_path).rows("train") == 45
    assert report.reasons == {"cannot be prepared: ValueError: no -1, please": 5}
    assert not (tmp_path / "bad_rows.jsonl").exists()


def test_bad_rows_in_quarantine_are_written_down(tmp_path):
    report = prepare(tmp_path, raw_of([0, -1, 2, 3]), policy="quarantine", max_bad=1, shards=1)
    (line,) = (tmp_path / "bad_rows.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert (row["file"], row["line"]) == ("train.csv", 3)
    assert json.loads(row["text"]) == {"id": 101, "value": -1}
    assert report.quarantine == str(tmp_path / "bad_rows.jsonl")


def test_too_many_bad_rows_are_an_error_and_leave_the_old_dataset(tmp_path):
    prepare(tmp_path, raw_of(range(10)))
    before = content(tmp_path)
    with pytest.raises(DataError, match="2 of 20 rows are bad"):
        prepare(tmp_path, raw_of([-1, -1, *range(18)]), policy="skip", max_bad=1, shards=1)
    assert before.items() <= content(tmp_path).items()
    assert open_dataset(tmp_path).rows("train") == 10


def test_a_shard_without_a_good_row_is_left_out(tmp_path):
    splits = {Split.TRAIN: raw_of(range(4)), Split.TEST: raw_of([-1, -1, 5, 6])}
    prepare(tmp_path, splits, policy="skip", max_bad=1.0)
    data = open_dataset(tmp_path)
    assert [info.rows for info in data.shards("test")] == [2]


def test_no_good_row_at_all_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"train.csv must have a row that can be used"):
        prepare(tmp_path, raw_of([-1, -1]), policy="skip", max_bad=1.0)


# Workers


class Counting(ETLSpec):
    """Needs what initialize_worker and read_misc have made."""

    def read_misc(self, misc_path):
        self.factor = 3

    def initialize_worker(self):
        self.offset = 1

    def row_prep(self, row, mode, object_dir):
        return [float(row.value * self.factor + self.offset)], 0


def test_what_read_misc_sets_travels_and_workers_are_initialized(tmp_path):
    spec = Counting()
    spec.read_misc("")
    prepare(tmp_path, raw_of(range(4)), spec, backend=LocalBackend(), workers=2)
    found = rows_of(open_dataset(tmp_path), "train")
    assert sorted(row[1] for row in found) == [1.0, 4.0, 7.0, 10.0]


class Dying(ETLSpec):
    """Its process dies at a value, as long as there is a file."""

    def __init__(self, fuse):
        self.fuse = fuse

    def row_prep(self, row, mode, object_dir):
        import os

        if row.value == 7:
            try:
                os.unlink(self.fuse)
            except FileNotFoundError:
                pass
            else:
                os._exit(9)
        return [2.0 * row.value, 1.0], row.value % 2


def test_a_worker_that_dies_is_replaced_and_nothing_is_lost(tmp_path):
    (tmp_path / "fuse").touch()
    prepare(
        tmp_path / "etl",
        raw_of(range(12)),
        Dying(str(tmp_path / "fuse")),
        backend=LocalBackend(),
        workers=2,
        shards=4,
    )
    assert not (tmp_path / "fuse").exists()
    prepare(tmp_path / "other", raw_of(range(12)), shards=4)
    assert content(tmp_path / "etl") == content(tmp_path / "other")


def test_two_writers_at_once_are_refused(tmp_path):
    class Again(ETLSpec):
        def row_prep(self, row, mode, object_dir):
            prepare(tmp_path, raw_of(range(4)))

    with pytest.raises(DataError, match="only one process may write a dataset"):
        prepare(tmp_path, raw_of([0, 1]), Again(), shards=1)


# What a review found


def test_reasons_are_counted_together_and_bad_rows_listed_in_order(tmp_path):
    raw = raw_of([-1 if n % 5 == 0 else n for n in range(40)])
    written = []
    for workers in (1, 3):
        path = tmp_path / str(workers)
        report = prepare(
            path,
            raw,
            policy="quarantine",
            max_bad=20,
            shards=4,
            backend=LocalBackend(),
            workers=workers,
        )
        written.append((path / "bad_rows.jsonl").read_bytes())
        assert list(report.reasons.values()) == [8]
    assert written[0] == written[1]


def test_a_list_of_bad_rows_does_not_outlive_them(tmp_path):
    prepare(tmp_path, raw_of([0, -1, 2]), shards=1, policy="quarantine", max_bad=1)
    prepare(tmp_path, raw_of([0, 1, 2]), shards=1, policy="quarantine", max_bad=1)
    assert not (tmp_path / "bad_rows.jsonl").exists()


def test_what_was_prepared_before_is_prepared_again_if_a_shard_is_gone(tmp_path):
    prepare(tmp_path, raw_of(range(20)))
    whole = content(tmp_path)
    next(tmp_path.glob("train-00001-*")).unlink()
    assert prepare(tmp_path, raw_of(range(20))).prepared == 20
    assert content(tmp_path) == whole


def test_fewer_bad_rows_allowed_are_looked_at_again(tmp_path):
    prepare(tmp_path, raw_of([0, -1, -1, 3]), shards=1, policy="skip", max_bad=2)
    with pytest.raises(DataError, match="2 of 4 rows are bad"):
        prepare(tmp_path, raw_of([0, -1, -1, 3]), shards=1, policy="skip", max_bad=1)


def test_nobody_reads_while_somebody_writes(tmp_path):
    read = []

    class Meanwhile(ETLSpec):
        def row_prep(self, row, mode, object_dir):
            with pytest.raises(DataError, match="only one process may write"):
                run_etl(
                    lambda: read.append(1),
                    None,
                    EtlSettings(shards=1),
                    store=DirectoryStore(tmp_path),
                    backend=InlineBackend(),
                    workers=1,
                )
            return [1.0], 0

    prepare(tmp_path, raw_of([0, 1]), Meanwhile(), shards=1)
    assert read == []


def test_a_row_that_ends_its_process_politely_is_only_a_bad_row(tmp_path):
    class Leaving(ETLSpec):
        def row_prep(self, row, mode, object_dir):
            if row.value == 2:
                raise SystemExit(3)
            return [1.0], 0

    report = prepare(tmp_path, raw_of(range(4)), Leaving(), shards=1, policy="skip", max_bad=1)
    assert report.reasons == {"cannot be prepared: SystemExit: 3": 1}


def test_workers_that_start_while_rows_are_read_end_if_these_cannot_be_read(tmp_path):
    def read():
        raise DataError("there are no rows")

    with pytest.raises(DataError, match="there are no rows"):
        run_etl(
            read,
            Doubled(),
            EtlSettings(shards=2),
            store=DirectoryStore(tmp_path),
            backend=LocalBackend(),
            workers=2,
        )
    assert not started_by_tests()
