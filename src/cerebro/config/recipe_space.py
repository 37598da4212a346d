"""The params of a recipe's trials: every key that decides what is trained, by its dotted name.

What the file gives is a constant, what `search.space` varies is a domain. Some have names of their
own, by which the rest of Cerebro knows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from cerebro.config.problems import wrong_value
from cerebro.config.recipe_data import default_augment, training_params
from cerebro.config.recipe_keys import check_option
from cerebro.config.recipe_schema import (
    Loss,
    ModelSection,
    OptimizerSection,
    Recipe,
    Section,
    TrainingSection,
)
from cerebro.config.yaml import KeyPath
from cerebro.errors import UsageError
from cerebro.search.domain import (
    Choice,
    Constant,
    Domain,
    LogUniform,
    QUniform,
    RandInt,
    Uniform,
)
from cerebro.search.space import check_parameter_name, parse_domain
from cerebro.search.wording import show, unknown
from cerebro.types import Json
from cerebro.zoo import MODELS
from cerebro.zoo.inputs import check_options
from cerebro.zoo.optimizers import optimizer_options
from cerebro.zoo.preprocess import check_augment, check_preprocess
from cerebro.zoo.rates import Scaling, make_rule

#: Dotted name in the file -> name of the param, where they differ.
RENAMED: Mapping[str, str] = {
    "training.amp": "amp",
    "training.batch_size": "batch_size",
    "training.clip_grad_norm": "clip_grad_norm",
    "training.global_batch_size": "global_batch_size",
}
_SECTIONS: Mapping[str, type[Section]] = {
    "model": ModelSection,
    "optimizer": OptimizerSection,
    "training": TrainingSection,
}
#: Keys of `data` that are for the trainer, not for who prepares the data.
_DATA = ("augment", "preprocess")
#: The same for all trials of a run: their metrics are compared, epoch by epoch.
_SHARED = ("training.n_epochs", "training.metrics")
_LOSSES = Loss.__args__  # type: ignore[attr-defined]


class Objection(NamedTuple):
    """What is wrong, and where in the file."""

    path: KeyPath
    message: str


class Space(NamedTuple):
    """The domains of a recipe, those that vary first: tables show the first params."""

    domains: dict[str, Domain]
    objections: list[Objection]


def make_space(recipe: Recipe) -> Space:
    """What the trials of a recipe are made of."""
    fixed = {**_fixed(recipe), **training_params(recipe.data)}
    varied: dict[str, Domain] = {}
    found: list[Objection] = []
    for name, value in recipe.search.space.items():
        try:
            _check_name(name)
            domain = parse_domain(value)
            if name == "data.augment":
                domain = _with_default(domain, default_augment(recipe.data.name))
            varied[RENAMED.get(name, name)] = domain
        except UsageError as error:
            found.append(Objection(("search", "space", name), f"parameter {name!r}: {error}"))
    rest: dict[str, Domain] = {}
    for name, value in fixed.items():
        try:
            rest |= {} if name in varied else {name: Constant(value)}
        except UsageError as error:
            found.append(_located(name, f"parameter {_dotted(name)!r}: {error}", set()))
    domains = {**varied, **rest}
    return Space(domains, found or _wrong_values(domains, set(recipe.search.space)))


def _with_default(domain: Domain, default: Json) -> Domain:
    """What belongs to the data set in the place of `true`."""
    if isinstance(domain, Choice):
        return Choice([default if value is True else value for value in domain.values])
    if isinstance(domain, Constant) and domain.value is True:
        return Constant(default)
    return domain


def _fixed(recipe: Recipe) -> dict[str, Json]:
    """In the order in which tables show them."""
    sections: Mapping[str, Section] = {
        "optimizer": recipe.optimizer,
        "model": recipe.model,
        "training": recipe.training,
    }
    names = {
        f"{section}.{key}": value
        for section, part in sections.items()
        for key, value in part.model_dump(exclude_none=True).items()
    }
    return {RENAMED.get(name, name): value for name, value in names.items()}


def _check_name(name: str) -> None:
    check_parameter_name(name)
    section, _, key = name.partition(".")
    known = {
        "data": _DATA,
        "training": [k for k in TrainingSection.model_fields if f"training.{k}" not in _SHARED],
    }
    if section not in ("data", "model", "optimizer", "training") or not key:
        raise UsageError(
            "what varies is a key of data, model, optimizer or training, such as optimizer.lr."
        )
    if name in _SHARED:
        raise UsageError("it is the same for all trials of a run.")
    if section in known and key not in known[section]:
        raise UsageError(unknown(f"key of {section}", key, known[section]))


def _wrong_values(domains: Mapping[str, Domain], written: set[str]) -> list[Objection]:
    """Try every listed value, and both ends of ranges, beside the first values of the others."""
    first = {name: next(iter(_tried(domain)), None) for name, domain in domains.items()}
    before = list(_check(first))
    found = [_located(name, error, written) for name, error in before]
    for name, domain in domains.items():
        if isinstance(domain, Constant):
            continue
        for value in _tried(domain):
            for own, error in _check({**first, name: value}):
                if (own, error) not in before:
                    why = "" if own == name else f" That is so with {name}: {show(value)}."
                    found.append(_located(own, f"{error}{why}", written))
    return list(dict.fromkeys(found))


def _tried(domain: Domain) -> tuple[Json, ...]:
    if isinstance(domain, QUniform):
        return tuple(domain.multiple(k) for k in domain.multiples())
    if isinstance(domain, RandInt):
        return domain.low, domain.high
    if isinstance(domain, Uniform | LogUniform):
        return float(domain.low), float(domain.high)
    count = domain.num_listed()
    return () if count is None else tuple(domain.nth(index) for index in range(min(count, 1000)))


def _check(params: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with the params of a trial: which, and why. None: what has ranges in it."""
    told = set()
    for own, error in _check_names(params):
        told.add(own)
        yield own, error
    for own, error in _check_kinds(params):
        if own not in told:
            yield own, error


