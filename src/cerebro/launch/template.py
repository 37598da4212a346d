"""The notebook that a new workspace begins with."""

from __future__ import annotations

from pathlib import Path

NAME = "experiment.ipynb"


def find_template() -> Path | None:
    """The template, in an installed package or in a checkout of the sources."""
    here = Path(__file__)
    places = (here.with_name(NAME), here.parents[3] / "notebooks" / NAME)
    return next((place for place in places if place.is_file()), None)


def offer_template(workspace: Path) -> Path | None:
    """Put the template into a workspace that has no notebook; where it is, if it was put there."""
    template = find_template()
    if template is None or any(workspace.glob("*.ipynb")):
        return None
    place = workspace / NAME
    place.write_bytes(template.read_bytes())
    return place
