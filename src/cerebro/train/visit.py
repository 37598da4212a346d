"""What goes to a worker and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from cerebro.data import Shard
from cerebro.track.graph import GraphNode
from cerebro.types import Json, Params, Split

if TYPE_CHECKING:
    from cerebro.train.model_file import ExportCall
    from cerebro.train.score.calls import ScoreCall, ScoreReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacking:
    """How the members of a stack are trained as one. Decided once, then journaled."""

    #: Compile the step; else it is replayed as it was traced.
    compiled: bool = False

    def to_json(self) -> dict[str, Json]:
        return {"compiled": self.compiled}


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitCall:
    """One visit of one unit. `trials` and `params` run in parallel: one entry a member."""

    #: The number of a trial alone; of a stack, a negative one (`cerebro.types.stack_unit`).
    unit: int
    trials: tuple[int, ...]
    params: tuple[Params, ...]
    seed: int
    epoch: int
    step: int
    #: Training visits in an epoch; this visit ends it when `step == steps - 1`.
    steps: int
    split: Split
    shard: int
    attempt: int
    batch_size: int
    #: Compare the shard with its digest, unless this worker has done so before.
    verify: bool = True
    #: Also report which metrics an evaluation would give, before training.
    probe: bool = False
    #: Train the members as one; None for a single trial in the plain loop.
    stack: Stacking | None = None
    #: Every trial sees the rows of a shard in the same order.
    same_order: bool = False
    #: The params of the trial whose state this one begins with; None for its own state.
    origin: Params | None = None
    #: Rows that a training step takes at a time; None leaves it to the task.
    micro_batch: int | None = None

    #: Train on so many rows of the shard only, to see how long that takes.
    limit: int | None = None
    #: The leader of a gang does it alone, for comparison.
    is_alone: bool = False
    #: Shards of the train split, from one to before another, that its trials are evaluated on and
    #: never trained on.
    held_out: tuple[int, int] = (0, 0)

    @property
    def is_training(self) -> bool:
        first, end = self.held_out
        return self.split is Split.TRAIN and not first <= self.shard < end

    @property
    def visits(self) -> int:
        """Training visits of the unit that are done once this one is."""
        return self.epoch * self.steps + self.step + 1

    @property
    def smaller_micro_batch(self) -> int:
        """Half of the rows that a training step takes at a time now, rounded up."""
        return -(-(self.micro_batch or self.batch_size) // 2)


#: Row-weighted sums: name -> (sum over rows, rows). Adding them over shards keeps means exact.
Sums = dict[str, tuple[float, int]]
#: Metrics of single batches, in order: name -> (values, rows of each).
Batches = dict[str, tuple[list[float], list[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """What a visit made of one of its trials."""

    sums: Sums
    #: In place of sums, for a task that makes an epoch's metrics of those of its batches itself.
    batches: Batches | None = None
    #: Loss of each training step, in order.
    losses: tuple[float, ...] = ()
    #: Number of the first of these steps, counted over the trial's life.
    first_step: int = 0
    #: Why this member of a stack is no longer worth training, though the others are.
    diverged: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitReport:
    """What a worker says about a finished visit."""

    #: Rows that each member has seen.
    rows: int
    #: One for each of the call's trials.
    members: tuple[MemberReport, ...]
    #: In the training or evaluation loop, where batches are loaded too.
    compute_s: float = 0.0
    #: Of compute_s, waiting for the next batch: gathering, moving, decoding, augmenting its rows.
    load_s: float = 0.0
    #: Opening, checking and ordering the shard, before the loop.
    data_s: float = 0.0
    #: Building the model, taking over and giving back the state.
    hop_s: float = 0.0
    #: Of that, sending the state to the other ranks of a gang.
    send_s: float = 0.0
    #: Waiting for the other ranks of a gang; not part of compute_s.
    comm_s: float = 0.0
    #: Names of the metrics an evaluation gives, when the call asked for a probe.
    metric_names: tuple[str, ...] = ()
    #: Names of the metrics that training gives, where those are not the sums'.
    train_names: tuple[str, ...] = ()
    #: The model of the first trial, when the call asked for a probe and the framework can tell.
    graph: tuple[GraphNode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyCall:
    """Trials to look at before they are put into stacks."""

    trials: tuple[int, ...]
    params: tuple[Params, ...]
    batch_sizes: tuple[int, ...]
    seed: int
    same_order: bool = False
    #: Measure how long a step takes for different numbers of members.
    measure: bool = False
    #: Metrics of training that the run ranks, stops or ends by: no stack may be without them.
    goes_by: frozenset[str] = frozenset()

    def run(self, runner: Any) -> Survey:
        found: Survey = runner.survey(self)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Trials that could be trained as one: same structure, optimizer and batch size."""

    trials: tuple[int, ...]
    #: Why they cannot be stacked; None if they can.
    obstacle: str | None = None
    #: Of one member: bytes of its state; what a step allocates beside it, in bytes.
    state_bytes: int = 0
    step_bytes: int = 0
    #: Members -> predicted seconds that a step takes for all of them; 0 members: the plain loop.
    #: Measured ones where the call asked for it.
    step_s: Mapping[int, float] = field(default_factory=dict)
    #: Seconds it takes to compile the step, and step_s once it is; empty where it cannot be.
    compile_s: float = 0.0
    compiled_step_s: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a worker found out about the trials of a SurveyCall: each is in one group."""

    groups: tuple[Group, ...]
    #: Memory of the device that stacks may use.
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class State:
    """A trial's or a stack's state: named tensors laid out in one buffer, and the rest as JSON.

    The buffer holds exactly the bytes of a safetensors file, so that a checkpoint is a plain write.
    A stack's tensors have one more axis in front, for its members; its meta is
    `{"trials": [...], "members": [meta of each]}`, so that every member can be taken out again.
    """

    buffer: memoryview
    meta: Mapping[str, Json] = field(default_factory=dict)


#: Gives a writable, page-aligned buffer of so many bytes that outlives the visit.
Allocate = Callable[[int], memoryview]


class Diverged(Exception):
    """The loss, a metric or the state is not finite any more."""


class OutOfMemory(Exception):
    """There is not enough memory, on the device or on the host.

    Args:
        message: With what was used, and what would help.
        is_splittable: The visit may be tried with a smaller micro batch.
    """

    def __init__(self, message: str, *, is_splittable: bool = False) -> None:
        super().__init__(message)
        self.is_splittable = is_splittable


class Framework(Protocol):
    """Trains and evaluates; knows nothing of workers, stores or plans.

    Both must leave the incoming state's buffer untouched, whatever the task does: it is what a
    failed visit goes back to, it is being saved, and other workers may be reading it. Only where
    `allocate` gives that very memory has it been handed over, to be trained in. They raise
    `Diverged` rather than return a state or metrics that are not finite; where only some members
    of a stack are not, their reports say so, and their part of the state is finite all the same.

    A stack's incoming state may have more members than the call has trials: those are left behind.

    Before each batch they call `PROGRESS.tick()` of `cerebro.train.progress`: a visit without one
    for ten minutes is taken for hung. They raise `OutOfMemory` where memory is not enough.
    """

    #: The kind of device used, e.g. "cpu" or "cuda".
    device: str

    def versions(self) -> dict[str, str]: ...

    def train(
        self, call: VisitCall, shard: Shard, state: State | None, allocate: Allocate
    ) -> tuple[State, VisitReport]: ...

    def evaluate(self, call: VisitCall, shard: Shard, state: State) -> VisitReport: ...

    def metric_names(self, call: VisitCall, shard: Shard) -> tuple[str, ...]: ...

    def survey(self, call: SurveyCall, shard: Shard) -> Survey:
        """Which of these trials could be trained as one, and what that would cost."""
        ...

    def load(self, params: Params, state: State) -> object:
        """A model ready for use, with the state's weights."""
        ...

    def load_file(self, params: Params, path: str, content: bytes) -> object:
        """The model that a file of weights holds, ready for use.

        `path` tells by its ending how to read `content`. Files that could run code when they are
        read are refused.
        """
        ...

    def score(self, call: ScoreCall, shard: Shard, models: Sequence[object]) -> ScoreReport:
        """Test models on a shard, or let them predict it; one of `call.params` for each.

        `models` are what `load` or `load_file` gave. Batches come in the order of the rows, each
        read and decoded once for all of them; what one does to a batch no other sees, and nothing
        depends on who else is there. A test gives sums over rows, or a task with an aggregation of
        its own the metrics of single batches; values that are not finite are given as they are.
        A prediction gives columns with one entry for each row (`Predictions` gathers them).
        """
        ...

    def memory_bytes(self) -> int:
        """The memory of its device: half of it may be taken by models that stay loaded."""
        ...

    def export(self, call: ExportCall, model: object, shard: Shard | None) -> bytes:
        """A model that `load` gave, as the content of a file; `shard` has rows to try it on."""
        ...

    def free(self) -> None:
        """Give back memory that is kept for later visits."""
        ...

    def close(self) -> None:
        """Give back what it changed in this process."""
        ...


@runtime_checkable
class Drawing(Protocol):
    """A framework that can write down the graph of a trial's model."""

    def graph(self, call: VisitCall, shard: Shard) -> tuple[GraphNode, ...]: ...
