"""R1, R2: people meddle with a search at random, and it is killed at random, again and again."""

from __future__ import annotations

import json
import logging
import random
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cerebro.backend import InlineBackend
from cerebro.backend.base import Event
from cerebro.run.history import RunHistory
from cerebro.run.recovery import load_history
from cerebro.run.spec import Checkpointing, RunSpec
from cerebro.search.domain import LogUniform
from cerebro.storage import DirectoryStore
from cerebro.storage.journal import read
from cerebro.testing.faults import KillAfter, KillBefore, Tear
from cerebro.testing.history import check
from cerebro.types import TrialStatus
from tests.experiments import fit_toy, learnt, make_toy_data, toy_spec
from tests.kills import run_until_killed
from tests.reference import Reference

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

#: Random runs in one session; others with another --seed.
CASES = 60
#: A run has seldom more operations on its disk than that.
OPERATIONS = 400
#: After so many visits a run has ended.
LATE = 10**6

Record = dict[str, Any]

STOPPERS: list[Record] = [
    {},
    {},
    {"name": "asha", "eta": 2},
    {"name": "asha", "eta": 2, "kind": "stop"},
    {"name": "halving", "eta": 2},
    {"name": "hyperband", "eta": 2},
    {"name": "median", "grace": 1, "min_trials": 2},
    {"name": "patience", "patience": 1},
    {"name": "pbt", "interval": 1},
]
FAULTS: list[Record] = [
    {"kind": "nan_loss", "epoch": 1},
    {"kind": "raise", "epoch": 1, "step": 1},
    {"kind": "raise", "epoch": 0, "step": 1, "attempts": 1},
    {"kind": "nan_metric", "epoch": 0},
]


class Case(NamedTuple):
    """A run, what people ask of it once so many visits are durable, and how it is killed."""

    space: Mapping[str, Any]
    changes: Record
    settings: Record
    commands: list[tuple[int, Record]]
    kills: list[list[Any]]

    @property
    def is_timeless(self) -> bool:
        """Whether all is asked before a driver begins, so that kills must not change anything."""
        is_early = all(after in (0, LATE) for after, _ in self.commands)
        # A visit may be under way when a trial is told to wait or to end, or not yet.
        is_early &= not any(each["command"] in ("pause", "stop") for _, each in self.commands)
        # What is done next depends on visits that are not saved, too, where not all are.
        is_saved = self.changes["checkpoint"] is Checkpointing.VISIT
        return is_early and is_saved and self.settings["workers"] == 1


def draw_case(rng: random.Random) -> Case:
    trials, epochs = rng.randint(2, 5), rng.randint(2, 4)
    space: Record = {"lr": LogUniform(1e-3, 1.0)}
    if rng.random() < 0.3:
        space["fail"] = [None, rng.choice(FAULTS)]
    stopper = rng.choice(STOPPERS)
    changes: Record = {
        "search": "random",
        "num_trials": trials,
        "epochs": epochs,
        "stack": rng.choice([False, False, 2, 3, 100]),
        "stopper": stopper,
        "concurrent": rng.choice([None, None, 2, 3]),
        "seed": rng.randrange(1000),
        "checkpoint": rng.choice([Checkpointing.VISIT] * 3 + [Checkpointing.EPOCH]),
    }
    if rng.random() < 0.4:
        kind = rng.choice(["epochs", "visits", "trials"])
        most = {"epochs": trials * epochs, "visits": 2 * trials * epochs, "trials": trials}
        changes["budget"] = {kind: rng.randint(2, most[kind])}
    if not stopper and rng.random() < 0.2:
        changes["seeds"] = 2
    if rng.random() < 0.1:
        changes |= {"search": "tpe", "search_options": {"startup_trials": 2}}
    settings: Record = {"workers": rng.choice([1, 1, 2])}
    if rng.random() < 0.2:
        settings["keep_top"] = rng.randint(1, trials)
    visits = 2 * trials * epochs
    is_timeless = rng.random() < 0.3
    commands = [
        (
            rng.choice([0, LATE] if is_timeless else [0, LATE, rng.randint(0, visits)]),
            draw_command(rng, space, trials),
        )
        for _ in range(rng.randint(0, 8))
    ]
    return Case(space, changes, settings, sorted(commands, key=lambda c: c[0]), draw_kills(rng))


def draw_kills(rng: random.Random) -> list[list[Any]]:
    """For the run, and for what is asked of it after its end."""
    kinds = [KillBefore, KillAfter, Tear]
    numbers = [rng.choice([0, 1, 2, 4]), rng.choice([0, 0, 1, 2])]
    return [[rng.choice(kinds)(rng.randint(1, OPERATIONS)) for _ in range(n)] for n in numbers]


