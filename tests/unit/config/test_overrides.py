from __future__ import annotations

from cerebro.config.overrides import apply_overrides
from cerebro.config.yaml import parse_yaml


def test_the_document_itself_is_left_alone() -> None:
    document = parse_yaml(b"epochs: 5\nspace: {lr: 1}\n", "x.yaml")
    changed = apply_overrides(document, ["epochs=3", "space.lr=2"], ["epochs", "space"])
    assert changed.tree == {"epochs": 3, "space": {"lr": 2}}
    assert document.tree == {"epochs": 5, "space": {"lr": 1}}


def test_an_overridden_value_is_placed_at_the_override() -> None:
    document = parse_yaml(b"space:\n  lr: {uniform: [0, 1]}\n  wd: 1\n", "x.yaml")
    changed = apply_overrides(document, ["space.lr=2"], ["space"])
    assert changed.place(("space", "lr", "uniform")).text == "override 'space.lr=2'"
    assert changed.place(("space", "wd")).text == "x.yaml:3"


def test_what_is_no_mapping_has_nothing_to_override() -> None:
    document = parse_yaml(b"[1]", "x.yaml")
    assert apply_overrides(document, ["epochs=3"], ["epochs"]) is document
