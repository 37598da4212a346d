"""`cerebro stop`, `pause`, `unpause`, `clone`, `extend` and `add`."""

from __future__ import annotations

from collections.abc import Sequence

from cerebro.cli.directory import is_starting, open_directory
from cerebro.config.yaml import parse_yaml
from cerebro.errors import UsageError
from cerebro.search.wording import show
from cerebro.steering import Answer, AnswerState, Steering
from cerebro.track.text import clean, show_count
from cerebro.types import Json, trial_id


def stop(run: str, trial: str | None, *, wait_s: float) -> None:
    """End a trial, or the run."""
    answer = _steer(run).stop(trial, wait_s=wait_s)
    _tell(answer, f"stopped {'the run' if trial is None else _name(trial)}")


def pause(run: str, trial: str, *, wait_s: float) -> None:
    """Let a trial wait."""
    _tell(_steer(run).pause(trial, wait_s=wait_s), f"paused {_name(trial)}")


def unpause(run: str, trial: str, *, wait_s: float) -> None:
    """Let a trial go on."""
    _tell(_steer(run).unpause(trial, wait_s=wait_s), f"unpaused {_name(trial)}")


def clone(
    run: str, trial: str, assignments: Sequence[str], *, is_warm: bool, wait_s: float
) -> None:
    """Start a trial that is another with other params."""
    params = parse_assignments(assignments)
    answer = _steer(run).clone(trial, params, warm=is_warm, wait_s=wait_s)
    _tell(answer, f"cloned {_name(trial)}{_new(answer, ' as ')}")


def extend(run: str, words: Sequence[str], *, wait_s: float) -> None:
    """Train a trial longer, or all that are finished."""
    trials = [word for word in words if "=" not in word]
    given = parse_assignments([word for word in words if "=" in word])
    epochs = given.pop("epochs", None)
    if len(trials) > 1 or given or type(epochs) is not int:
        raise UsageError(
            "extend is written `cerebro extend RUN [TRIAL] epochs=N`, but got "
            f"{show(' '.join(words))}."
        )
    trial = trials[0] if trials else None
    answer = _steer(run).extend(trial, epochs=epochs, wait_s=wait_s)
    whom = "all finished trials" if trial is None else _name(trial)
    _tell(answer, f"extended {whom} to {show_count(epochs, 'epoch')}")


def add(run: str, assignments: Sequence[str], *, wait_s: float) -> None:
    """Start a new trial."""
    answer = _steer(run).add(parse_assignments(assignments), wait_s=wait_s)
    _tell(answer, f"added{_new(answer, ' ') or ' a trial'}")


def parse_assignments(texts: Sequence[str]) -> dict[str, Json]:
    """Params as they are written on the command line; values are read by the strict YAML reader.

    >>> parse_assignments(["lr=1e-3", "layers=[64, 32]"])
    {'lr': 0.001, 'layers': [64, 32]}
    """
    found: dict[str, Json] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(f"a param is written name=value, but got {show(text)}.")
        if name in found:
            raise UsageError(f"a param must be given once, but {show(name)} is given twice.")
        data = value.encode("utf-8", "surrogateescape")
        found[name] = parse_yaml(data, f"param {show(text)}", numbered=False).tree
    return found


def _steer(run: str) -> Steering:
    if is_starting(open_directory(run)):
        raise UsageError(f"{run} is starting its workers: wait until its first trials are there.")
    return Steering(run)


def _tell(answer: Answer, done: str) -> None:
    """One line; a refusal is an error."""
    if answer.state is AnswerState.REFUSED:
        raise UsageError(f"the run refused it: {clean(answer.reason or 'it did not say why', 400)}")
    print(done if answer.state is AnswerState.APPLIED else answer.reason)


def _name(trial: str) -> str:
    return trial_id(int(trial)) if trial.isascii() and trial.isdecimal() else trial


def _new(answer: Answer, before: str) -> str:
    return "" if answer.trial is None else f"{before}{trial_id(answer.trial)}"
