"""A driver as a process of its own: python -m tests.driver JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from cerebro import Experiment
from cerebro.errors import CerebroError
from cerebro.spec import MiniBatchSpec
from cerebro.task import Task
from cerebro.testing.toy import ToyTask
from tests.experiments import STACK


def make_task(name: str, options: dict[str, Any]) -> Task | MiniBatchSpec:
    if name == "toy":
        return ToyTask(**options)
    if name == "spec":
        from tests.specs import Listing

        return Listing(**options)
    from tests.tasks import Net

    return Net(**options)


def drive(options: dict[str, Any], task: Task | MiniBatchSpec) -> int:
    """Carry a run to its end; the exit code."""
    try:
        experiment = Experiment(**options["experiment"])
        experiment.run_fit(task, progress=False, **{"stack": STACK, **options["fit"]})
    except CerebroError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def main() -> int:
    options = json.loads(sys.argv[1])
    return drive(options, make_task(options["task"], options["task_options"]))


if __name__ == "__main__":
    sys.exit(main())
