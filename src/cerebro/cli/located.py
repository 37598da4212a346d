"""Which line of an experiment file an error is about."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from cerebro.config.overrides import apply_overrides
from cerebro.config.schema import ExperimentConfig
from cerebro.config.yaml import KeyPath, load_yaml
from cerebro.errors import ConfigError, DataError, ShardCorruptError, UsageError


@contextlib.contextmanager
def located(config: ExperimentConfig, path: Path, overrides: Sequence[str]) -> Iterator[None]:
    """Errors that only a run can find, such as a task without its class, get a file and a line."""
    try:
        yield
    except (ConfigError, ShardCorruptError):
        raise
    except (UsageError, DataError) as error:
        key = _find_key(str(error), config)
        if key is None:
            raise
        document = apply_overrides(load_yaml(path), overrides, ExperimentConfig.model_fields)
        raise ConfigError(f"{document.place(key).text}: {error}") from error


def _find_key(message: str, config: ExperimentConfig) -> KeyPath | None:
    """The key whose value the message repeats."""
    signs: Sequence[tuple[str, KeyPath]] = (
        (repr(config.task), ("task",)),
        *((f"got {metric!r}", ("metric",)) for metric in config.metric),
        *((f"metric {metric!r}", ("metric",)) for metric in config.metric),
        ("folds are cut by shard", ("folds",)),
        ("`repeats == 1` must hold", ("folds",) if config.folds else ("seeds",)),
        ("stopper 'pbt' copies states from checkpoints", ("checkpoint",)),
        ("the task asks for params[", ("space",)),
        ("batch_size must be an integer", ("space", "batch_size")),
        (f"device must name a device of this machine, but {config.device!r}", ("device",)),
        (f"there is no dataset at {config.data}", ("data",)),
    )
    return next((key for sign, key in signs if sign in message), None)
