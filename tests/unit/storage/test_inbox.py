from __future__ import annotations

import json
import os
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.errors import UsageError
from cerebro.storage import DirectoryStore
from cerebro.storage import inbox as inboxes
from cerebro.storage.inbox import MAX_BYTES, MAX_FILES, Command, Refusal, Verb, pending, remove
from cerebro.storage.inbox import send as send_command

STOP = Command(command=Verb.STOP)


@pytest.fixture
def store(tmp_path):
    return DirectoryStore(tmp_path / "run")


@pytest.fixture
def inbox(store):
    path = Path(store.root) / "inbox"
    path.mkdir(parents=True)
    return path


def drop(path: Path, data: bytes | str, *, is_settled: bool = True) -> None:
    """Write a file as a person would; one that is settled was left alone for a while."""
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    if is_settled:
        os.utime(path, (1, 1))


def only(store):
    ((_, found),) = pending(store)
    return found


# Commands


@pytest.mark.parametrize(
    "fields",
    [
        {"command": Verb.STOP},
        {"command": Verb.STOP, "trial": 0},
        {"command": Verb.PAUSE, "trial": 3},
        {"command": Verb.UNPAUSE, "trial": 3},
        {"command": Verb.CLONE, "trial": 3},
        {"command": Verb.CLONE, "trial": 3, "params": {"lr": 0.1}, "is_warm": False},
        {"command": Verb.EXTEND, "epochs": 20},
        {"command": Verb.EXTEND, "trial": 3, "epochs": 20},
        {"command": Verb.ADD, "params": {"lr": 0.1, "layers": [64, {"width": None}]}},
        {"command": Verb.ADD},
    ],
    ids=str,
)
def test_what_is_sent_is_what_waits(store, fields):
    command = Command(**fields)
    assert send_command(store, command) == command.id
    assert pending(store) == [(f"{command.id}.json", command)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"command": "stop"}, "`command` of a command must be a verb, but is 'stop'"),
        ({"command": Verb.PAUSE}, "the command pause needs a trial"),
        ({"command": Verb.CLONE}, "the command clone needs a trial"),
        ({"command": Verb.ADD, "trial": 1}, "the command add takes no trial, but got 1"),
        ({"command": Verb.STOP, "params": {"lr": 1}}, "stop takes no params, but got 'lr'"),
        ({"command": Verb.EXTEND}, "the command extend needs epochs"),
        ({"command": Verb.STOP, "epochs": 3}, "stop takes no epochs, but got 3"),
        ({"command": Verb.EXTEND, "epochs": 0}, "`epochs` of a command must be a number from 1"),
        ({"command": Verb.STOP, "trial": -1}, "`trial` of a command must be a number from 0"),
        ({"command": Verb.STOP, "trial": True}, "`trial` of a command must be a number from 0"),
        ({"command": Verb.STOP, "trial": "t0003"}, "`trial` of a command must be a number"),
        ({"command": Verb.ADD, "params": [1]}, "`params` of a command must be an object"),
        ({"command": Verb.ADD, "params": {1: 2}}, "`params` of a command must be an object"),
        ({"command": Verb.STOP, "is_warm": 1}, "`is_warm` of a command must be true or false"),
        ({"command": Verb.STOP, "by": None}, "`by` of a command must be text"),
    ],
)
def test_what_can_mean_nothing_is_refused(fields, message):
    with pytest.raises(UsageError, match=message):
        Command(**fields)


def test_a_command_says_who_sent_it(store):
    send_command(store, STOP)
    assert only(store).by.endswith(f":{os.getpid()}")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object()])
def test_values_that_json_cannot_hold_are_not_sent(store, value):
    with pytest.raises(UsageError, match="params must be finite JSON"):
        send_command(store, Command(command=Verb.ADD, params={"lr": value}))
    assert store.list() == []


def test_a_command_that_is_too_long_is_not_sent(store):
    with pytest.raises(UsageError, match=f"at most {MAX_BYTES} bytes"):
        send_command(store, Command(command=Verb.ADD, params={"text": "x" * MAX_BYTES}))
    assert store.list() == []


# Order and number


def test_commands_wait_in_the_order_in_which_they_were_sent(store):
    ids = [send_command(store, Command(command=Verb.STOP, trial=n)) for n in range(20)]
    assert [found.id for _, found in pending(store)] == ids
    assert [found.trial for _, found in pending(store)] == list(range(20))


