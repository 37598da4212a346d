from __future__ import annotations

from cerebro.launch.template import find_template, offer_template


def test_a_workspace_without_notebooks_gets_the_template(tmp_path):
    place, template = offer_template(tmp_path), find_template()
    assert place == tmp_path / "experiment.ipynb"
    assert template is not None
    assert place.read_bytes() == template.read_bytes()


def test_one_that_has_a_notebook_is_left_as_it_is(tmp_path):
    (tmp_path / "mine.ipynb").write_text("{}")
    assert offer_template(tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == ["mine.ipynb"]
