"""Optimizers by name: those of PyTorch, also as Keras spells them and their options.

The tables are data, so that a recipe is checked without PyTorch; a test compares them with it.
Options that decide how, not what, is computed (foreach, fused and the like) are left to PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from cerebro.errors import UsageError

_ADAM = ("betas", "eps", "weight_decay", "maximize")

#: Name in torch.optim -> its options beside lr. LBFGS, Muon and SparseAdam are for other tasks.
OPTIMIZERS: Mapping[str, tuple[str, ...]] = {
    "ASGD": ("lambd", "alpha", "t0", "weight_decay", "maximize"),
    "Adadelta": ("rho", "eps", "weight_decay", "maximize"),
    "Adafactor": ("beta2_decay", "eps", "d", "weight_decay", "maximize"),
    "Adagrad": ("lr_decay", "weight_decay", "initial_accumulator_value", "eps", "maximize"),
    "Adam": (*_ADAM, "amsgrad", "decoupled_weight_decay"),
    "AdamW": (*_ADAM, "amsgrad"),
    "Adamax": _ADAM,
    "NAdam": (*_ADAM, "momentum_decay", "decoupled_weight_decay"),
    "RAdam": (*_ADAM, "decoupled_weight_decay"),
    "RMSprop": ("alpha", "eps", "weight_decay", "momentum", "centered", "maximize"),
    "Rprop": ("etas", "step_sizes", "maximize"),
    "SGD": ("momentum", "dampening", "weight_decay", "nesterov", "maximize"),
}
#: What Keras calls an option -> what PyTorch calls it; a number in a pair is its place there.
_KERAS: Mapping[str, tuple[str, int | None]] = {
    "beta_1": ("betas", 0),
    "beta_2": ("betas", 1),
    "epsilon": ("eps", None),
}
_BETAS = (0.9, 0.999)
#: Options that are true or false, those that are a pair of numbers, and those that PyTorch alone
#: knows the values of; others are a number.
_FLAGS = ("amsgrad", "centered", "decoupled_weight_decay", "maximize", "nesterov")
_PAIRS = ("betas", "etas", "step_sizes")
_FREE = ("Adafactor.eps", "Adafactor.beta2_decay")


def optimizer_name(name: object) -> str:
    """The name in torch.optim of an optimizer; upper and lower case are the same.

    >>> optimizer_name("nadam"), optimizer_name("sgd")
    ('NAdam', 'SGD')
    """
    found = {known.lower(): known for known in OPTIMIZERS}
    if isinstance(name, str) and name.lower() in found:
        return found[name.lower()]
    near = get_close_matches(str(name).lower(), found, n=1)
    hint = f" Did you mean {found[near[0]]!r}?" if near else ""
    raise UsageError(
        f"unknown optimizer {name!r:.100}. Known: {', '.join(sorted(OPTIMIZERS))}.{hint}"
    )


def option_names(name: object) -> list[str]:
    """What options beside lr may be called, as PyTorch and as Keras spell them.

    >>> option_names("adamax")
    ['betas', 'eps', 'weight_decay', 'maximize', 'beta_1', 'beta_2', 'epsilon']
    """
    name = optimizer_name(name)
    own = OPTIMIZERS[name]
    keras = [key for key in (*_KERAS, "rho") if key not in own and _translate(name, key)[0] in own]
    return [*own, *keras]


def optimizer_options(name: object, options: Mapping[str, object]) -> dict[str, Any]:
    """Options beside lr as the class of this name takes them; UsageError for what it does not.

    >>> optimizer_options("Adam", {"beta_1": 0.8, "epsilon": 1e-7})
    {'betas': (0.8, 0.999), 'eps': 1e-07}
    """
    name = optimizer_name(name)
    found: dict[str, Any] = {}
    for key, value in options.items():
        own, place = _translate(name, key)
        if own not in OPTIMIZERS[name]:
            near = get_close_matches(key, OPTIMIZERS[name], n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            known = ", ".join(("lr", *OPTIMIZERS[name]))
            raise UsageError(f"optimizer {name} has no option {key!r}. It has: {known}.{hint}")
        if f"{name}.{own}" not in _FREE:
            _check_value(own if place is None else key, key, value)
        if place is None:
            found[own] = tuple(value) if isinstance(value, list) else value
        else:
            pair = list(found.get(own, _BETAS))
            pair[place] = value
            found[own] = tuple(pair)
    return found


def _check_value(own: str, key: str, value: object) -> None:
    """Raise UsageError unless a value is of the kind that an option takes; None is left out."""
    kind = "true or false" if own in _FLAGS else "a number of at least 0"
    is_fit = value is None or (isinstance(value, bool) if own in _FLAGS else _is_amount(value))
    if own in _PAIRS:
        kind = "a list of two numbers of at least 0"
        parts = value if isinstance(value, list | tuple) else ()
        is_fit = value is None or [_is_amount(part) for part in parts] == [True, True]
    if not is_fit:
        raise UsageError(f"{key} must be {kind}, but got {value!r:.100}.")


def _is_amount(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value < math.inf  # type: ignore[operator]


def _translate(name: str, key: str) -> tuple[str, int | None]:
    if key == "rho" and name == "RMSprop":
        return "alpha", None
    return _KERAS.get(key, (key, None))
