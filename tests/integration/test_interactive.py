"""Tasks that live where they were typed: a script, a prompt, a notebook cell."""

from __future__ import annotations

import subprocess
import sys

from tests.integration.project import DEADLINE_S, Project, environment

TASK = """\
import cerebro
from cerebro.testing.toy import ToyTask

SCALE = 2


class Typed(ToyTask):
    def __init__(self):
        super().__init__(classes=SCALE + 1)

"""
FIT = """\
result = cerebro.Experiment(name="typed", data="data", store="runs", workers=2).run_fit(
    Typed(), {"lr": [0.1, 0.01]}, num_epochs=1, batch_size=16, metric="val_loss", mode="min",
    progress=False)
print(result.best.id, result.document.task, result.load("t0000").weight.shape)
"""
EXPECTED = "__main__:Typed (5, 3)"


def run_python(project: Project, *arguments: str, typed: str = "") -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=project.folder,
        env=environment(),
        input=typed,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_script_without_a_main_guard_runs_once(project):
    project.write("script.py", TASK + 'print("begin")\n' + FIT)
    output = run_python(project, "script.py")
    assert output.count("begin") == 1
    assert EXPECTED in output


def test_a_task_typed_into_standard_input_runs(project):
    assert EXPECTED in run_python(project, "-", typed=TASK + FIT)


def test_a_task_typed_at_a_prompt_runs(project):
    """`python -i` reads statement by statement, as a person types them."""
    assert EXPECTED in run_python(project, "-i", "-q", typed=f"{TASK}\n{FIT}\n")


def test_a_task_of_a_notebook_cell_runs(project):
    """A notebook runs each cell as code of `__main__` that is in no file."""
    project.write(
        "notebook.py",
        "import code, __main__\n"
        "notebook = code.InteractiveInterpreter(vars(__main__))\n"
        "for cell in (TASK, FIT):\n"
        "    notebook.runcode(compile(cell, '<cell>', 'exec'))\n".replace(
            "(TASK, FIT)", repr((TASK, FIT))
        ),
    )
    assert EXPECTED in run_python(project, "notebook.py")


def test_a_run_of_a_script_is_read_from_a_prompt(project):
    project.write("script.py", TASK + FIT)
    first = run_python(project, "script.py")
    assert run_python(project, "-", typed=TASK + FIT) == first


def test_changed_code_of_a_script_can_be_noticed(project):
    """The digest of its source is what a resume compares."""
    project.write("script.py", TASK + FIT + "print(len(result.document.task_digest))\n")
    assert run_python(project, "script.py").splitlines()[-1] == "64"


def test_a_torch_task_of_a_script_runs(project):
    project.write(
        "script.py",
        """\
import torch
import cerebro

class Line(cerebro.Task):
    def model(self, params):
        return torch.nn.Linear(5, 3)
    def optimizer(self, model, params):
        return torch.optim.SGD(model.parameters(), lr=params["lr"])
    def loss(self, model, batch, params):
        return torch.nn.functional.cross_entropy(model(batch["x"].float()), batch["y"])

result = cerebro.Experiment(name="line", data="data", store="runs", workers=1).run_fit(
    Line(), {"lr": [0.1]}, num_epochs=1, batch_size=16, metric="val_loss", mode="min",
    progress=False)
print(result.load("t0000"))
""",
    )
    assert "Linear(in_features=5, out_features=3" in run_python(project, "script.py")
