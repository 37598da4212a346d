"""Which settings a benchmark compares: a pure function of what was asked for."""

from __future__ import annotations

import enum
import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cerebro.errors import UsageError
from cerebro.track.text import show_count

#: How a sweep calls the batch size, whatever the file calls it.
BATCH_SIZE = "batch_size"
_GLOBAL_BATCH_SIZE = "global_batch_size"
_STRANGE = re.compile(r"[^A-Za-z0-9._]+")


class Rule(enum.StrEnum):
    """What a batch size is the size of, where several processes train together."""

    #: Of all processes together: the same training, spread.
    GLOBAL = "global"
    #: Of each process: more rows a step with every process.
    RANK = "rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One way to run the training."""

    nodes: int = 1
    procs: int = 1
    batch: int | None = None
    rule: Rule = Rule.GLOBAL
    #: Whether states are saved; None leaves it to the file.
    checkpoint: bool | None = None
    #: Other keys that are swept, with their values as they are written.
    changes: tuple[tuple[str, str], ...] = ()
    repeat: int = 0

    @property
    def ranks(self) -> int:
        """Processes in all."""
        return self.nodes * self.procs

    @property
    def global_batch(self) -> int | None:
        """Rows that all processes together take in a step."""
        if self.batch is None or self.rule is Rule.GLOBAL:
            return self.batch
        return self.batch * self.ranks

    @property
    def case(self) -> Setting:
        """What all its repeats have in common."""
        return replace(self, repeat=0)

    @property
    def key(self) -> str:
        """Its name in files.

        >>> Setting(nodes=2, batch=64, checkpoint=True, changes=(("optimizer.lr", "0.1"),)).key
        'n2-p1-b64-global-saved-optimizer.lr-0.1-r0'
        """
        parts = [f"n{self.nodes}", f"p{self.procs}"]
        if self.batch is not None:
            parts.append(f"b{self.batch}")
        if self.ranks > 1:
            parts.append(str(self.rule))
        if self.checkpoint is not None:
            parts.append("saved" if self.checkpoint else "unsaved")
        parts += [_file_name(key, value) for key, value in self.changes]
        return "-".join([*parts, f"r{self.repeat}"])

    @property
    def label(self) -> str:
        """What people call it.

        >>> Setting(nodes=3, procs=2, batch=64).label, Setting(batch=32, checkpoint=False).label
        ('3 nodes x 2 processes, batch 64 in all', '1 node, batch 32, not saved')
        """
        return ", ".join([self.where, *self.details])

    @property
    def where(self) -> str:
        """Nodes and processes alone.

        >>> Setting(nodes=3, procs=2, batch=64).where
        '3 nodes x 2 processes'
        """
        nodes = show_count(self.nodes, "node")
        return f"{nodes} x {self.procs} processes" if self.procs > 1 else nodes

    @property
    def changed(self) -> list[str]:
        """Its other keys, as they are written."""
        return [f"{key}={value}" for key, value in self.changes]

    @property
    def details(self) -> list[str]:
        """What sets it apart from others on the same nodes."""
        found = []
        if self.batch is not None:
            each = "" if self.ranks == 1 else " in all" if self.rule is Rule.GLOBAL else " each"
            found.append(f"batch {self.batch}{each}")
        found += self.changed
        if self.checkpoint is not None:
            found.append("saved" if self.checkpoint else "not saved")
        return found


def _file_name(key: str, value: str) -> str:
    """A change as a part of a file's name; different changes never have the same.

    >>> _file_name("optimizer.lr", "0.1"), _file_name("optimizer.lr", "1e-3")
    ('optimizer.lr-0.1', 'optimizer.lr-1e-3-6f4400')
    """
    plain = _STRANGE.sub("-", f"{key}-{value}").strip("-")
    if not _STRANGE.search(key) and not _STRANGE.search(value):
        return plain
    return f"{plain}-{hashlib.sha256(f'{key}={value}'.encode()).hexdigest()[:6]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What is to be compared.

    >>> sweep = Sweep(nodes=(1, 2), batches=(64,))
    >>> [setting.label for setting in sweep.settings()]
    ['1 node, batch 64', '2 nodes, batch 64 in all', '2 nodes, batch 64 each']
    """

    nodes: tuple[int, ...] = (1,)
    procs: tuple[int, ...] = (1,)
    #: Batch sizes; empty where a run has one that is not known.
    batches: tuple[int, ...] = ()
    rules: tuple[Rule, ...] = (Rule.GLOBAL, Rule.RANK)
    #: Other keys with their values.
    others: tuple[tuple[str, tuple[str, ...]], ...] = ()
    #: Also compare saving states with not saving them, on the first nodes and processes.
    checkpoint: bool = False
    repeats: int = 1

    def settings(self) -> list[Setting]:
        """All settings, each once, simplest first; repeats of one are far apart in time.

        A slow phase of the machine so falls on all settings alike.
        """
        cases = list(dict.fromkeys(self._cases()))
        return [replace(case, repeat=repeat) for repeat in range(self.repeats) for case in cases]

    def _cases(self) -> Iterator[Setting]:
        first = self.nodes[0], self.procs[0]
        options = [[(key, value) for value in values] for key, values in self.others]
        for (nodes, procs), changes, batch, rule in itertools.product(
            itertools.product(self.nodes, self.procs),
            itertools.product(*options),
            self.batches or (None,),
            self.rules,
        ):
            ranks = nodes * procs
            case = Setting(
                nodes=nodes,
                procs=procs,
                batch=batch,
                rule=rule if ranks > 1 and batch is not None else Rule.GLOBAL,
                changes=changes,
            )
            if self.checkpoint and (nodes, procs) == first:
                yield replace(case, checkpoint=False)
                yield replace(case, checkpoint=True)
            else:
                yield replace(case, checkpoint=False) if self.checkpoint else case


def parse_sweep(texts: Sequence[str]) -> tuple[tuple[int, ...], list[tuple[str, tuple[str, ...]]]]:
    """Batch sizes and other keys of `--sweep KEY=V,V` options.

    >>> parse_sweep(["batch_size=32,64", "optimizer.name=Adam,SGD"])
    ((32, 64), [('optimizer.name', ('Adam', 'SGD'))])
    """
    batches: tuple[int, ...] = ()
    others: list[tuple[str, tuple[str, ...]]] = []
    for text in texts:
        key, equals, listed = text.partition("=")
        key, values = key.strip(), tuple(value.strip() for value in listed.split(","))
        if not equals or not key or not all(values):
            raise UsageError(f"--sweep is written KEY=VALUE,VALUE, but got {text!r:.80}.")
        name = key.rpartition(".")[2]
        if name == _GLOBAL_BATCH_SIZE:
            raise UsageError(
                f"--sweep {key}: batch sizes are swept as {BATCH_SIZE}=V,V; with --batch global "
                "they are those of all processes together."
            )
        if (batches and name == BATCH_SIZE) or key in dict(others):
            raise UsageError(f"--sweep has {key} twice. Name all its values at once: {key}=V,V.")
        if name == BATCH_SIZE:
            batches = parse_counts(listed, "--sweep batch_size")
        else:
            others.append((key, tuple(dict.fromkeys(values))))
    return batches, others


def parse_counts(text: str, what: str) -> tuple[int, ...]:
    """Positive whole numbers, separated by commas.

    >>> parse_counts("1,2,3", "--nodes")
    (1, 2, 3)
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(
            f"{what} must be whole numbers from 1 on, separated by commas, but got {text!r:.80}."
        )
    return tuple(dict.fromkeys(int(part) for part in parts))
