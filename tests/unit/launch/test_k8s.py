from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from cerebro.errors import CerebroError, UsageError
from cerebro.launch.k8s import K8sJob, Kind, make_job, make_name
from cerebro.launch.k8s_commands import apply, hints
from cerebro.launch.k8s_files import adapt, collect_files
from cerebro.launch.k8s_manifest import GPU, RAY_VERSION, make_objects
from tests import kuberay
from tests.unit.launch.commands import write_command

ROOT = Path(__file__).resolve().parents[3]
FULL = {
    "name": "cifar",
    "image": "registry.example/ml/cerebro:1",
    "nodes": 8,
    "gpus": 4,
    "cpus": 16,
    "memory": "64Gi",
    "namespace": "team",
    "volume": "claim",
    "secrets": ("s3-access", "hub"),
    "service_account": "trainer",
}
FILES = {"experiment.yaml": "name: cifar\n", "tasks.py": "class Net:\n    pass\n"}
HOSTILE = [
    "x; touch PWNED",
    "$(touch PWNED)",
    "`id`",
    'a"b',
    "a'b",
    "a\nb: c",
    "a b",
    "",
    "-a",
    "{}",
]


def make(**changes) -> K8sJob:
    return K8sJob(**{**FULL, **changes})


def cluster_of(tree: dict) -> dict:
    return tree["spec"].get("rayClusterSpec", tree["spec"])


@pytest.mark.parametrize("kind", [Kind.RAYJOB, Kind.RAYCLUSTER], ids=str)
def test_kuberay_takes_what_is_made_for_it(kind):
    files, tree = make_objects(make(kind=kind), FILES)
    kuberay.check(tree)
    assert files["data"] == FILES
    assert len(list(kuberay.pod_templates(tree))) == (3 if kind is Kind.RAYJOB else 2)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "entrypoints"), "x"),
        (("spec", "rayClusterSpec", "workerGroupSpecs", 0, "replicas"), "8"),
        (("spec", "rayClusterSpec", "headGroupSpec", "rayStartParams", "num-cpus"), 0),
        (("spec", "rayClusterSpec", "authOptions", "mode"), "open"),
        (("metadata", "name"), "Cifar_10"),
    ],
    ids=lambda value: str(value[-1]) if isinstance(value, tuple) else None,
)
def test_the_schema_finds_mistakes(path, value):
    tree = make_objects(make(), FILES)[1]
    node = tree
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        kuberay.check(tree)


