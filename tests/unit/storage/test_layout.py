from __future__ import annotations

import pytest

from cerebro.storage import DirectoryStore, layout


@pytest.mark.parametrize("name", [name for name in vars(layout) if name.isupper()])
def test_every_name_can_be_written(tmp_path, name):
    DirectoryStore(tmp_path).write(getattr(layout, name), b"")
    assert (tmp_path / getattr(layout, name)).exists()


@pytest.mark.parametrize("trial", [0, 9999, 123456])
def test_everything_of_a_trial_but_its_events_lies_in_its_directory(tmp_path, trial):
    store = DirectoryStore(tmp_path)
    name = layout.checkpoint_name(1_000_000, 12)
    paths = [
        layout.params(trial),
        layout.progress(trial),
        layout.checkpoint_data(trial, name),
        layout.checkpoint_manifest(trial, name),
    ]
    store.write_many(dict.fromkeys(paths, b""))
    assert all(path.startswith(f"{layout.trial_dir(trial)}/") for path in paths)


def test_the_events_of_all_trials_lie_in_one_directory():
    assert layout.tensorboard(7) == "tensorboard/t0007"


def test_checkpoints_are_listed_in_the_order_of_their_visits():
    names = [layout.checkpoint_name(visits, 0) for visits in (2, 10, 999_999)]
    assert names == sorted(names)
