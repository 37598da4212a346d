"""What KubeRay's operator takes: the fields of its objects, as JSON schemas that allow no others.

Written from the documented API of `ray.io/v1` (KubeRay 1.5 and newer). Pod templates are those of
Kubernetes itself and are checked with its own schemas where these are at hand: `pod_templates`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number", "minimum": 0}
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
LABEL: Schema = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
#: Left to Kubernetes' own schema.
POD: Schema = {"type": "object", "required": ["spec"]}
OTHER: Schema = {"type": "object"}


def one_of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def fields(required: str, **known: Schema) -> Schema:
    return {
        "type": "object",
        "properties": known,
        "required": required.split(),
        "additionalProperties": False,
    }


METADATA = fields(
    "name", name={**LABEL, "maxLength": 47}, namespace=LABEL, labels=TEXTS, annotations=TEXTS
)
MANAGERS = one_of("ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue")
WORKERS = fields(
    "groupName minReplicas maxReplicas rayStartParams template",
    groupName=LABEL,
    replicas=COUNT,
    minReplicas=COUNT,
    maxReplicas=COUNT,
    idleTimeoutSeconds=COUNT,
    numOfHosts=COUNT,
    rayStartParams=TEXTS,
    scaleStrategy=OTHER,
    suspend=FLAG,
    template=POD,
)
HEAD = fields(
    "rayStartParams template",
    enableIngress=FLAG,
    headService=OTHER,
    rayStartParams=TEXTS,
    serviceType=one_of("ClusterIP", "NodePort", "LoadBalancer"),
    template=POD,
)
CLUSTER = fields(
    "headGroupSpec",
    authOptions=fields("mode", mode=one_of("disabled", "token")),
    autoscalerOptions=OTHER,
    enableInTreeAutoscaling=FLAG,
    gcsFaultToleranceOptions=OTHER,
    headGroupSpec=HEAD,
    headServiceAnnotations=TEXTS,
    managedBy=MANAGERS,
    rayVersion=TEXT,
    suspend=FLAG,
    workerGroupSpecs={"type": "array", "items": WORKERS},
)
JOB = fields(
    "",
    activeDeadlineSeconds=COUNT,
    backoffLimit=COUNT,
    clusterSelector=TEXTS,
    entrypoint=TEXT,
    entrypointNumCpus=NUMBER,
    entrypointNumGpus=NUMBER,
    entrypointResources=TEXT,
    jobId=TEXT,
    managedBy=MANAGERS,
    metadata=TEXTS,
    rayClusterSpec=CLUSTER,
    runtimeEnvYAML=TEXT,
    shutdownAfterJobFinishes=FLAG,
    submissionMode=one_of("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"),
    submitterConfig=fields("", backoffLimit=COUNT),
    submitterPodTemplate=POD,
    suspend=FLAG,
    ttlSecondsAfterFinished=COUNT,
)


def kind(name: str, spec: Schema) -> Schema:
    return fields(
        "apiVersion kind metadata spec",
        apiVersion=one_of("ray.io/v1"),
        kind=one_of(name),
        metadata=METADATA,
        spec=spec,
    )


KINDS = {"RayJob": kind("RayJob", JOB), "RayCluster": kind("RayCluster", CLUSTER)}


def check(tree: Mapping[str, Any]) -> None:
    """Raise jsonschema's ValidationError for an object that the operator would not take."""
    jsonschema.Draft202012Validator(KINDS[tree["kind"]]).validate(tree)


def pod_templates(tree: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """All pod templates in an object, however deep."""
    for key, value in tree.items():
        if key in ("template", "submitterPodTemplate"):
            yield value
        elif isinstance(value, Mapping):
            yield from pod_templates(value)
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, Mapping):
                    yield from pod_templates(each)
