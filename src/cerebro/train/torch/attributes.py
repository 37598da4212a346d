"""Notices what a model keeps outside of its state: it would be lost at every hop."""

from __future__ import annotations

import logging

from torch import Tensor, nn

logger = logging.getLogger("cerebro.train")

#: What every module has, its mode and its hooks among them.
_OWN = frozenset(vars(nn.Module()))

#: (path of the module, name) -> a plain value, or the type for a tensor.
Attributes = dict[tuple[str, str], object]


class AttributeWatch:
    """Compares a model before and after a trial's first training visit on this worker."""

    def __init__(self) -> None:
        self._trials: set[int] = set()
        self._told: set[tuple[str, str]] = set()

    def begin(self, trial: int, model: nn.Module) -> Attributes | None:
        """What `end` wants to know, or None if it has been told for this trial."""
        if trial in self._trials:
            return None
        self._trials.add(trial)
        return _attributes(model)

    def end(self, before: Attributes | None, model: nn.Module) -> None:
        """Say, once for each, which attributes have changed and will not travel."""
        if before is None:
            return
        for key, value in _attributes(model).items():
            old = before.get(key, _ABSENT)
            if key in self._told or old is value or old == value:
                continue
            self._told.add(key)
            logger.warning(
                "the model's attribute %s changed from %s to %s in training, but does not travel "
                "with the trial: at its next visit it is again as it was made. If training "
                "depends on it, make it a buffer (register_buffer), or write get_extra_state and "
                "set_extra_state.",
                ".".join(filter(None, key)),
                _describe(old),
                _describe(value),
            )


_ABSENT = object()


def _attributes(model: nn.Module) -> Attributes:
    return {
        (path, name): Tensor if isinstance(value, Tensor) else value
        for path, module in model.named_modules()
        if type(module).get_extra_state is nn.Module.get_extra_state
        for name, value in vars(module).items()
        if name not in _OWN and (value is None or isinstance(value, int | float | str | Tensor))
    }


def _describe(value: object) -> str:
    if value is Tensor:
        return "a tensor"
    return "something else or nothing" if value is _ABSENT else f"{value!r:.40}"
