"""trace.json: the run in the Chrome trace event format, as Perfetto opens it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from cerebro.track.history import Timeline
from cerebro.track.records import RunStarted
from cerebro.track.text import show_trials
from cerebro.types import trial_id


def trace_events(timeline: Timeline, title: str, workers: int) -> Iterator[str]:
    """One JSON object a line: names of the lanes first, then one slice per visit.

    >>> for line in trace_events(Timeline(), "demo", workers=0): print(line)
    {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": "demo"}}
    """
    yield json.dumps({"ph": "M", "pid": 0, "name": "process_name", "args": {"name": title}})
    for worker in sorted({*range(workers), *timeline.worker}):
        name = {"name": f"worker {worker}"}
        yield json.dumps({"ph": "M", "pid": 0, "tid": worker, "name": "thread_name", "args": name})
        order = {"sort_index": worker}
        yield json.dumps(
            {"ph": "M", "pid": 0, "tid": worker, "name": "thread_sort_index", "args": order}
        )
    t = timeline
    labels = [_labels(trials) for trials in t.stacks]
    columns = (t.stack, t.epoch, t.shard, t.worker, t.is_eval, t.start_s, t.end_s)
    spent = zip(t.compute_s, t.data_s, t.hop_s, t.comm_s, t.rows, strict=True)
    visits = zip(zip(*columns, strict=True), spent, strict=True)
    # Formatted by hand: all values are numbers, and there may be a million of them.
    for (stack, epoch, shard, worker, is_eval, start, end), (
        compute,
        data,
        hop,
        comm,
        rows,
    ) in visits:
        phase = "eval" if is_eval else "train"
        label, who = labels[stack]
        if len(t.stacks[stack]) > 1:
            label = f"{label} e{epoch} s{shard}"
        yield (
            f'{{"ph":"X","pid":0,"tid":{worker},"ts":{start * 1e6:.1f},'
            f'"dur":{(end - start) * 1e6:.1f},"cat":"{phase}","name":"{label}",'
            f'"args":{{{who},"epoch":{epoch},"shard":{shard},"phase":"{phase}",'
            f'"compute_ms":{compute * 1e3:.3f},"data_ms":{data * 1e3:.3f},'
            f'"hop_ms":{hop * 1e3:.3f},"comm_ms":{comm * 1e3:.3f},"rows":{rows}}}}}'
        )


def _labels(trials: tuple[int, ...]) -> tuple[str, str]:
    """Name and arguments of a slice, as far as its trials are concerned."""
    first, others = trials[0], len(trials) - 1
    if not others:
        return trial_id(first), f'"trial":{first}'
    who = f'"trial":{first},"members":{len(trials)},"trials":"{show_trials(trials)}"'
    return f"{trial_id(first)} +{others}", who


def write_trace(path: Path, timeline: Timeline, run: RunStarted) -> None:
    """Write the trace of this process; visits left out for their number are counted."""
    title = f"{run.run}, since the last resume" if run.resumed else run.run
    other = json.dumps(
        {"run": run.run, "resumed": run.resumed, "visits_left_out": timeline.left_out}
    )
    with path.open("w", encoding="utf-8") as file:
        file.write(f'{{"displayTimeUnit": "ms", "otherData": {other}, "traceEvents": [\n')
        for number, line in enumerate(trace_events(timeline, title, run.workers)):
            file.write(line if number == 0 else ",\n" + line)
        file.write("\n]}\n")
