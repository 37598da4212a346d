"""`ray start` for jobs of a batch system: `python -m cerebro.launch.ray_start --head …`.

Before its limit a job is signalled, and some systems signal all of its processes. The run answers
by saving its state, for which it needs Ray: so Ray, and what it starts, does not hear that signal.
"""

from __future__ import annotations

import signal
import sys

from ray.scripts.scripts import main

if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    sys.argv = ["ray", "start", *sys.argv[1:]]
    main()
