from __future__ import annotations

import errno
import inspect
import pickle
import re

import pytest

from cerebro import errors
from cerebro.errors import CerebroError

ALL = [
    found
    for _, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, CerebroError)
]
EXIT_CODES = {
    "CerebroError": 1,
    "UsageError": 2,
    "ConfigError": 2,
    "MissingDependencyError": 2,
    "UnknownParamError": 2,
    "RunLockedError": 2,
    "ResumeMismatchError": 2,
    "DataError": 2,
    "ShardCorruptError": 1,
    "StateLostError": 1,
    "StoreError": 1,
    "DiskFullError": 75,
    "CheckpointCorruptError": 1,
    "JournalCorruptError": 1,
    "RunCorruptError": 1,
    "LeaseLostError": 2,
    "TrialError": 1,
    "WorkerError": 1,
    "ReplicaError": 1,
    "RunInterrupted": 130,
}


def test_exit_codes_are_those_that_scripts_rely_on():
    assert {error.__name__: error.exit_code for error in ALL} == EXIT_CODES


@pytest.mark.parametrize("error", ALL)
def test_an_error_says_its_message_and_nothing_else(error):
    text = "a 'quoted' sentence, with\ttabs."
    assert str(error(text)) == text


@pytest.mark.parametrize("error", ALL)
def test_an_error_survives_the_way_from_a_worker(error):
    found = pickle.loads(pickle.dumps(error("what happened")))
    assert type(found) is error
    assert str(found) == "what happened"


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.UsageError, ValueError),
        (errors.ConfigError, ValueError),
        (errors.MissingDependencyError, ImportError),
        (errors.UnknownParamError, KeyError),
        (errors.StoreError, OSError),
        (errors.DiskFullError, OSError),
    ],
)
def test_an_error_is_also_what_a_python_programmer_would_catch(error, builtin):
    with pytest.raises(builtin):
        raise error("no")


def test_the_tree_in_the_docstring_is_the_tree():
    lines = [line for line in (errors.__doc__ or "").splitlines() if re.search(r"[├└]── ", line)]
    drawn, path = {}, ["CerebroError"]
    for line in lines:
        before, _, rest = line.partition("── ")
        depth = (len(before) - 5) // 4 + 1
        name = re.match(r"\w+", rest)
        assert name is not None
        path[depth:] = [name[0]]
        drawn[name[0]] = path[depth - 1]
    parents = {error.__name__: error.__mro__[1].__name__ for error in ALL}
    assert drawn == {name: parent for name, parent in parents.items() if name != "CerebroError"}


def test_the_number_of_an_error_of_a_store_survives_the_way_to_another_process() -> None:
    error = errors.DiskFullError("full")
    error.errno = errno.EROFS
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found), found.errno) == (errors.DiskFullError, "full", errno.EROFS)
