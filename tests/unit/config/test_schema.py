from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.config.schema import load_experiment
from cerebro.search.domain import Choice, Constant, LogUniform
from cerebro.types import Mode
from tests.unit.config.task_files import FULL, SHORT, failure, load, make_project


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_project()


def changed(line: int, text: str, whole: str = FULL) -> str:
    lines = whole.splitlines()
    lines[line - 1] = text
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "value"), [("auto", "auto"), ("probe", "probe"), ("false", False), ("7", 7)]
)
def test_stacks_are_asked_for_in_four_ways(text: str, value: object) -> None:
    assert load(SHORT, f"stack={text}").stack == value
    assert load(SHORT).stack == "auto"


@pytest.mark.parametrize("text", ["true", "0", "-3", "yes please", "1.5", "[2]"])
def test_and_in_no_other(text: str) -> None:
    message = failure(SHORT, f"stack={text}")
    assert "stack must be auto, probe, false or a number of at least 1" in message


def test_every_key_is_read(tmp_path: Path) -> None:
    config = load(FULL)
    space = config.space
    assert config.model_dump(exclude={"space"}) == {
        "name": "digits",
        "task": f"{tmp_path}/tasks.py:Digits",
        "data": f"{tmp_path}/data/digits",
        "store": f"{tmp_path}/runs",
        "backend": "local",
        "workers": 2,
        "threads_per_worker": 1,
        "seed": 0,
        "epochs": 5,
        "batch_size": 32,
        "global_batch_size": None,
        "parallel": "mop",
        "workers_per_trial": None,
        "search": "random",
        "num_trials": 20,
        "metric": ["val_accuracy"],
        "mode": [Mode.MAX],
        "checkpoint": "off",
        "keep_top": 3,
        "device": "cpu",
        "stack": 4,
        "same_order": True,
        "stopper": {"name": "patience", "patience": 2},
        "goal": {"target": 0.97},
        "budget": "30m",
        "concurrent": 8,
        "seeds": 3,
        "folds": None,
        "constraints": {"val_seconds": 2.5},
        "warm_start": [{"lr": 0.1, "width": 32, "wd": 1e-3, "dropout": 0.1}],
        "learn_from": f"{tmp_path}/runs/earlier",
        "launch": {"nodes": 8},
    }
    assert list(space) == ["lr", "width", "wd", "dropout"]
    assert space["lr"] == Choice([0.1, 0.01])
    assert space["wd"] == LogUniform(1e-6, 1e-2)
    assert space["dropout"] == Constant(0.1)


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    config = load(SHORT)
    left_out = (
        "backend",
        "workers",
        "threads_per_worker",
        "seed",
        "search",
        "checkpoint",
        "device",
    )
    assert [getattr(config, key) for key in left_out] == [
        "local", None, 1, 0, "grid", "visit", "auto",
    ]  # fmt: skip
    assert config.store == f"{tmp_path}/runs"


def test_paths_are_relative_to_the_file_not_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "experiment.yaml").write_text(SHORT)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = load_experiment("../experiment.yaml", ["store=../runs"])
    assert config.data == f"{tmp_path}/data/digits"
    assert config.store == f"{tmp_path.parent}/runs"


def test_a_store_url_stays_as_it_is() -> None:
    assert load(SHORT, "store=s3://bucket/runs").store == "s3://bucket/runs"


def test_loading_writes_nothing(tmp_path: Path) -> None:
    load(FULL)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "data", "experiment.yaml", "runs", "tasks.py",
    ]  # fmt: skip


def test_search_may_be_a_mapping() -> None:
    config = load(SHORT + "search: {name: random, trials: 7}\n")
    assert (config.search, config.num_trials) == ("random", 7)


def test_a_search_may_have_options() -> None:
    config = load(SHORT + "search: {name: tpe, trials: 50, startup_trials: 10}\n")
    assert config.search == {"name": "tpe", "startup_trials": 10}
    assert config.num_trials == 50


def test_two_metrics_have_two_modes() -> None:
    text = SHORT.replace("val_loss", "[val_loss, size]").replace("mode: min", "mode: [min, min]")
    config = load(text, "search={name: nsga2, trials: 8}")
    assert (config.metric, config.mode) == (["val_loss", "size"], [Mode.MIN, Mode.MIN])


def test_the_goal_may_say_how_many_epochs_there_are() -> None:
    text = SHORT.replace("epochs: 5", "goal: {target: 0.1, max_epochs: 40}")
    assert load(text).epochs is None


