"""A driver on Ray that is struck, as a process of its own: python -m tests.cluster.struck JSON."""

from __future__ import annotations

import json
import sys

from tests.cluster.striking import Plan, StruckBackend, StruckTask
from tests.driver import drive


def main() -> int:
    options = json.loads(sys.argv[1])
    plan = Plan(**options["plan"])
    options["experiment"]["backend"] = StruckBackend(plan, **options["ray"])
    return drive(options, StruckTask(plan, **options["task_options"]))


if __name__ == "__main__":
    sys.exit(main())
