"""Jobs of Kubernetes: what one asks for, in names and numbers that are checked before use."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cerebro.config.launching import read_section
from cerebro.errors import UsageError

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_MEMORY = re.compile(r"[1-9][0-9]*(Mi|Gi|Ti)")
_PATH = re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+")
#: KubeRay and Kubernetes add endings to it, and names of services have at most 63 letters.
NAME_LENGTH = 40


class Kind(enum.StrEnum):
    """What is made of an experiment."""

    #: A Ray cluster that is there for one run, and gone afterwards.
    RAYJOB = "rayjob"
    #: A Ray cluster that stays.
    RAYCLUSTER = "raycluster"
    #: One pod without Ray: its workers are processes.
    JOB = "job"


@dataclass(frozen=True, slots=True, kw_only=True)
class K8sJob:
    """What a job asks of Kubernetes.

    >>> K8sJob(name="cifar", image="cerebro:1", nodes=8, gpus=4).memory
    '16Gi'
    """

    name: str
    image: str
    kind: Kind = Kind.RAYJOB
    #: Pods that train; with Ray there is one more, which drives the run.
    nodes: int = 1
    #: Of each of them.
    gpus: int = 0
    cpus: int = 4
    memory: str = "16Gi"
    head_cpus: int = 1
    head_memory: str = "8Gi"
    namespace: str | None = None
    #: A PersistentVolumeClaim that all pods mount.
    volume: str | None = None
    mount: str = "/store"
    #: Secrets whose keys become environment variables, such as those of an object store.
    secrets: tuple[str, ...] = ()
    service_account: str | None = None
    #: Where the image or the volume has the experiment's code; else it travels with the job.
    workdir: str | None = None
    #: How often the run is taken up again after a failure.
    restarts: int = 3

    def __post_init__(self) -> None:
        _check("name", self.name, _LABEL, "small letters, digits and -", NAME_LENGTH)
        _check("image", self.image, _IMAGE, "the name of an image, such as HOST/cerebro:1", 255)
        if self.namespace is not None:
            _check("namespace", self.namespace, _LABEL, "small letters, digits and -", 63)
        names = {"volume": self.volume, "service_account": self.service_account}
        for key, value in [*names.items(), *(("secret", name) for name in self.secrets)]:
            if value is not None:
                _check(key, value, _SUBDOMAIN, "small letters, digits, - and .", 253)
        for key in ("memory", "head_memory"):
            _check(key, getattr(self, key), _MEMORY, "a number with Mi, Gi or Ti, such as 16Gi", 20)
        for key in ("mount", "workdir"):
            if getattr(self, key) is not None:
                words = "an absolute path of letters, digits, . _ and -"
                _check(key, getattr(self, key), _PATH, words, 255)
        self._check_numbers()

    def _check_numbers(self) -> None:
        least = {"nodes": 1, "cpus": 1, "head_cpus": 1, "gpus": 0, "restarts": 0}
        for key, number in least.items():
            if getattr(self, key) < number:
                raise UsageError(f"`{key} >= {number}` must hold, but got {getattr(self, key)}.")
        if self.kind is Kind.JOB and self.nodes > 1:
            raise UsageError(
                f"a job without Ray is one pod, but got nodes={self.nodes}. Leave it out, or let "
                "the trials hop between pods: --kind rayjob."
            )

    @property
    def is_ray(self) -> bool:
        return self.kind is not Kind.JOB


def make_job(section: Mapping[str, Any], given: Mapping[str, Any], name: str) -> K8sJob:
    """A job as the `launch` section of a file says, but for what was given with the command.

    >>> make_job({"kind": "job", "gpus": 1}, {"image": "cerebro:1"}, "Cifar_10").name
    'cifar-10'
    """
    said = read_section(section, "k8s")
    wanted: dict[str, Any] = {"name": make_name(name), **said}
    wanted |= {key: value for key, value in given.items() if value is not None}
    kind = wanted.pop("kind", "k8s")
    if kind not in (*Kind, "k8s"):
        raise UsageError(f"--kind must be one of {', '.join(Kind)}, but got {kind!r}.")
    if "image" not in wanted:
        raise UsageError(
            "a job must say which image its pods run, but got none. Give --image, or `image` in "
            "the launch section of the file."
        )
    secrets = tuple(wanted.pop("secrets", ()))
    return K8sJob(kind=Kind.RAYJOB if kind == "k8s" else Kind(kind), secrets=secrets, **wanted)


def make_name(text: str) -> str:
    """A name that Kubernetes takes, as near to the text as may be.

    >>> make_name("ResNet_50.v2")
    'resnet-50-v2'
    """
    name = re.sub(r"[^a-z0-9]+", "-", text.lower())[:NAME_LENGTH].strip("-")
    return name or "cerebro"


def _check(key: str, value: object, pattern: re.Pattern[str], words: str, most: int) -> None:
    if not isinstance(value, str) or not pattern.fullmatch(value) or len(value) > most:
        raise UsageError(
            f"{key} must be {words} (at most {most} characters), but got {value!r:.300}."
        )