def _check_kinds(params: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the sections of a file would refuse."""
    for param, value in params.items():
        dotted = _dotted(param)
        section, _, key = dotted.partition(".")
        kind = _SECTIONS.get(section)
        if kind is None or key not in kind.model_fields:
            continue
        if value is None and kind.model_fields[key].default is None:
            continue
        try:
            kind.model_validate({key: value})
        except ValidationError as error:
            # The other keys of the section are missing here.
            for detail in error.errors():
                if detail["type"] != "missing":
                    yield param, wrong_value(detail, dotted)


def _check_names(params: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    name = params["model.name"]
    if isinstance(name, str) and name not in MODELS:
        yield "model.name", unknown("model", str(name), sorted(MODELS))
    elif isinstance(name, str):
        yield from _check_options("model", name, params, check_options)
    for own in ("batch_size", "global_batch_size"):
        if params.get(own, 1) is None:
            yield own, f"{_dotted(own)} must be an integer, but got nothing."
    if params["training.loss"] not in _LOSSES:
        yield "training.loss", unknown("loss", str(params["training.loss"]), _LOSSES)
    yield from _check_optimizer(params)
    yield from _check_rates(params)
    try:
        check_preprocess(params.get("data.preprocess", "unit"))
    except UsageError as error:
        yield "data.preprocess", str(error)
    augment = params.get("data.augment")
    if augment is not None and augment is not False:
        try:
            check_augment(augment)
        except UsageError as error:
            yield "data.augment", str(error)


def _check_optimizer(params: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    name = params["optimizer.name"]
    try:
        optimizer_options(name, {})
    except UsageError as error:
        yield "optimizer.name", str(error)
        return
    yield from _check_options("optimizer", name, params, optimizer_options)


def _check_options(
    section: str, name: str, params: Mapping[str, Any], check: Callable[[str, Any], object]
) -> Iterator[tuple[str, str]]:
    own = _SECTIONS[section].model_fields
    for key, value in params.items():
        top, _, option = key.partition(".")
        if top != section or option in own:
            continue
        try:
            check_option(section, name, option)
            check(name, {option: value})
        except UsageError as error:
            yield key, str(error)


def _check_rates(params: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    epochs = params["training.n_epochs"]
    warmup = params.get("training.lr_warmup_epochs")
    for name, options in (
        ("optimizer.lr_scaling", {"lr_scaling": params.get("optimizer.lr_scaling")}),
        ("training.lr_warmup_epochs", {"lr_warmup_epochs": warmup}),
        (
            "training.momentum_correction",
            {"momentum_correction": params.get("training.momentum_correction")},
        ),
        (
            "training.lr_schedule",
            {"lr_schedule": params.get("training.lr_schedule"), "lr_warmup_epochs": warmup or 0},
        ),
    ):
        if options[name.partition(".")[2]] is None:
            continue
        try:
            make_rule(**{"lr_scaling": Scaling.LINEAR, **options}, n_epochs=epochs)
        except UsageError as error:
            yield name, str(error)
            return


def _located(name: str, message: str, written: set[str]) -> Objection:
    """Where a param is in the file, as near as can be told."""
    dotted = _dotted(name)
    if dotted in written:
        return Objection(("search", "space", dotted), message)
    section, _, key = dotted.partition(".")
    if message.startswith("lr_schedule["):
        number = message[len("lr_schedule[") : message.index("]")]
        return Objection((section, key, int(number)), message)
    return Objection((section, key), message)


def _dotted(name: str) -> str:
    """The name in the file of a param."""
    return next((own for own, new in RENAMED.items() if new == name), name)
