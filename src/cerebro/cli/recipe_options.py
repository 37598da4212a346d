"""The options of `cerebro run` that change a recipe, or show what it comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import typer

from cerebro.errors import UsageError

Optimizer = Annotated[
    str | None,
    typer.Option(
        metavar="KEY=VALUE,...",
        help="Of a recipe: keys of its optimizer, such as lr=0.1,name=SGD.",
        show_default=False,
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option("--batch_size", metavar="N", help="Rows of each worker.", show_default=False),
]
Epochs = Annotated[
    int | None, typer.Option("--n_epochs", metavar="N", help="Epochs.", show_default=False)
]
Dropout = Annotated[
    float | None,
    typer.Option(metavar="SHARE", help="Of a recipe: that of its model.", show_default=False),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Tell more: the file, the model, every detail.")
]
ShowConfig = Annotated[
    bool, typer.Option("--show-config", help="Print the file as it is carried out, and exit.")
]
Interactive = Annotated[
    bool, typer.Option("--interactive", help="At the end open a Python shell with the result.")
]

#: Keys of `--optimizer` that belong to another section.
_ELSEWHERE: Mapping[str, str] = {
    key: f"training.{key}" for key in ("lr_warmup_epochs", "lr_schedule", "momentum_correction")
}


@dataclass(frozen=True, slots=True)
class RecipeWish:
    """What the options say.

    >>> RecipeWish(optimizer="lr=0,name=SGD", dropout=0.0).overrides(is_recipe=True)
    ['optimizer.lr=0', 'optimizer.name=SGD', 'model.dropout=0.0']
    >>> RecipeWish(optimizer="lr_warmup_epochs=0").overrides(is_recipe=True)
    ['training.lr_warmup_epochs=0']
    >>> RecipeWish(n_epochs=3).overrides(is_recipe=False)
    ['epochs=3']
    """

    optimizer: str | None = None
    batch_size: int | None = None
    n_epochs: int | None = None
    dropout: float | None = None
    is_verbose: bool = False
    is_shown: bool = False
    is_interactive: bool = False
    #: Machines, where an option says how many.
    nodes: int | None = None

    def overrides(self, *, is_recipe: bool) -> list[str]:
        """The options as overrides; 0 is a value like any other."""
        if not is_recipe:
            self._refuse_names()
        found = [_optimizer_override(part) for part in _parts(self.optimizer or "")]
        head = "training." if is_recipe else ""
        for key, value in (
            (f"{head}batch_size", self.batch_size),
            (f"{head}{'n_epochs' if is_recipe else 'epochs'}", self.n_epochs),
            ("model.dropout", self.dropout),
        ):
            if value is not None:
                found.append(f"{key}={value}")
        return found

    def _refuse_names(self) -> None:
        for name, value in (("--optimizer", self.optimizer), ("--dropout", self.dropout)):
            if value is not None:
                raise UsageError(
                    f"{name} changes a recipe, which names its model and optimizer, but the file "
                    "has a task of its own. Change its space: space.lr=0.1."
                )


def _optimizer_override(part: str) -> str:
    key, equals, value = part.partition("=")
    key = key.strip()
    if not equals or not key:
        raise UsageError(
            f"--optimizer takes key=value, several separated by commas, but got {part!r:.100}."
        )
    return f"{_ELSEWHERE.get(key, f'optimizer.{key}')}={value}"


def _parts(text: str) -> list[str]:
    """Split at commas, but for those inside brackets."""
    found, depth = [""], 0
    for character in text:
        depth += (character in "[{(") - (character in "]})")
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return [part for part in found if part.strip()]