def test_gpus_are_told_once_and_follow_everywhere():
    spec = cluster_of(make_objects(make(gpus=3), FILES)[1])
    (group,) = spec["workerGroupSpecs"]
    resources = group["template"]["spec"]["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"]
    assert resources["limits"] == {"cpu": "16", "memory": "64Gi", GPU: "3"}
    assert group["rayStartParams"] == {"num-cpus": "16", "num-gpus": "3"}
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (8, 8, 8)
    head = spec["headGroupSpec"]
    assert GPU not in head["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert head["rayStartParams"]["num-cpus"] == "0"


def test_without_gpus_none_are_asked_for():
    job = make_objects(make(kind=Kind.JOB, nodes=1, gpus=0), FILES)[1]
    assert GPU not in str(job)


def test_a_plain_job_is_one_pod_with_a_command_of_words():
    job = make_objects(make(kind=Kind.JOB, nodes=1), FILES)[1]
    pod = job["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"] == ["cerebro", "run", "/experiment/experiment.yaml"]
    assert pod["restartPolicy"] == "Never"
    with pytest.raises(UsageError, match=r"one pod, but got nodes=2.*--kind rayjob"):
        make(kind=Kind.JOB, nodes=2)


@pytest.mark.parametrize("kind", Kind, ids=str)
def test_pods_run_as_nobody_in_particular(kind):
    nodes = 1 if kind is Kind.JOB else 2
    for template in kuberay.pod_templates(make_objects(make(kind=kind, nodes=nodes), FILES)[1]):
        spec = template["spec"]
        (container,) = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        assert spec["serviceAccountName"] == "trainer"
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["envFrom"] == [
            {"secretRef": {"name": name}} for name in ("s3-access", "hub")
        ]
        assert {"name": "store", "mountPath": "/store"} in container["volumeMounts"]


def test_ray_clusters_have_a_token():
    spec = cluster_of(make_objects(make(), FILES)[1])
    assert spec["authOptions"] == {"mode": "token"}


def test_the_version_of_ray_is_the_one_that_is_pinned():
    pins = (ROOT / "constraints.txt").read_text()
    pinned = re.search(r"^ray==(\S+)$", pins, re.MULTILINE)
    assert pinned is not None
    assert pinned[1] == RAY_VERSION


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize(
    "key", ["name", "image", "namespace", "volume", "service_account", "mount", "memory"]
)
def test_names_that_are_more_than_names_are_refused(key, value):
    with pytest.raises(UsageError, match=f"{key} must be"):
        make(**{key: value})


@pytest.mark.parametrize("value", HOSTILE)
def test_secrets_are_given_by_name(value):
    with pytest.raises(UsageError, match="secret must be"):
        make(secrets=(value,))


@pytest.mark.parametrize("value", ["/a/../b", "/a/./b", "a/b", "/a:b", "/"])
def test_paths_lead_where_they_say(value):
    with pytest.raises(UsageError, match="workdir must be an absolute path"):
        make(workdir=value)


@pytest.mark.parametrize(
    ("text", "name"),
    [("Cifar_10.v2", "cifar-10-v2"), ("x; touch PWNED", "x-touch-pwned"), ("…", "cerebro")],
    ids=["usual", "hostile", "nothing"],
)
def test_names_are_made_of_what_there_is(text, name):
    assert make_name(text) == name
    assert make_name("a" * 100) == "a" * 40


def test_what_users_write_is_carried_as_data_and_never_as_a_command():
    hostile = {"experiment.yaml": "name: '$(touch PWNED)'\nx: \"`id`\"\n", "a.py": "---\n'\t\0"}
    objects = make_objects(make(), {k: v.replace("\0", "") for k, v in hostile.items()})
    rest = str(objects[1])
    assert "PWNED" not in rest
    assert "`id`" not in rest


def test_sections_give_defaults_and_options_win():
    section = {"kind": "job", "image": "a:1", "gpus": 2, "secrets": ["s3"]}
    job = make_job(section, {"gpus": 1, "image": None}, "Toy")
    assert (job.kind, job.gpus, job.image, job.secrets, job.name) == (
        *(Kind.JOB, 1, "a:1", ("s3",)),
        "toy",
    )
    assert make_job({"kind": "k8s"}, {"image": "a"}, "x").kind is Kind.RAYJOB


def test_a_section_for_slurm_is_not_ours():
    job = make_job({"nodes": 8, "time": "30", "qos": "regular"}, {"image": "a:1"}, "toy")
    assert job.nodes == 1


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"kind": "pbs"}, "`launch.kind` must be one of"),
        ({"kind": "k8s", "node": 8}, "unknown key of launch 'node'"),
        ({"kind": "k8s", "gpus": "8"}, "`launch.gpus` must be a whole number"),
        ({"kind": "k8s", "secrets": "s3"}, "`launch.secrets` must be a list"),
        ({"kind": "k8s"}, "a job must say which image"),
        ({"kind": "k8s", "image": "a", "gpus": -1}, "`gpus >= 0` must hold"),
    ],
    ids=["kind", "key", "number", "list", "image", "least"],
)
def test_a_wrong_section_is_refused(section, message):
    with pytest.raises(UsageError) as error:
        make_job(section, {}, "toy")
    assert message in str(error.value)


