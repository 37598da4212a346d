"""What is decided about Ray without Ray: resources, hung actors, what travels, what is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.backend import RayBackend
from cerebro.backend.ray.cluster import check_resources
from cerebro.backend.ray.objects import INLINE_BYTES, as_bytes, as_object
from cerebro.backend.ray.parcel import own_package, pack_modules
from cerebro.backend.ray.rounds import Rounds
from cerebro.backend.ray.trouble import cause_of
from cerebro.errors import UsageError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": 0}, "`num_workers >= 1` must hold, but got num_workers=0."),
        ({"max_workers": 1.5}, "`max_workers >= 1` must hold, but got max_workers=1.5."),
        ({"resources_per_worker": 2}, "must be like {'CPU': 1, 'GPU': 1}, but got 2."),
        ({"resources_per_worker": {"CPU": -1}}, "names and numbers from 0 on, but got 'CPU': -1."),
    ],
    ids=["none", "half", "number", "negative"],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(UsageError) as caught:
        RayBackend(**options)
    assert message in str(caught.value)


def test_a_worker_with_a_gpu_has_a_core_too():
    assert check_resources({"GPU": 0.5, "big": 1}) == {"CPU": 1.0, "GPU": 0.5, "big": 1.0}


def test_a_small_state_is_too_large_to_travel_inside_of_an_answer():
    made = as_object(memoryview(b"state"))
    assert made.nbytes > INLINE_BYTES
    assert bytes(as_bytes(made, 5)) == b"state"


def test_a_large_state_is_not_copied():
    content = bytearray(INLINE_BYTES + 1)
    made = as_object(memoryview(content))
    content[0] = 7
    assert made[0] == 7


class Answering:
    """An actor that may or may not answer."""

    placed = "on a node"

    def __init__(self):
        self.asked = 0

    def ping(self):
        self.asked += 1


def test_an_actor_that_does_not_answer_is_hung_after_a_while_and_one_that_does_is_not():
    silent, lively = Answering(), Answering()
    rounds = Rounds(8.0)
    for now in (0.0, 2.0, 4.0, 6.0):
        assert rounds.go(now, [silent, lively]) == []
        rounds.hear(lively)
    assert rounds.go(8.0, [silent, lively]) == [silent]
    assert (silent.asked, lively.asked) == (1, 5)


def test_python_files_travel_and_nothing_else(tmp_path):
    program, here = tmp_path / "program", tmp_path / "here"
    files = [program / "tasks.py", program / "nets/deep.py", here / "tasks.py", here / "data.arrow"]
    files += [here / ".git/hook.py", here / "env/pyvenv.cfg", here / "env/lib.py"]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(file))
    target = tmp_path / "parcel"
    assert pack_modules(target, [program, here]) == 2
    packed = sorted(str(p.relative_to(target)) for p in target.rglob("*") if p.is_file())
    assert packed == ["nets/deep.py", "tasks.py"]
    # As Python would find them.
    assert (target / "tasks.py").read_text() == str(program / "tasks.py")


def test_this_package_is_the_one_that_travels():
    assert (own_package() / "experiment.py").is_file()
    assert own_package().name == "cerebro"
    assert isinstance(own_package(), Path)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("The actor is dead because its node has died. Node Id: 1a", "was lost: its node died"),
        ("The actor died.\n\tpid: 7\nWorker exits unexpectedly.", "was lost: Worker exits unexp"),
        ("", "was lost: Ray does not say why"),
    ],
    ids=["node", "process", "silence"],
)
def test_the_cause_of_a_loss_is_told_in_a_few_words(text, cause):
    assert cause_of(RuntimeError(text))[0].startswith(cause)
