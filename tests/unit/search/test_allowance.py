from __future__ import annotations

import pytest

from cerebro.errors import UsageError
from cerebro.search.allowance import Allowance, allowance_of


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "gpu", "gpu:0", "mps"])
def test_other_devices_than_the_cpu_are_refused_where_it_alone_is_allowed(device: str) -> None:
    Allowance(devices="cpu").check_device("cpu")
    with pytest.raises(UsageError) as caught:
        Allowance(devices="cpu").check_device(device)
    assert str(caught.value) == (
        f"the goal allows cpu only, but got {device!r}. Change device or goal.devices."
    )


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "gpu", "gpu:0"])
def test_all_names_of_a_gpu_are_allowed_where_gpus_are(device: str) -> None:
    Allowance(devices="cuda").check_device(device)
    for other in ("cpu", "mps"):
        with pytest.raises(UsageError, match=f"the goal allows cuda only, but got '{other}'"):
            Allowance(devices="cuda").check_device(other)


def test_as_many_machines_as_it_says_are_allowed() -> None:
    Allowance(max_nodes=3).check_nodes(3)
    with pytest.raises(UsageError, match=r"must hold, but got 4 nodes and max_nodes=3\."):
        Allowance(max_nodes=3).check_nodes(4)


def test_gpus_may_be_asked_for_unless_the_cpu_alone_is_allowed() -> None:
    Allowance(devices="cuda").check_gpus(4, "gpus")
    Allowance(devices="cpu").check_gpus(0, "gpus")
    with pytest.raises(UsageError, match=r"cpu only, but got gpus=4\. Leave gpus out"):
        Allowance(devices="cpu").check_gpus(4, "gpus")


@pytest.mark.parametrize("goal", [None, {}, {"target": 1, "devices": None, "max_nodes": None}])
def test_a_goal_that_says_nothing_allows_everything(goal: object) -> None:
    allowed = allowance_of(goal)
    allowed.check_device("cuda")
    allowed.check_nodes(1000)
    allowed.check_gpus(8, "gpus")


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ({"devices": "tpu"}, "`devices` of a goal must be cpu or cuda, but got devices='tpu'."),
        ({"devices": ["cpu"]}, "must be cpu or cuda, but got devices=['cpu']."),
        ({"max_nodes": 0}, "`max_nodes >= 1` must hold, but got max_nodes=0."),
        ({"max_nodes": "3"}, "`max_nodes` must be a whole number, but got max_nodes='3'."),
        ({"max_nodes": True}, "`max_nodes` must be a whole number, but got max_nodes=True."),
    ],
)
def test_wrong_values_are_refused(goal: object, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        allowance_of(goal)
    assert message in str(caught.value)
