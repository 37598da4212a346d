"""What `cerebro launch k8s` makes, held against the schemas of Kubernetes itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests import kuberay
from tests.cluster.ranks import cerebro, make_project

validate = pytest.importorskip("kubernetes_validate").validate

#: The oldest that has all that is used, and a recent one.
VERSIONS = ("1.29", "1.34")
GIVEN = (
    *("--image", "registry.example/ml/cerebro:1", "--namespace", "team", "--volume", "claim"),
    *("--secret", "s3-access", "--secret", "hub", "--service-account", "trainer"),
)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("k8s"), parallel="mop")


def show(experiment: Path, *words: str) -> list[dict]:
    """The objects that are printed."""
    done = subprocess.run(
        cerebro("launch", "k8s", experiment, *GIVEN, "--dry-run", *words),
        capture_output=True,
        text=True,
        check=True,
    )
    return list(yaml.safe_load_all(done.stdout))


def wrap(template: dict) -> dict:
    """A pod template as an object of its own."""
    name = {"name": "checked"}
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": name, "template": template}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "words",
    [
        ("--kind", "rayjob", "--nodes", "8", "--gpus", "4"),
        ("--kind", "raycluster", "--nodes", "2"),
        ("--kind", "job", "--gpus", "1"),
        ("--kind", "job", "--workdir", "/work"),
    ],
    ids=["rayjob", "raycluster", "job", "workdir"],
)
def test_kubernetes_takes_every_object(experiment, words, version):
    files, made = show(experiment, *words)
    validate(files, version, strict=True)
    if made["kind"] == "Job":
        validate(made, version, strict=True)
    else:
        kuberay.check(made)
    templates = list(kuberay.pod_templates(made))
    assert templates
    for template in templates:
        validate(wrap(template), version, strict=True)
    assert yaml.safe_load(files["data"]["experiment.yaml"])["data"] == "/store/data"


def test_a_field_that_is_unknown_is_found():
    broken = wrap({"spec": {"containers": [{"name": "a", "image": "b", "imagee": "c"}]}})
    with pytest.raises(Exception, match="imagee"):
        validate(broken, VERSIONS[-1], strict=True)
