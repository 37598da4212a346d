"""The benchmark of races compares like with like."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import race, race_cpu, race_net, race_script, race_stacks
from benchmarks.report import Report
from cerebro.data import named, open_dataset


def make_case(name: str, folder: Path, *changes: str) -> race_cpu.Race:
    return race.case(name, folder, folder, list(changes), limit_s=5.0, rounds=1)


@pytest.mark.parametrize("name", ["cifar10", "mnist"])
def test_the_script_is_given_the_recipe_that_ours_runs(name, tmp_path):
    case = make_case(name, tmp_path)
    config = case.config()
    own, handed_out = race_cpu.works_of(case, config)
    recipe = config.recipe
    assert own.batch_size * race_cpu.PROCESSES == recipe.training.global_batch_size
    assert own.phases == [(recipe.training.n_epochs, recipe.optimizer.lr)]
    assert own.options == {
        key: value
        for key, value in recipe.optimizer.model_dump().items()
        if key not in ("name", "lr", "lr_scaling") and value is not None
    }
    assert own.model["name"] == recipe.model.name
    assert own.is_short == (recipe.training.amp == "bf16")
    assert own.target == handed_out.target == config.goal["target"]
    assert handed_out.batch_size == 64
    assert handed_out.model["input_shape"] == own.model["input_shape"]


def test_ours_has_as_many_processes_as_the_script_wherever_it_runs(tmp_path):
    case = make_case("mnist", tmp_path)
    (alone,) = race_cpu.commands_of(case, tmp_path / "out", 1)
    assert f"workers={race_cpu.PROCESSES}" in alone
    nodes = race_cpu.commands_of(case, tmp_path / "out", 3)
    assert [command[-2:] for command in nodes] == [["-nr", "0"], ["-nr", "1"], ["-nr", "2"]]
    assert all("-np 1" in " ".join(command) for command in nodes)


def test_the_rate_of_the_script_is_that_of_the_recipe(tmp_path):
    from cerebro.zoo.rates import lr_at, make_rule

    case = make_case("cifar10", tmp_path)
    own, _ = race_cpu.works_of(case, case.config())
    epochs, lr = own.phases[0]
    schedule = case.config().recipe.training.model_dump()["lr_schedule"]
    rule = make_rule(lr_scaling="none", lr_schedule=schedule, n_epochs=epochs)
    for batch in (0, 7, 10 * epochs - 1):
        ours = lr_at(batch, 10, 2, lr, rule).lr
        theirs = lr * race_script.cosine(batch / 10 / own.end_epoch, own.floor)
        assert theirs == pytest.approx(ours, rel=1e-9)


def test_what_did_not_get_there_and_what_is_simulated_is_told(tmp_path, capsys):
    report = Report()
    found = {
        "ours": [race_cpu.Run(10.0, 6.0, 3, 0.71, 0.71)],
        "ours, 3 nodes (simulated)": [race_cpu.Run(12.0, 6.0, 3, 0.71, 0.71)],
        "script, as handed out": [race_cpu.Run(50.0, 45.0, 3, 0.6, 0.6)],
    }
    race_cpu.tell(make_case("cifar10", tmp_path), 0.7, found, report)
    told = capsys.readouterr().out
    assert "> 50.0" in told
    assert "simulated" in told
    assert report.values["cifar10_script_as_handed_out_reached"] is False
    assert report.values["cifar10_script_as_handed_out_times_ours"] == 5.0
    assert report.values["cifar10_ours_startup_s"] == 4.0
    assert report.finish(as_json=False) == 0


@pytest.mark.parametrize("side", ["ours", "script, our recipe"])
def test_who_has_our_recipe_must_have_the_target_by_its_saved_weights(side, tmp_path):
    report = Report()
    found = {"ours": [race_cpu.Run(9, 5, 1, 0.97, 0.97)]}
    found[side] = [*found.get(side, []), race_cpu.Run(9, 5, 1, 0.97, 0.9)]
    race_cpu.tell(make_case("mnist", tmp_path), 0.97, found, report)
    assert report.finish(as_json=False) == 1


def make_pictures(folder: Path) -> Path:
    x, y = np.zeros((4, 28, 28), np.uint8), np.arange(4)
    np.savez(folder / "mnist.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    return folder / "mnist.npz"


@pytest.mark.parametrize(
    ("make_file", "name", "target"),
    [(lambda folder: None, "digits", 0.9), (make_pictures, "mnist", 0.97)],
    ids=["digits", "mnist"],
)
def test_the_race_is_called_what_it_trains_on(make_file, name, target, tmp_path):
    case = race.first_case(make_file(tmp_path), tmp_path, limit_s=5.0, rounds=1)
    own, _ = race_cpu.works_of(case, case.config())
    assert own.target == target
    report = Report()
    race_cpu.tell(case, target, {"ours": [race_cpu.Run(9.0, 5.0, 1, 1.0, 1.0)]}, report)
    assert {key.partition("_")[0] for key in report.values} == {name}


def test_pictures_come_back_from_the_files_that_are_written(tmp_path):
    race.write_mnist(tmp_path / "mnist", None)
    path = named.prepare("mnist", source=tmp_path / "mnist", into=tmp_path, shards=1)
    dataset = open_dataset(path)
    assert dataset.rows("train") + dataset.rows("val") == 5620
    x = dataset.open_shard("val", 0).columns["x"]
    assert x.shape[1:] == (1, 28, 28)
    assert x.max() == 255


def test_changed_pictures_are_parts_of_their_originals():
    torch.manual_seed(0)
    x = torch.arange(2 * 3 * 8 * 8, dtype=torch.uint8).view(2, 3, 8, 8)
    changed = race_net.change(x)
    assert changed.shape == x.shape
    for before, after in zip(x, changed, strict=True):
        assert set(after.flatten().tolist()) <= set(before.flatten().tolist())


def test_both_networks_of_the_gpu_race_are_the_same():
    torch.manual_seed(0)
    plain = race_net.Net((4, 8, 8))
    wide = race_net.Net((4, 8, 8), race_net.WideNorm)
    wide.load_state_dict(plain.state_dict())
    x = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    for model in (plain, wide):
        model.eval()
    pictures = race_net.as_numbers(x)
    assert torch.equal(plain(pictures), wide(pictures))


def test_sixteen_variants_differ_in_rate_and_decay():
    variants = race_stacks.variants()
    assert len({tuple(each.values()) for each in variants}) == 16


def test_an_idx_file_has_its_shape_in_front(tmp_path):
    race.write_idx(tmp_path / "file", np.arange(6, dtype=np.uint8).reshape(2, 3))
    assert (tmp_path / "file").read_bytes()[:12] == bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3])
