"""The dictionary of locators, and what it asks for."""

from __future__ import annotations

import pickle
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from cerebro.data.sources.locators import KEYS, Locators, Plan
from cerebro.errors import UsageError
from cerebro.types import Split

EVERYTHING = {
    "train_main": ["a.csv", Path("b.csv")],
    "val_main": "s3://bucket/val.parquet",
    "test_main": pa.table({"id": [1]}),
    "predict_main": pd.DataFrame({"id": [1]}),
    "train_dir": Path("images"),
    "val_dir": "gs://bucket/images",
    "test_dir": "https://host/images",
    "predict_dir": "hdfs://host/images",
    "misc": ["words.txt", "s3://bucket/vocabulary.json"],
    "etl_dir": "s3://bucket/etl",
    "models_dir": "models",
    "output_dir": Path("/output"),
}

# main, dir, etl_dir, its splits, asked for -> what is done
TABLE = [
    (1, 0, 0, "", 0, Plan.PROCESS, ""),
    (1, 1, 0, "", 1, Plan.PROCESS, ""),
    (1, 0, 1, "", 1, Plan.PROCESS_AND_KEEP, ""),
    (1, 1, 1, "test", 0, Plan.PROCESS_AND_KEEP, ""),
    (0, 0, 1, "test", 0, Plan.REUSE, ""),
    (0, 1, 1, "train test", 1, Plan.REUSE, ""),
    (0, 0, 1, "train", 0, Plan.ABSENT, ""),
    (0, 1, 1, "train", 0, Plan.ABSENT, ""),
    (0, 0, 0, "", 0, Plan.ABSENT, ""),
    (0, 0, 1, "train", 1, Plan.REFUSE, r"s3://\*\*\*@bucket/etl .*test shards.*test_main"),
    (0, 1, 1, "", 1, Plan.REFUSE, "must hold test shards"),
    (0, 0, 0, "", 1, Plan.REFUSE, "no test data.*test_main.*etl_dir"),
    (0, 1, 0, "", 0, Plan.REFUSE, "test_dir only holds.*no test_main"),
    (0, 1, 0, "", 1, Plan.REFUSE, "test_dir only holds.*no test_main"),
]


@pytest.mark.parametrize(("main", "folder", "etl", "kept", "asked", "plan", "reason"), TABLE)
def test_what_is_given_decides_what_is_done(main, folder, etl, kept, asked, plan, reason):
    params = {"train_main": "train.csv"}
    params |= {"test_main": "test.csv"} if main else {}
    params |= {"test_dir": "images"} if folder else {}
    params |= {"etl_dir": "s3://key:secret@bucket/etl"} if etl else {}
    decision = Locators.parse(params).decide("test", kept=kept.split(), asked=bool(asked))
    assert decision.plan is plan
    if plan is Plan.REFUSE:
        with pytest.raises(UsageError, match=reason):
            decision.check()
    else:
        assert decision.check() is decision


def test_a_missing_test_shard_keeps_nobody_from_training():
    locators = Locators.parse({"etl_dir": "etl"})
    asked = {split: split is Split.TRAIN for split in Split}
    plans = {s: locators.decide(s, kept=["train", "val"], asked=asked[s]).plan for s in Split}
    assert plans == {
        Split.TRAIN: Plan.REUSE,
        Split.VAL: Plan.REUSE,
        Split.TEST: Plan.ABSENT,
        Split.PREDICT: Plan.ABSENT,
    }


def test_every_documented_key_is_taken():
    assert set(EVERYTHING) == set(KEYS)
    locators = Locators.parse(EVERYTHING)
    assert locators.main[Split.TRAIN] == ("a.csv", "b.csv")
    assert locators.main[Split.TEST] is EVERYTHING["test_main"]
    assert locators.main[Split.PREDICT] is EVERYTHING["predict_main"]
    assert locators.object_dirs == {
        Split.TRAIN: "images",
        Split.VAL: "gs://bucket/images",
        Split.TEST: "https://host/images",
        Split.PREDICT: "hdfs://host/images",
    }
    assert locators.misc == ("words.txt", "s3://bucket/vocabulary.json")
    assert (locators.etl_dir, locators.models_dir) == ("s3://bucket/etl", "models")
    assert locators.output_dir == "/output"


def test_nothing_has_to_be_given_and_none_counts_as_nothing():
    assert Locators.parse({}) == Locators.parse(dict.fromkeys(KEYS)) == Locators()


def test_locators_can_be_sent_to_workers():
    locators = Locators.parse({"train_main": "a.csv", "misc": ["b"]})
    assert pickle.loads(pickle.dumps(locators)) == locators


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"train_mian": "a.csv"}, "unknown key 'train_mian'.*Did you mean 'train_main'"),
        ({7: "a.csv"}, "unknown key 7"),
        ({"train_main": 7}, "train_main must be a path or URL, a list.*DataFrame.*but got 7"),
        ({"train_main": ""}, "train_main must be"),
        ({"train_main": []}, "at least one file"),
        ({"train_main": ["a.csv", None]}, r"train_main\[1\] must be a path"),
        ({"train_main": {"a": 1}}, "but got dict"),
        ({"train_dir": ["a"]}, "train_dir must be a path or URL, but got list"),
        ({"misc": "words.txt"}, "misc must be a list of paths.*'words.txt'"),
        ({"misc": [b"x"]}, r"misc\[0\] must be"),
        ({"etl_dir": True}, "etl_dir must be a path or URL, but got True"),
        ({"etl_dir": "file://host"}, "file:///absolute/path"),
        (["train_main"], "params must be a dictionary"),
        (None, "params must be a dictionary"),
    ],
)
def test_a_wrong_key_or_value_is_refused(params, message):
    with pytest.raises(UsageError, match=message):
        Locators.parse(params)
