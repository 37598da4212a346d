"""`kubectl`: hands objects to a cluster."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from cerebro.errors import CerebroError, UsageError
from cerebro.launch.k8s import K8sJob, Kind

_ANSWER_S = 120.0


def apply(manifest: str, *, namespace: str | None) -> str:
    """Have a cluster make what a manifest describes; what `kubectl` says about it."""
    command = ["kubectl", "apply", *_place(namespace), "--filename=-"]
    if shutil.which("kubectl") is None:
        raise UsageError(
            "`kubectl` must be on the PATH, but is not: do this on a machine that reaches the "
            "cluster. --dry-run shows the objects anywhere, and kubectl apply -f takes them."
        )
    try:
        done = subprocess.run(
            command,
            input=manifest,
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        told = f"the cluster does not answer: kubectl took over {_ANSWER_S:.0f} s."
        raise CerebroError(told) from None
    if done.returncode:
        raise CerebroError(f"kubectl failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


def hints(job: K8sJob) -> dict[str, Sequence[str]]:
    """What to do next, as commands."""
    place = _place(job.namespace)
    look = ["kubectl", "get", str(job.kind), job.name, *place]
    end = ["kubectl", "delete", f"{job.kind}/{job.name}", f"configmap/{job.name}-files", *place]
    if job.kind is Kind.RAYCLUSTER:
        pod = f"svc/{job.name}-head-svc"
        train = ["kubectl", "exec", pod, *place, "--", "cerebro", "run"]
        return {"status": look, "train": [*train, "/experiment/experiment.yaml"], "end": end}
    return {"status": look, "log": ["kubectl", "logs", "-f", f"job/{job.name}", *place], "end": end}


def _place(namespace: str | None) -> list[str]:
    return [] if namespace is None else [f"--namespace={namespace}"]
