"""The sections of a recipe: their keys, defaults and types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator

from cerebro.config.schema import Count, Text, WorkersPerTrial
from cerebro.run.parallel import parse_parallel
from cerebro.run.stacks import check_setting
from cerebro.search.budget import parse_budget
from cerebro.track.monitor.profile import Profile
from cerebro.types import Json

Fraction = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Loss = Literal[
    "binary_crossentropy",
    "categorical_crossentropy",
    "mse",
    "sparse_categorical_crossentropy",
]
Metric = Literal["accuracy", "top_k_categorical_accuracy"]


def _named(value: object) -> object:
    """A name stands for a mapping with a name."""
    return {"name": value} if isinstance(value, str) else value


def _check_budget(value: object) -> object:
    parse_budget(value)
    return value


def _check_parallel(value: object) -> object:
    parse_parallel(value)
    return value


def _check_profile(value: object) -> object:
    Profile.parse(cast("Json", value))
    return value


class Section(BaseModel):
    """Strict: unknown keys and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @property
    def options(self) -> dict[str, Any]:
        """Keys that are for what the section's name stands for."""
        return dict(self.model_extra or {})


class OpenSection(Section):
    """One whose other keys are checked by what they are for."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


class DataSection(OpenSection):
    """Which pictures, and what becomes of them; other keys are options of the data set."""

    name: Text
    #: The directory or file with the data set's own files.
    source: Text | None = None
    #: The directory that they are prepared in, once.
    prepared: Text | None = None
    #: Changes of training pictures; what belongs to the data set where it is left out.
    augment: dict[str, Any] | bool | None = None
    #: How bytes become numbers; what belongs to the data set where it is left out.
    preprocess: str | dict[str, Any] | None = None


class ModelSection(OpenSection):
    """Which network; other keys are its options, such as dropout."""

    name: Text
    #: (height, width, channels)
    input_shape: Annotated[list[Count], Field(min_length=3, max_length=3)]
    n_classes: Count


class OptimizerSection(OpenSection):
    """Which optimizer; other keys are options of its class."""

    name: Text
    #: Of one worker.
    lr: NotNegative
    lr_scaling: Literal["linear", "sqrt", "none"] = "linear"


class TrainingSection(Section):
    """How long and by what."""

    #: Rows of each worker of a trial, or of all of them together: one of the two.
    batch_size: Count | None = None
    global_batch_size: Count | None = None
    n_epochs: Count
    lr_warmup_epochs: Annotated[int, Field(ge=0)] = 0
    #: Entries {start_epoch, end_epoch, multiplier}, or cosine.
    lr_schedule: Any = None
    momentum_correction: bool = True
    loss: Loss
    metrics: list[Metric] = []
    clip_grad_norm: Positive | None = None
    amp: Literal["bf16", "fp16", "tf32"] | None = None


class DeviceSection(Section):
    """What a worker computes on."""

    intra_threads: Count = 1
    #: Read for old files: PyTorch's own number is kept.
    inter_threads: Count | None = None
    #: Nothing: a GPU if there is one; true, or its number; false: the CPU.
    gpu: bool | Annotated[int, Field(ge=0)] | None = None


class SearchSection(OpenSection):
    """What to try; other keys are options of the search."""

    name: Text = "grid"
    space: dict[str, Any] = {}
    trials: Count | None = None
    metric: Text | None = None
    mode: Literal["max", "min"] | None = None
    stopper: Any = None
    concurrent: Count | None = None
    seeds: Count = 1
    warm_start: list[dict[str, Any]] = []
    learn_from: Text | None = None


class GoalSection(Section):
    """What ends the run, and what must hold meanwhile."""

    target: Annotated[float, Field(allow_inf_nan=False)]
    metric: Text | None = None
    mode: Literal["max", "min"] | None = None
    max_epochs: Count | None = None
    devices: Literal["cpu", "cuda"] | None = None
    max_nodes: Count | None = None


class Recipe(Section):
    """A training that is described by names and numbers alone."""

    description: str = ""
    #: The run's directory; `runs/<name of the file>` beside the file where it is left out.
    output_dir: Text | None = None
    data: DataSection
    model: ModelSection
    optimizer: OptimizerSection
    training: TrainingSection
    device: DeviceSection = DeviceSection()
    search: Annotated[SearchSection, BeforeValidator(_named)] = SearchSection()
    #: mop, ddp, hybrid or auto, or a mapping with a mode.
    parallel: Annotated[Any, PlainValidator(_check_parallel)] = "auto"
    #: Workers that train a trial together: a number, or host for all of a machine.
    workers_per_trial: WorkersPerTrial = None
    launch: dict[str, Any] = {}
    #: Whether and how machines are sampled meanwhile: true, or {interval: 1, sinks: [csv]}.
    profile: Annotated[Any, PlainValidator(_check_profile)] = None
    goal: GoalSection | None = None
    workers: Count | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    backend: Text = "local"
    budget: Annotated[Any, PlainValidator(_check_budget)] = None
    checkpoint: Literal["visit", "epoch", "off"] = "visit"
    stack: Annotated[bool | int | str, PlainValidator(check_setting)] = "auto"
    same_order: bool = False
    keep_top: Count | None = None


def section_keys(name: str) -> Sequence[str]:
    """The keys of a section; none for what is no section.

    >>> section_keys("goal"), section_keys("seed")
    (('target', 'metric', 'mode', 'max_epochs', 'devices', 'max_nodes'), ())
    """
    annotation = Recipe.model_fields[name].annotation
    # One that may be left out is a union with None.
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, Section):
            return tuple(kind.model_fields)
    return ()