def test_a_stopper_may_say_how_many_trials_there_are() -> None:
    text = SHORT + "search: random\nstopper: hyperband\n"
    assert load(text).num_trials is None


def test_what_is_asked_for_is_what_the_file_says() -> None:
    request = load(FULL).to_request()
    assert (request.stopper, request.goal) == (
        {"name": "patience", "patience": 2},
        {"target": 0.97},
    )
    assert (request.budget, request.concurrent, request.seeds) == ("30m", 8, 3)
    assert (request.metric, request.mode) == (["val_accuracy"], ["max"])
    assert (request.constraints, request.folds) == ({"val_seconds": 2.5}, 0)
    assert request.warm_start == [{"lr": 0.1, "width": 32, "wd": 1e-3, "dropout": 0.1}]


@pytest.mark.parametrize(
    ("line", "text", "message"),
    [
        (9, "epochz: 5", "unknown key 'epochz'. Known: name, task, data, "),
        (9, "epochz: 5", "Did you mean 'epochs'?"),
        (6, "workers: two", "`workers` must be an integer, but got 'two' (a string)."),
        (6, "workers: 2.0", "`workers` must be an integer, but got 2.0 (a number)."),
        (6, "workers: true", "`workers` must be an integer, but got True (a boolean)."),
        (6, "workers: 0", "`workers` must be greater than or equal to 1, but got 0"),
        (8, "seed: -1", "`seed` must be greater than or equal to 0, but got -1 (an integer)."),
        (9, "epochs: [5]", "`epochs` must be an integer, but got [5] (a list)."),
        (9, "epochs:", "the key 'epochs' is missing."),
        (1, "name: 7", "`name` must be a string, but got 7 (an integer)."),
        (1, "name: ../x", "`name`: a run's name must start with a letter or digit"),
        (1, 'name: "x\\n"', "`name`: a run's name must start with a letter or digit"),
        (1, "name: ''", "`name`: a run's name must start with a letter or digit"),
        (13, "metric: ''", "`metric` must not be empty"),
        (14, "mode: maximum", "`mode` must be 'max' or 'min', but got 'maximum'"),
        (15, "checkpoint: vist", "`checkpoint` must be 'visit', 'epoch' or 'off', but got 'vist'"),
        (5, "backend: rey", "unknown backend 'rey'. Known: inline, local, ray, spark."),
        (5, "backend: locl", "Did you mean 'local'?"),
        (2, "task: Digits", "a class is named `module:Class` or `file.py:Class`"),
        (2, "task: taks.py:Digits", "the task 'taks.py:Digits' needs the file "),
        (3, "data: data/digit", "the dataset directory "),
        (3, 'data: "a\\0b\\n"', "a\\x00b\\n' does not exist."),
        (11, "search: rnadom", "unknown search 'rnadom'. Known: grid, nsga2, random, sobol, tpe."),
        (11, "search: grid", "num_trials belongs to random search"),
        (11, "search: [grid]", "`search` must be a name, a mapping with a name"),
        (11, "search: {nam: grid}", "unknown key of search 'nam'. Known: name, trials."),
        (11, "search: {name: random, trials: 3}", "`search.trials` and `num_trials`"),
        (12, "num_trials: 0", "`num_trials` must be greater than or equal to 1"),
        (18, "  a b: 1", "`space.a b`: a parameter's name must start with"),
        (20, "  wd: {loguniform: [1, 0]}", "`space.wd`: `low < high` must hold"),
        (20, "  wd: {lognormal: [1, 0]}", "`space.wd`: unknown domain 'lognormal'."),
        (14, "mode: [max, min]", "each metric needs a mode, but got"),
        (25, "stopper: ahsa", "unknown stopper 'ahsa'."),
        (25, "stopper: {eta: 4}", "a stopper as a mapping needs a name, one of asha, "),
        (25, "stopper: asha", "stopper 'asha' weighs trials against each other"),
        (25, "stopper: 5", "a stopper is a name ("),
        (25, "stopper: {name: asha, etaa: 4}", "unknown argument of stopper 'asha' 'etaa'."),
        (25, "stopper: {name: asha, grace: 9}", "`grace < epochs` must hold"),
        (25, "stopper: [asha, {name: patience, patience: 0}]", "`patience >= 1` must hold"),
        (26, "goal: 0.97", "`goal` must be a mapping, but got 0.97 (a number)."),
        (26, "goal: {max_epochs: 4}", "stopper 'goal' needs target."),
        (26, "goal: {target: 0.9, max_epochs: 4}", "`num_epochs <= goal.max_epochs` must hold"),
        (26, "goal: {target: high}", "`target` must be a finite number, but got target='high'."),
        (27, "budget: 30", "a budget is a time such as '30m'"),
        (27, "budget: 30x", "a time must be a positive number of seconds or text such as"),
        (27, "budget: {tiem: 30m}", "unknown budget 'tiem'."),
        (28, "concurrent: 0", "`concurrent` must be greater than or equal to 1"),
        (29, "seeds: 0", "`seeds` must be greater than or equal to 1"),
        (29, "folds: 1", "`folds` must be greater than or equal to 2"),
        (28, "folds: 2", "a configuration is repeated with seeds or with folds"),
        (30, "constraints: {size: big}", "`constraints.size` must be a number, but got 'big'"),
        (30, "constraints: {size: .nan}", "`constraints.size` must be a finite number"),
        (31, "warm_start: {lr: 0.1}", "`warm_start` must be a list"),
        (31, "warm_start: [{lr: 0.1}]", "warm_start[0] must have a value for every parameter"),
        (32, "learn_from: runs/erlier", "a run to learn from must have a run.json, but '"),
    ],
)
def test_a_wrong_line_is_named(line: int, text: str, message: str) -> None:
    told = failure(changed(line, text))
    assert told.startswith(f"experiment.yaml:{line}: ")
    assert message in told


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("stopper:\n  name: asha\n  eta: 1", 10),
        ("stopper:\n  name: asha\n  etaa: 4", 10),
        ("stopper:\n  eta: 4\n  name: ahsa", 10),
        ("stopper:\n- asha\n- name: patience\n  patience: 0", 11),
        ("goal:\n  metric: val_size\n  target: 1", 9),
        ("search:\n  name: tpe\n  trials: 3\n  startup_trials: 0", 11),
        ("search:\n  name: tpe\n  trials: 3\n  startup_trialz: 3", 11),
        (
            "search: {name: sobol, trials: 3}\nwarm_start:\n- {lr: 1, batch_size: 32}\n- {lrr: 1}",
            11,
        ),
        ("budget:\n  time: 30m\n  epochs: -1", 8),
    ],
)
def test_the_line_within_a_part_is_named(text: str, line: int) -> None:
    assert failure(f"{SHORT}{text}\n").startswith(f"experiment.yaml:{line}: ")


