"""What a run takes of its machine: processors, memory, disks, networks and GPUs, once a second.

A small process of its own reads the system's counters (`sampler`), so that nothing that is measured
waits for it, and hands each sample to its sinks: a CSV file and TensorBoard.
"""

from cerebro.track.monitor.monitor import Monitor
from cerebro.track.monitor.profile import Profile, profiling

__all__ = ["Monitor", "Profile", "profiling"]
