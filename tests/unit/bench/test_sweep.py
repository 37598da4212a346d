"""Which settings are compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cerebro.bench.conduct import Bench, check_hosts
from cerebro.bench.nodes import Place, master_address, node_command
from cerebro.bench.subject import Subject, open_subject
from cerebro.bench.sweep import Rule, Setting, Sweep, parse_counts, parse_sweep
from cerebro.config.files import load_document
from cerebro.errors import UsageError


def test_several_processes_are_compared_at_both_rules_and_one_process_once() -> None:
    settings = Sweep(nodes=(1, 2, 3), procs=(1, 2), batches=(64,)).settings()
    ranks = sorted((setting.ranks, str(setting.rule)) for setting in settings)
    assert ranks[0] == (1, "global")
    assert len(settings) == 1 + 2 * 5
    assert len({setting.key for setting in settings}) == len(settings)


def test_a_fixed_global_batch_is_shared_and_a_fixed_batch_of_each_grows() -> None:
    shared = Setting(nodes=3, batch=64, rule=Rule.GLOBAL)
    each = Setting(nodes=3, batch=64, rule=Rule.RANK)
    assert (shared.global_batch, each.global_batch) == (64, 192)


def test_saving_is_compared_on_the_first_nodes_and_processes_only() -> None:
    settings = Sweep(nodes=(1, 2), batches=(64,), checkpoint=True).settings()
    assert [(s.nodes, s.checkpoint) for s in settings] == [
        (1, False),
        (1, True),
        (2, False),
        (2, False),
    ]


def test_repeats_of_one_setting_are_far_apart() -> None:
    settings = Sweep(batches=(32, 64), repeats=2).settings()
    assert [(s.batch, s.repeat) for s in settings] == [(32, 0), (64, 0), (32, 1), (64, 1)]


@pytest.mark.parametrize("text", ["batch_size", "=3", "lr=0.1,", "batch_size=big", "batch_size=0"])
def test_a_wrong_sweep_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--sweep"):
        parse_sweep([text])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["lr=1,2", "lr=3"], "has lr twice"),
        (["batch_size=8", "training.batch_size=16"], "has training.batch_size twice"),
        (["training.global_batch_size=8,16"], "swept as batch_size=V,V; with --batch global"),
    ],
    ids=["key", "batch", "global batch"],
)
def test_values_that_another_one_would_replace_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_sweep(texts)


@pytest.mark.parametrize("text", ["", "0", "1,,2", "two"])
def test_wrong_counts_are_refused_with_what_was_given(text: str) -> None:
    with pytest.raises(UsageError, match=f"--nodes must be whole numbers.*got {text!r}"):
        parse_counts(text, "--nodes")


def test_too_few_hosts_are_refused() -> None:
    with pytest.raises(UsageError, match="got 1 hosts for 3 nodes"):
        check_hosts(["a"], [1, 3])


def test_hosts_of_which_some_are_the_same_machine_are_refused() -> None:
    with pytest.raises(UsageError, match=r"all different, or one machine .* got a,a,b"):
        check_hosts(["a", "a", "b"], [1, 3])
    check_hosts(["a", "a", "a"], [1, 3])
    check_hosts(["a", "b"], [1, 2])


def write(folder: Path, text: str) -> Path:
    path = folder / "file.yaml"
    path.write_text(text)
    return path


RECIPE = "model: {name: cnn}\ntraining: {batch_size: 64}\n"
EXPERIMENT = "name: a\nbatch_size: 32\nspace: {lr: [0.1]}\n"


def test_a_recipe_is_changed_by_its_sections(tmp_path: Path) -> None:
    subject = open_subject(write(tmp_path, RECIPE), ["optimizer.lr=0"])
    assert (subject.is_recipe, subject.batch) == (True, 64)
    setting = Setting(nodes=2, batch=64, rule=Rule.RANK, checkpoint=True)
    assert subject.overrides(setting, Path("/out/a")) == [
        "optimizer.lr=0",
        "training.global_batch_size=null",
        "training.batch_size=64",
        "checkpoint=epoch",
        "parallel=ddp",
        "output_dir=/out/a",
    ]


def test_an_experiment_file_of_one_process_has_one_worker(tmp_path: Path) -> None:
    subject = open_subject(write(tmp_path, EXPERIMENT), [])
    assert subject.batch == 32
    assert subject.overrides(Setting(batch=16), Path("/out/a")) == [
        "batch_size=16",
        "workers=1",
        "store=/out",
        "name=a",
    ]


@pytest.mark.parametrize(
    ("given", "changes", "expected"),
    [
        ((), (), ["optimizer.lr_scaling=none", "training.lr_warmup_epochs=0"]),
        (["optimizer.lr_scaling=sqrt"], (), ["training.lr_warmup_epochs=0"]),
        ((), (("training.lr_warmup_epochs", "2"),), ["optimizer.lr_scaling=none"]),
    ],
    ids=["nothing said", "given", "swept"],
)
def test_the_same_batches_are_trained_at_the_same_rates(
    given: list[str], changes: tuple[tuple[str, str], ...], expected: list[str], tmp_path: Path
) -> None:
    subject = open_subject(write(tmp_path, RECIPE), given).compared([Setting(nodes=2, batch=64)])
    added = ("optimizer.lr_scaling=none", "training.lr_warmup_epochs=0")
    for nodes in (1, 2):
        found = subject.overrides(Setting(nodes=nodes, batch=64, changes=changes), Path("/out/a"))
        assert [text for text in found if text in added] == expected
    each = Setting(nodes=2, batch=64, rule=Rule.RANK, changes=changes)
    assert not set(added) & set(subject.overrides(each, Path("/out/a")))


def test_one_process_is_trained_as_several_are_that_have_a_batch_each(tmp_path: Path) -> None:
    each = Setting(nodes=2, batch=64, rule=Rule.RANK)
    subject = open_subject(write(tmp_path, RECIPE), []).compared([Setting(batch=64), each])
    assert not [t for t in subject.overrides(Setting(batch=64), Path("/out/a")) if "lr_" in t]


def test_one_process_alone_is_trained_as_the_file_says(tmp_path: Path) -> None:
    subject = open_subject(write(tmp_path, RECIPE), [])
    assert not [t for t in subject.overrides(Setting(batch=64), Path("/out/a")) if "lr_" in t]


@pytest.mark.parametrize(
    ("given", "batch"),
    [
        ([], 64),
        (["training.global_batch_size=256"], 256),
        (["training.batch_size=null", "training.global_batch_size=256"], 256),
        (["training.global_batch_size=256", "training.batch_size=8"], 8),
    ],
    ids=str,
)
def test_a_batch_size_that_is_given_wins_over_the_file(
    given: list[str], batch: int, tmp_path: Path
) -> None:
    assert open_subject(write(tmp_path, RECIPE), given).batch == batch


def test_where_several_processes_are_compared_nothing_is_stacked(tmp_path: Path) -> None:
    subject = open_subject(write(tmp_path, EXPERIMENT), []).compared([Setting(nodes=2)])
    for nodes in (1, 2):
        assert "stack=false" in subject.overrides(Setting(nodes=nodes), Path("/out/a"))


def test_what_the_user_says_about_workers_holds(tmp_path: Path) -> None:
    subject = open_subject(write(tmp_path, EXPERIMENT), ["workers=2"])
    assert "workers=1" not in subject.overrides(Setting(), Path("/out/a"))


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("change", [("workers", "2"), ("parallel", "mop"), ("stack", "4")])
def test_what_is_swept_is_what_is_trained(
    nodes: int, change: tuple[str, str], tmp_path: Path
) -> None:
    subject = open_subject(write(tmp_path, RECIPE), []).compared([Setting(nodes=2)])
    found = subject.overrides(Setting(nodes=nodes, batch=64, changes=(change,)), Path("/out/a"))
    values = [text for text in found if text.startswith(f"{change[0]}=")]
    assert values == ["=".join(change)]


def test_a_batch_size_of_the_space_is_changed_there(tmp_path: Path) -> None:
    text = "name: a\nspace: {lr: [0.1], batch_size: [16, 32]}\n"
    subject = open_subject(write(tmp_path, text), [])
    assert "space.batch_size=8" in subject.overrides(Setting(batch=8), Path("/out/a"))
    assert subject.batch is None


def test_a_batch_of_all_processes_takes_the_place_of_one_of_each_in_the_space(
    tmp_path: Path,
) -> None:
    text = "name: a\nspace: {lr: [0.1, 1.0e-5], wd: {loguniform: [1e-6, 1]}, batch_size: 16}\n"
    subject = open_subject(write(tmp_path, text), ["space.wd=0"])
    assert subject.batch == 16
    setting = Setting(nodes=2, batch=16, changes=(("space.lr", "0.5"),))
    found = subject.overrides(setting, Path("/out/a"))
    tree = load_document(subject.path, found).tree
    assert isinstance(tree, dict)
    assert tree["space"] == {"lr": 0.5, "wd": 0, "global_batch_size": 16}
    each = subject.overrides(replace(setting, rule=Rule.RANK), Path("/out/a"))
    assert "space.batch_size=16" in each


def test_a_batch_of_all_processes_in_the_space_becomes_one_of_each(tmp_path: Path) -> None:
    subject = open_subject(write(tmp_path, "name: a\nspace: {global_batch_size: 16}\n"), [])
    assert subject.batch == 16
    each = Setting(nodes=2, batch=16, rule=Rule.RANK)
    assert 'space={"batch_size": 16}' in subject.overrides(each, Path("/out/a"))
    assert "space.global_batch_size=16" in subject.overrides(
        replace(each, rule=Rule.GLOBAL), Path("/out/a")
    )


@pytest.mark.parametrize("values", [("-1", "1"), ("1e-3", "1e+3"), ("[1]", "1"), ("a b", "a-b")])
def test_settings_that_differ_have_names_that_differ(values: tuple[str, str]) -> None:
    keys = {Setting(changes=(("optimizer.lr", value),)).key for value in values}
    assert len(keys) == 2
    assert Setting(changes=(("space.visit_s", "0.4"),)).key == "n1-p1-space.visit_s-0.4-r0"


def test_what_was_measured_otherwise_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = open_subject(write(tmp_path, EXPERIMENT), [])
    bench = Bench(subject=subject, out=tmp_path / "out")
    before = bench.digest
    assert Bench(subject=subject, out=tmp_path / "elsewhere").digest == before
    assert replace(bench, hosts=("a", "b")).digest != before
    assert replace(bench, interval_s=0.5).digest != before
    monkeypatch.setattr("cerebro.bench.conduct.__version__", "99")
    assert bench.digest != before


@pytest.mark.parametrize(("what", "value"), [("_processor", "another"), ("available_cores", 999)])
def test_what_another_machine_took_is_measured_again(
    what: str, value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = open_subject(write(tmp_path, EXPERIMENT), [])
    here = Bench(subject=subject, out=tmp_path / "out")
    there = replace(here, hosts=("a", "b"))
    before = here.digest, there.digest
    monkeypatch.setattr(f"cerebro.bench.conduct.{what}", lambda: value)
    assert here.digest != before[0]
    # Where hosts are named, it is those that train.
    assert there.digest == before[1]


def test_another_file_is_another_benchmark(tmp_path: Path) -> None:
    path = write(tmp_path, EXPERIMENT)
    before = open_subject(path, []).digest
    assert open_subject(path, ["epochs=2"]).digest != before
    write(tmp_path, EXPERIMENT + "epochs: 2\n")
    assert open_subject(path, []).digest != before


def test_nodes_on_hosts_are_reached_by_ssh_with_every_word_quoted() -> None:
    subject = Subject(path=Path("/a b.yaml"), is_recipe=True, given=("description=$(id)",))
    place = Place(folder=Path("/out/s"), run=Path("/out/r"), hosts=("alpha", "beta"))
    command = node_command(subject, Setting(nodes=2), place, 1, "alpha:20000")
    assert command[:4] == ["ssh", "-o", "BatchMode=yes", "beta"]
    assert "'description=$(id)'" in command[4]
    assert "'/a b.yaml'" in command[4]
    assert "-nr 1 --master alpha:20000" in command[4]


def test_ranks_meet_at_a_host_by_its_name_alone() -> None:
    place = Place(folder=Path("/out/s"), run=Path("/out/r"), hosts=("me@alpha", "me@beta"))
    assert master_address(place).partition(":")[0] == "alpha"