def test_a_batch_size_in_two_places_is_refused() -> None:
    message = failure(changed(31, "", changed(20, "  batch_size: 32")))
    assert message == (
        "experiment.yaml:10: `batch_size` or `global_batch_size` must be given once, in the space "
        "or beside it, but got batch_size and space.batch_size."
    )


@pytest.mark.parametrize("key", ["name", "task", "data", "epochs", "metric", "mode", "space"])
def test_a_missing_key_is_named(key: str) -> None:
    lines = [line for line in SHORT.splitlines() if not line.startswith(key)]
    assert failure("\n".join(lines)) == f"experiment.yaml: the key '{key}' is missing."


def test_random_search_without_a_number_of_trials_is_refused() -> None:
    message = failure(changed(12, "", FULL))
    assert message.startswith("experiment.yaml:11: search='random' needs num_trials")


def test_a_continuous_domain_in_a_default_grid_is_placed_at_the_space() -> None:
    message = failure(SHORT.replace("lr: [0.1, 0.01]", "lr: {uniform: [0, 1]}"))
    assert message.startswith("experiment.yaml:7: grid search needs listed values, but 'lr'")


def test_no_batch_size_at_all_is_refused() -> None:
    message = failure(SHORT.replace(", batch_size: [32]", ""))
    assert message == (
        "experiment.yaml: `batch_size` or `global_batch_size` must be given once, in the space or "
        "beside it, but got neither."
    )


def test_several_problems_are_counted_and_the_first_line_is_told() -> None:
    text = changed(14, "mode: best", changed(6, "workers: x", changed(9, "epochs: y")))
    message = failure(text)
    assert message.startswith("experiment.yaml:6: `workers`")
    assert message.endswith("(2 more problems.)")


@pytest.mark.parametrize("text", ["", "[1, 2]\n", "5\n"])
def test_a_file_that_is_no_mapping_is_refused(text: str) -> None:
    assert "an experiment file must be a mapping of keys to values, but got" in failure(text)


def test_a_config_cannot_be_changed() -> None:
    config = load(SHORT)
    with pytest.raises(ValueError, match="frozen"):
        config.epochs = 3
