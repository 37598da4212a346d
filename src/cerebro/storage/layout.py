"""Every name inside a run directory.

::

    <store>/<run>/run.json  journal.jsonl  lock  summary.json
                 /leaderboard.csv  report.html  trace.json  resources.csv
                 /inbox/20260801T120000.000000000Z-0123456789abcdef.json  bell
                 /trials/t0007/params.json  progress.csv  history.npz
                 /trials/t0007/checkpoints/v000012-a0.safetensors  v000012-a0.json
                 /stacks/s0007/checkpoints/v000012-a0.safetensors  v000012-a0.json
                 /tensorboard/t0007/…
                 /hops/…
"""

from __future__ import annotations

from cerebro.types import trial_id, unit_id

RUN = "run.json"
JOURNAL = "journal.jsonl"
LOCK = "lock"
LEADERBOARD = "leaderboard.csv"
REPORT = "report.html"
TRACE = "trace.json"
SUMMARY = "summary.json"
#: Of each trial of a recipe, and of a run with a single one.
HISTORY = "history.npz"
#: Samples of the machine, where a run is profiled.
RESOURCES = "resources.csv"
TRIALS = "trials"
STACKS = "stacks"
TENSORBOARD = "tensorboard"
LOGS = "logs"
#: States on their way from one worker to the next, where that leads through the store.
HOPS = "hops"
INBOX = "inbox"
#: In the inbox.
BELL = "bell"


def command(id: str) -> str:
    """The file of a command that waits for a driver.

    >>> command("stop-7")
    'inbox/stop-7.json'
    """
    return f"{INBOX}/{id}.json"


def trial_dir(trial: int) -> str:
    """The directory of a trial.

    >>> trial_dir(7)
    'trials/t0007'
    """
    return f"{TRIALS}/{trial_id(trial)}"


def params(trial: int) -> str:
    """The file with a trial's hyperparameters.

    >>> params(7)
    'trials/t0007/params.json'
    """
    return f"{trial_dir(trial)}/params.json"


def progress(trial: int) -> str:
    """The table of a trial's metrics, one row an epoch.

    >>> progress(7)
    'trials/t0007/progress.csv'
    """
    return f"{trial_dir(trial)}/progress.csv"


def history(trial: int) -> str:
    """The curves of a recipe's trial, as arrays.

    >>> history(7)
    'trials/t0007/history.npz'
    """
    return f"{trial_dir(trial)}/{HISTORY}"


def checkpoints(unit: int) -> str:
    """The directory of the checkpoints of a trial or a stack.

    >>> checkpoints(7), checkpoints(-8)
    ('trials/t0007/checkpoints', 'stacks/s0007/checkpoints')
    """
    return f"{TRIALS if unit >= 0 else STACKS}/{unit_id(unit)}/checkpoints"


def checkpoint_name(visits: int, attempt: int) -> str:
    """The name of a checkpoint, without a suffix, after so many train visits.

    >>> checkpoint_name(12, 0)
    'v000012-a0'
    """
    return f"v{visits:06d}-a{attempt}"


def checkpoint_data(unit: int, name: str) -> str:
    """The tensors of a checkpoint.

    >>> checkpoint_data(7, "v000012-a0")
    'trials/t0007/checkpoints/v000012-a0.safetensors'
    """
    return f"{checkpoints(unit)}/{name}.safetensors"


def checkpoint_manifest(unit: int, name: str) -> str:
    """The manifest of a checkpoint: digest, size, parent, meta.

    >>> checkpoint_manifest(7, "v000012-a0")
    'trials/t0007/checkpoints/v000012-a0.json'
    """
    return f"{checkpoints(unit)}/{name}.json"


def tensorboard(trial: int) -> str:
    """The directory of a trial's TensorBoard event files.

    >>> tensorboard(7)
    'tensorboard/t0007'
    """
    return f"{TENSORBOARD}/{trial_id(trial)}"