def draw_command(rng: random.Random, space: Mapping[str, Any], trials: int) -> Record:
    trial = rng.randrange(trials + 3)
    lr = rng.choice([0.3, 0.03, 1e-4])
    verb = rng.choice(["stop", "pause", "pause", "unpause", "unpause", "clone", "extend", "add"])
    if rng.random() < 0.05:
        return {"command": "nonsense", "trial": trial}
    if verb == "clone":
        params = rng.choice([{}, {"lr": lr}, {"lr": lr}, {"nonsense": 1}, {"batch_size": 0}])
        return {"command": verb, "trial": trial, "params": params, "is_warm": rng.random() < 0.6}
    if verb == "extend":
        chosen = trial if rng.random() < 0.8 else None
        return {"command": verb, "trial": chosen, "epochs": rng.randint(1, 6)}
    if verb == "add":
        params = {"lr": lr, **({"fail": None} if "fail" in space else {})}
        return {"command": verb, "params": rng.choice([params, params, {}])}
    if verb == "stop" and rng.random() < 0.2:
        return {"command": verb}
    return {"command": verb, "trial": trial}


class Meddling(InlineBackend):
    """People send each command once so many visits are durable, whoever drives the run then."""

    def __init__(self, root: Path, commands: list[tuple[int, Record]]) -> None:
        super().__init__()
        self._root = root
        self._commands = commands

    def events(self) -> list[Event]:
        send(self._root, self._commands)
        return super().events()


def send(root: Path, commands: list[tuple[int, Record]], *, is_all: bool = False) -> None:
    journal, told = root / "journal.jsonl", root.with_suffix(".sent")
    visits = journal.read_bytes().count(b'"type":"visit"') if journal.exists() else 0
    sent = len(told.read_text()) if told.exists() else 0
    for number, (after, command) in list(enumerate(commands))[sent:]:
        if after > visits and not is_all:
            return
        inbox = root / "inbox"
        inbox.mkdir(parents=True, exist_ok=True)
        (inbox / f"{command_id(number)}.json").write_text(json.dumps(command))
        told.write_text("x" * (number + 1))


def command_id(number: int) -> str:
    return f"20260801T120000.{number:09d}Z-{number:016x}"


@contextmanager
def no_second_thoughts() -> Iterator[None]:
    """A search that hears the journal again must decide as it did before."""
    told: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    logger, listener = logging.getLogger("cerebro.run"), Listener(logging.WARNING)
    logger.addHandler(listener)
    try:
        yield
    finally:
        logger.removeHandler(listener)
    assert not [text for text in told if "would not decide" in text], told


def play(root: Path, spec: RunSpec, case: Case) -> None:
    """The run to its end, then what was not asked before; all of it killed again and again."""
    whole = root.with_name("whole")
    for is_late, kills in enumerate(case.kills):
        for each in (root, whole):
            send(each, case.commands, is_all=bool(is_late))
        for rule in kills:
            backend = Meddling(root, case.commands)
            with no_second_thoughts():
                run_until_killed(root, spec, rule, backend=backend, **case.settings)
            check(root, is_settled=False)
        with no_second_thoughts():
            fit_toy(root, spec, backend=Meddling(root, case.commands), **case.settings)
        check(root)
        records = [dict(record) for record in read(DirectoryStore(root)).records]
        history = load_history(DirectoryStore(root))[1]
        Judge(root, spec, case, records, history).judge(is_late=bool(is_late))
        if case.is_timeless and any(case.kills):
            fit_toy(whole, spec, **case.settings)
            assert learnt(root) == learnt(whole)