def test_paths_are_below_the_volume_and_urls_stay():
    tree = {"task": "t.py:A", "data": "digits", "launch": {"nodes": 2}, "backend": "local"}
    assert adapt(tree, make(), "toy") == {
        "task": "t.py:A",
        "data": "/store/digits",
        "store": "/store/runs",
        "backend": "ray",
    }
    there = {"task": "t.py:A", "data": "s3://b/d", "store": "s3://b/r"}
    assert adapt(there, make(kind=Kind.JOB, nodes=1, volume=None), "toy") == there


def test_a_recipe_gets_a_place_for_its_run():
    tree = {"model": {}, "training": {}, "data": {"name": "dummy"}}
    assert adapt(tree, make(), "toy")["output_dir"] == "/store/runs/toy"


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"data": "digits"}, "`data` must be a URL or a path in the pods"),
        ({"data": "s3://b/d"}, "`store` must be a URL or a path in the pods"),
        ({"data": "s3://b/d", "store": "/scratch"}, "`store` must outlast the pods"),
        ({"data": "s3://k:secret@b/d"}, "`data` must hold no credentials, but s3://***@b/d may"),
        ({"data": "https://b/d?sig=secret"}, "`data` must hold no credentials"),
    ],
    ids=["relative", "default", "lost", "password", "signed"],
)
def test_places_that_pods_do_not_have_are_refused(tree, message):
    with pytest.raises(UsageError) as error:
        adapt({"task": "t.py:A", **tree}, make(volume=None), "toy")
    assert message in str(error.value)
    assert "secret" not in str(error.value).replace("--secret", "")


def test_a_store_beside_the_volume_is_refused():
    with pytest.raises(UsageError, match="must outlast the pods"):
        adapt({"task": "t.py:A", "data": "d", "store": "../elsewhere"}, make(), "toy")


def test_code_beside_the_experiment_travels_along(tmp_path):
    (tmp_path / "tasks.py").write_text("class A: ...\n")
    (tmp_path / "other.py").write_text("B = 1\n")
    (tmp_path / "notes.txt").write_text("not code")
    tree = {"task": "tasks.py:A", "name": "toy"}
    found = collect_files(tmp_path / "my toy.yaml", tree, make())
    assert sorted(found) == ["experiment.yaml", "other.py", "tasks.py"]
    assert yaml.safe_load(found["experiment.yaml"]) == tree


def test_code_in_the_image_stays_there(tmp_path):
    job = make(workdir="/job")
    tree = adapt({"task": "code/tasks.py:A", "data": "d"}, job, "toy")
    assert tree["task"] == "/job/code/tasks.py:A"
    assert sorted(collect_files(tmp_path / "a.yaml", tree, job)) == ["experiment.yaml"]


def test_too_much_code_is_for_the_image(tmp_path):
    (tmp_path / "tasks.py").write_text("#" * 1_000_000)
    with pytest.raises(UsageError, match=r"at most 900000 bytes.*--workdir"):
        collect_files(tmp_path / "a.yaml", {"task": "tasks.py:A"}, make())
    with pytest.raises(UsageError, match=r"must lie beside a.yaml.*--workdir"):
        collect_files(tmp_path / "a.yaml", {"task": "code/tasks.py:A"}, make())


def test_a_manifest_goes_to_kubectl_as_it_is(path, tmp_path):
    write_command(path, "kubectl", 'echo "$@"; while read -r line; do echo "got $line"; done')
    assert apply("kind: Job\n", namespace="team").splitlines() == [
        "apply --namespace=team --filename=-",
        "got kind: Job",
    ]


def test_a_failure_of_kubectl_is_told(path):
    write_command(path, "kubectl", 'echo "no matches for kind RayJob" >&2; exit 1')
    with pytest.raises(CerebroError, match="no matches for kind RayJob"):
        apply("", namespace=None)


def test_without_kubectl_it_is_said_what_is_missing(path):
    with pytest.raises(UsageError, match=r"`kubectl` must be on the PATH.*--dry-run"):
        apply("", namespace=None)


def test_commands_for_what_comes_next():
    assert hints(make())["log"][-2:] == ["job/cifar", "--namespace=team"]
    assert "exec" in hints(make(kind=Kind.RAYCLUSTER))["train"]