def test_people_who_send_at_once_do_not_disturb_each_other(store):
    def send_many():
        own = DirectoryStore(store.root)
        for n in range(25):
            send_command(own, Command(command=Verb.STOP, trial=n))

    threads = [threading.Thread(target=send_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [command.trial for _, command in pending(store)]
    assert sorted(found) == sorted(list(range(25)) * 4)


def test_a_full_inbox_takes_no_more_and_is_read_in_parts(store, inbox):
    for n in range(MAX_FILES + 1):
        drop(inbox / f"{n:06d}.json", '{"command": "stop"}', is_settled=False)
    with pytest.raises(UsageError, match=f"at most {MAX_FILES} commands may wait"):
        send_command(store, STOP)
    first = pending(store)
    assert len(first) == MAX_FILES
    for name, _ in first:
        remove(store, name)
    assert [name for name, _ in pending(store)] == [f"{MAX_FILES:06d}.json"]


def test_there_is_nothing_to_do_without_an_inbox(store):
    assert pending(store) == []


def test_what_was_removed_is_gone(store):
    send_command(store, STOP)
    remove(store, f"{STOP.id}.json")
    remove(store, f"{STOP.id}.json")
    assert pending(store) == []


def test_what_cannot_be_removed_stays_and_keeps_its_id(store, inbox):
    (inbox / "x.json").mkdir()
    remove(store, "x.json")
    drop(inbox / "y.json", '{"command": "stop"}')
    assert only(store).id == only(store).id


# Files by hand


def test_a_person_may_leave_out_all_but_the_verb(store, inbox):
    drop(inbox / "stop.json", '{"command": "stop"}')
    found = only(store)
    expected = Command(command=Verb.STOP, by="unknown", time=found.time, id=found.id)
    assert asdict(found) == asdict(expected)


def test_the_same_file_put_there_again_is_another_command(store, inbox):
    ids = []
    for n in range(2):
        drop(inbox / f"new-{n}", '{"command": "add"}')
        (inbox / f"new-{n}").rename(inbox / "add.json")
        ids.append(only(store).id)
        remove(store, "add.json")
    assert ids[0] != ids[1]


def test_a_copy_of_a_command_is_refused(store, inbox):
    send_command(store, STOP)
    (inbox / f"{STOP.id}.json").rename(inbox / "again.json")
    assert "must be the name of its file, again, but is" in only(store).reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must be JSON"),
        ("{", "must be JSON"),
        (b"\xff\xfe\x00", "must be JSON"),
        ("[" * 60_000, "must be JSON"),
        ("[]", "must be a JSON object, but got []"),
        ("{}", "must be one of stop, pause, unpause, clone, extend, add, but got None"),
        ('{"command": "stpo"}', "must be one of stop, pause"),
        ('{"command": ["stop"]}', "must be one of stop, pause"),
        ('{"command": "stop", "trail": 3}', "but got 'trail': leave it out"),
        ('{"command": "stop", "trial": 1, "trial": 2}', "a name occurs twice"),
        ('{"command": "stop", "trial": 1.0}', "`trial` of a command must be"),
        ('{"command": "add", "params": {"lr": NaN}}', "must be finite, but got NaN"),
        ('{"command": "stop", "format": 2}', "must have format 1, but has 2"),
        ('{"command": "stop", "id": "x"}', "must be the name of its file, bad, but is 'x'"),
        ('{"command": "pause"}', "the command pause needs a trial"),
        (" " * (MAX_BYTES + 1), f"at most {MAX_BYTES} bytes, but bad.json has more"),
    ],
    ids=range(16),
)
def test_what_is_no_command_is_refused_and_the_others_are_read(store, inbox, text, reason):
    drop(inbox / "bad.json", text)
    drop(inbox / "good.json", '{"command": "stop", "trial": 7}')
    (_, refused), (_, good) = pending(store)
    assert isinstance(refused, Refusal)
    assert reason in refused.reason
    assert refused.id.startswith("bad-")
    assert good.trial == 7


@pytest.mark.parametrize("text", ["", '{"command": "sto'])
def test_what_is_being_written_by_hand_is_left_for_later(store, inbox, monkeypatch, text):
    # However long it takes until it is looked at.
    monkeypatch.setattr(inboxes, "_SETTLED_S", 3600.0)
    drop(inbox / "stop.json", text, is_settled=False)
    assert pending(store) == []
    drop(inbox / "stop.json", '{"command": "stop"}', is_settled=False)
    assert only(store).command is Verb.STOP


def test_links_folders_pipes_and_odd_names_are_not_looked_at(store, inbox, tmp_path):
    text = '{"command": "stop"}'
    drop(tmp_path / "outside.json", text)
    (inbox / "link.json").symlink_to(tmp_path / "outside.json")
    drop(inbox / "inside.txt", text)
    (inbox / "inner.json").symlink_to("inside.txt")
    (inbox / "folder.json").mkdir()
    os.mkfifo(inbox / "pipe.json")
    for name in ("-x.json", "a b.json", "é.json", "a\nb.json", ".tmp-1-0-x.json", "x.json~", "x"):
        drop(inbox / name, text)
    drop(inbox / f"{'x' * 96}.json", text)
    assert pending(store) == []


@pytest.mark.parametrize("kind", ["file", "link"])
def test_an_inbox_that_is_none_holds_nothing(store, tmp_path, kind):
    os.mkdir(store.root)
    if kind == "file":
        drop(Path(store.root) / "inbox", "")
    else:
        drop(tmp_path / "stop.json", '{"command": "stop"}')
        os.symlink(tmp_path, f"{store.root}/inbox")
    assert pending(store) == []


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
keys = st.sampled_from([*json.loads(json.dumps(STOP.to_json())), "other"])
contents = st.binary(max_size=200) | st.dictionaries(
    keys, values | st.sampled_from(list(Verb))
).map(lambda value: json.dumps(value).encode())


@given(data=contents)
def test_whatever_a_file_holds_is_a_command_or_refused(data):
    with tempfile.TemporaryDirectory() as folder:
        inbox = Path(folder, "inbox")
        inbox.mkdir()
        drop(inbox / "x.json", data)
        found = only(DirectoryStore(folder))
    assert isinstance(found, Command | Refusal)