class Judge:
    """What must hold of a run that has come to its end."""

    def __init__(
        self, root: Path, spec: RunSpec, case: Case, records: list[Record], history: RunHistory
    ) -> None:
        self._root = root
        self._spec = spec
        self._case = case
        self._records = records
        self._history = history
        self._trials = history.trials
        decided = [each for each in records if each["type"] == "decision"]
        self._is_halted = any(each["what"] == "halt" for each in decided)

    def judge(self, *, is_late: bool) -> None:
        self._judge_commands(is_late)
        self._judge_trials()
        self._judge_proposals()
        self._judge_budget()
        self._judge_learning()

    def _judge_commands(self, is_late: bool) -> None:
        told = self._root.with_suffix(".sent")
        sent = len(told.read_text()) if told.exists() else 0
        taken = {each["id"]: each for each in self._records if each["type"] == "command"}
        left = sorted(path.stem for path in (self._root / "inbox").glob("*.json"))
        # What comes when a run is about to end is for the next driver.
        assert [*sorted(taken), *left] == [command_id(number) for number in range(sent)]
        assert not left or not is_late
        accepted = [each["id"] for each in taken.values() if each["refused"] is None]
        effects = [
            (place, each)
            for place, each in enumerate(self._records)
            if each["type"] != "command" and each.get("command")
        ]
        assert sorted(each["command"] for _, each in effects) == sorted(accepted)
        for place, effect in effects:
            self._judge_effect(taken[effect["command"]], effect, place)

    def _judge_effect(self, command: Record, effect: Record, place: int) -> None:
        verb, number = command["command"], command["trial"]
        if effect["type"] == "trial":
            assert verb in ("clone", "add")
            source = self._trials[number].params if verb == "clone" else {}
            assert effect["params"] == {**source, **command["params"]}
            is_copy = verb == "clone" and command["is_warm"]
            assert effect.get("parent") == (number if is_copy else None)
            return
        if effect.get("trials") == []:
            return  # it came too late
        assert effect["what"] == {
            "stop": "stop" if number is not None else "halt",
            "pause": "pause",
            "unpause": "promote",
            "extend": "promote",
        }.get(verb)
        for each in effect.get("trials", []):
            if not self._is_meddled_with(each, place):
                self._judge_last_word(verb, each, effect)

    def _is_meddled_with(self, trial: int, after: int) -> bool:
        """Whether something else was decided about a trial later, or all was ended."""
        later = self._records[after + 1 :]
        return any(
            each["type"] == "decision" and trial in each.get("trials", [trial]) for each in later
        ) or any(each.get("replaces") == trial for each in later)

    def _judge_last_word(self, verb: str, number: int, effect: Record) -> None:
        trial = self._trials[number]
        if verb == "stop":
            assert trial.status.is_final, f"{number} was stopped, but is {trial.status}"
        elif verb == "pause":
            assert trial.status.is_final or trial.is_held, f"{number} was paused"
        elif verb == "unpause":
            assert trial.status.is_final or not trial.is_held, f"{number} was let go"
        elif verb == "extend" and not trial.status.is_failure:
            assert len(trial.epochs) == effect["epochs"], f"{number} was extended"
            assert trial.status is TrialStatus.FINISHED or effect["epochs"] < self._spec.epochs

    def _judge_trials(self) -> None:
        for trial in self._trials.values():
            is_held = trial.is_held and trial.held_by != "search"
            assert trial.status.is_final or is_held, f"{trial.number} was left {trial.status}"
            most = max(self._spec.epochs, trial.target or 0)
            assert len(trial.epochs) <= most
            if trial.status is TrialStatus.FINISHED:
                assert len(trial.epochs) == (trial.target or self._spec.epochs)
        is_over = all(trial.status.is_final for trial in self._trials.values())
        assert self._history.is_finished == is_over

    def _judge_proposals(self) -> None:
        found = [(t.proposal, t.repeat) for t in self._trials.values() if t.proposal is not None]
        assert len(set(found)) == len(found), "a proposal was made twice"
        wanted = (self._spec.num_trials or 0) * self._spec.seeds
        most = int(self._spec.budget.get("trials", wanted))
        wanted = min(wanted, most - most % self._spec.seeds)
        assert len(found) <= wanted
        assert self._is_halted or len(found) == wanted, "a proposal was lost"

    def _judge_budget(self) -> None:
        asked = {each["command"] for each in self._records if each["type"] == "command"}
        # People may exceed a budget by their own word, and add to a run that was ended.
        if self._spec.max_epochs is None or asked & {"extend", "add", "clone", "unpause"}:
            return
        steps = self._spec.train_shards
        begun = sum(-(-t.visits // steps) - t.parent_visits // steps for t in self._trials.values())
        assert begun <= self._spec.max_epochs

    def _judge_learning(self) -> None:
        reference = Reference(self._spec, self._records)
        for trial in self._trials.values():
            for number, epoch in enumerate(trial.epochs):
                expected = reference.val_loss(trial.number, number)
                assert epoch.metrics["val_loss"] == pytest.approx(expected, rel=1e-6), trial.number


def test_people_and_kills_at_random(folder, seed):
    make_toy_data(folder / "data")
    for number in range(CASES):
        run_case(folder, f"{seed}-{number}")


def run_case(folder: Path, name: str) -> None:
    case = draw_case(random.Random(name))
    root = folder / "run"
    spec = toy_spec(folder / "data", case.space, **case.changes)
    try:
        play(root, spec, case)
    except Exception as error:
        raise AssertionError(f"case {name}: {case}") from error
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()
        elif path.name != "data":
            shutil.rmtree(path)
