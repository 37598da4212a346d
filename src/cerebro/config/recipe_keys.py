"""The keys of a recipe's open sections: their own, and the options of what they name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from cerebro.config.recipe_schema import SearchSection, section_keys
from cerebro.config.yaml import KeyPath
from cerebro.data.named import DATASETS
from cerebro.errors import UsageError
from cerebro.search.sampler import SAMPLERS
from cerebro.search.wording import listed
from cerebro.types import Json
from cerebro.zoo.inputs import OPTIONS
from cerebro.zoo.optimizers import optimizer_name, option_names


def check_option(section: str, name: str, key: str) -> None:
    """Raise UsageError where neither a section nor what it names has this key.

    Names that nobody knows have any.

    >>> check_option("model", "mlp6", "n_clases")
    Traceback (most recent call last):
    cerebro.errors.UsageError: model 'mlp6' has no option 'n_clases'. \
Known: name, input_shape, n_classes. Did you mean 'n_classes'?
    """
    found = _NAMED[section](name)
    if found is None:
        return
    shown, options = found
    known = (*section_keys(section), *options)
    if key not in known:
        raise UsageError(f"{shown} has no option {key!r}. {listed(key, known)}")


def wrong_options(tree: Json) -> Iterator[tuple[KeyPath, str]]:
    """The keys of a file's open sections that do not exist, where it is sure what they are for."""
    varied = _below(tree, "search", "space")
    for section in _NAMED:
        part = _below(tree, section)
        name = part.get("name", _SEARCH if section == "search" else None)
        if not isinstance(name, str) or f"{section}.name" in varied:
            continue
        for key in part:
            try:
                check_option(section, name, key)
            except UsageError as error:
                yield (section, key), str(error)


def _below(tree: Json, *path: str) -> Mapping[str, Json]:
    """The mapping at a path; an empty one where there is something else."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree if isinstance(tree, Mapping) else {}


#: What is named in messages, and its options; None: there is no such thing.
_Found = tuple[str, Sequence[str]] | None
#: The search of a file that names none.
_SEARCH = SearchSection.model_fields["name"].default


def _of_data(name: str) -> _Found:
    data = DATASETS.get(name)
    return None if data is None else (f"data set {name!r}", sorted(data.defaults))


def _of_model(name: str) -> _Found:
    return (f"model {name!r}", list(OPTIONS[name])) if name in OPTIONS else None


def _of_optimizer(name: str) -> _Found:
    try:
        return f"optimizer {optimizer_name(name)}", option_names(name)
    except UsageError:
        return None


def _of_search(name: str) -> _Found:
    return (f"search {name!r}", list(SAMPLERS[name].options)) if name in SAMPLERS else None


_NAMED: Mapping[str, Callable[[str], _Found]] = {
    "data": _of_data,
    "model": _of_model,
    "optimizer": _of_optimizer,
    "search": _of_search,
}
