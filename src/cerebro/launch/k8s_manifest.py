"""Objects of Kubernetes for an experiment: KubeRay's RayJob or RayCluster, or a Job of one pod.

Commands are constants: whatever a user has written is in the files that a ConfigMap carries, and
names are checked. A GPU count stands in one place, from which requests, limits and what Ray is
told follow. Of secrets only the names are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cerebro import __version__
from cerebro.launch.k8s import K8sJob, Kind
from cerebro.launch.k8s_files import FILE, FOLDER
from cerebro.types import Json

#: Of the image: KubeRay wants to know.
RAY_VERSION = "2.60.0"
GPU = "nvidia.com/gpu"
#: The user of the image.
USER = 1000
#: How long a pod that must go has for saving the run's state.
GRACE_S = 120
#: How long a Ray cluster stays after its run, and the most that a submitter may need.
_LINGER_S = 60
_SUBMITTER = {"cpu": "500m", "memory": "1Gi"}
#: A request that cannot be carried out as written fails every time.
_WRONG_REQUEST = 2
_COMMAND = ("cerebro", "run", f"{FOLDER}/{FILE}")

Tree = dict[str, Any]


def make_objects(job: K8sJob, files: Mapping[str, str]) -> list[Json]:
    """All objects of a job, in the order in which they are made."""
    made = {Kind.RAYJOB: _ray_job, Kind.RAYCLUSTER: _ray_cluster, Kind.JOB: _plain_job}[job.kind]
    names = f"{job.name}-files"
    carried: Tree = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(job, names),
        "data": dict(files),
    }
    return [carried, made(job)]


def _ray_job(job: K8sJob) -> Tree:
    submitter = _pod(job, "submitter", _SUBMITTER, gpus=0)
    submitter["spec"]["restartPolicy"] = "Never"
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": _metadata(job, job.name),
        "spec": {
            "entrypoint": " ".join(_COMMAND),
            "backoffLimit": job.restarts,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": _LINGER_S,
            "submitterPodTemplate": submitter,
            "rayClusterSpec": _cluster_spec(job),
        },
    }


def _ray_cluster(job: K8sJob) -> Tree:
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": _metadata(job, job.name),
        "spec": _cluster_spec(job),
    }


def _cluster_spec(job: K8sJob) -> Tree:
    head = _pod(job, "head", {"cpu": str(job.head_cpus), "memory": job.head_memory}, gpus=0)
    worker = _pod(job, "worker", {"cpu": str(job.cpus), "memory": job.memory}, gpus=job.gpus)
    return {
        "rayVersion": RAY_VERSION,
        # The operator makes the token, and gives it to the pods alone.
        "authOptions": {"mode": "token"},
        "headGroupSpec": {
            # Nothing is trained beside the driver.
            "rayStartParams": {"num-cpus": "0", "num-gpus": "0", "dashboard-host": "0.0.0.0"},  # noqa: S104
            "template": head,
        },
        "workerGroupSpecs": [
            {
                "groupName": "workers",
                "replicas": job.nodes,
                "minReplicas": job.nodes,
                "maxReplicas": job.nodes,
                "rayStartParams": {"num-cpus": str(job.cpus), "num-gpus": str(job.gpus)},
                "template": worker,
            }
        ],
    }


def _plain_job(job: K8sJob) -> Tree:
    pod = _pod(job, "run", {"cpu": str(job.cpus), "memory": job.memory}, gpus=job.gpus)
    pod["spec"]["restartPolicy"] = "Never"
    pod["spec"]["containers"][0]["command"] = list(_COMMAND)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(job, job.name),
        "spec": {
            "backoffLimit": job.restarts,
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {
                            "containerName": "run",
                            "operator": "In",
                            "values": [_WRONG_REQUEST],
                        },
                    },
                    # Evicted: the run goes on in the next pod, however often.
                    {"action": "Ignore", "onPodConditions": [_condition("DisruptionTarget")]},
                ]
            },
            "template": pod,
        },
    }


def _pod(job: K8sJob, name: str, size: Mapping[str, str], *, gpus: int) -> Tree:
    wanted = {**size, **({GPU: str(gpus)} if gpus else {})}
    volumes, mounts = _volumes(job)
    container: Tree = {
        "name": name,
        "image": job.image,
        "workingDir": job.workdir or FOLDER,
        # What is asked for is what there is: a pod is not moved for what others take.
        "resources": {"requests": dict(wanted), "limits": dict(wanted)},
        "env": [{"name": "PYTHONUNBUFFERED", "value": "1"}],
        "volumeMounts": mounts,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if job.volume is not None:
        container["env"].append({"name": "CEREBRO_DATA", "value": f"{job.mount}/data"})
    if job.secrets:
        container["envFrom"] = [{"secretRef": {"name": secret}} for secret in job.secrets]
    spec: Tree = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    }
    if job.service_account is not None:
        spec["serviceAccountName"] = job.service_account
    return {"metadata": {"labels": _labels(job)}, "spec": spec}


def _volumes(job: K8sJob) -> tuple[list[Tree], list[Tree]]:
    """Volumes of a pod, and where its container has them."""
    volumes: list[Tree] = [
        {"name": "experiment", "configMap": {"name": f"{job.name}-files"}},
        # States travel through shared memory, of which a container has 64 MiB otherwise.
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
    ]
    mounts: list[Tree] = [
        {"name": "experiment", "mountPath": FOLDER, "readOnly": True},
        {"name": "memory", "mountPath": "/dev/shm"},  # noqa: S108
    ]
    if job.volume is not None:
        claim = {"claimName": job.volume}
        volumes.append({"name": "store", "persistentVolumeClaim": claim})
        mounts.append({"name": "store", "mountPath": job.mount})
    return volumes, mounts


def _metadata(job: K8sJob, name: str) -> Tree:
    place = {} if job.namespace is None else {"namespace": job.namespace}
    return {"name": name, **place, "labels": _labels(job)}


def _labels(job: K8sJob) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "cerebro",
        "app.kubernetes.io/instance": job.name,
        "app.kubernetes.io/version": __version__.replace("+", "-"),
    }


def _condition(name: str) -> dict[str, str]:
    return {"type": name, "status": "True"}
