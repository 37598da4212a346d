from __future__ import annotations

import pytest
import torch

from cerebro.errors import UsageError
from cerebro.zoo import make_augment

ROWS, SIDE = 64, 20


def pictures() -> torch.Tensor:
    """Each pixel of a picture has a number of its own, none is 0."""
    one = torch.arange(1, SIDE * SIDE // 2 + 1).repeat(2).view(1, 1, SIDE, SIDE)
    return one.expand(ROWS, 3, -1, -1).to(torch.uint8).contiguous()


def changed(seed: int = 0, **options) -> torch.Tensor:
    return make_augment(options)(pictures(), torch.Generator().manual_seed(seed))


def moved(x: torch.Tensor, down: int, right: int) -> torch.Tensor:
    """By whole pixels, with the border repeated."""
    rows = (torch.arange(SIDE) - down).clamp(0, SIDE - 1)
    columns = (torch.arange(SIDE) - right).clamp(0, SIDE - 1)
    return x[:, rows][:, :, columns]


def test_a_batch_stays_bytes_of_its_shape():
    x = changed(shift=0.1, flip=True, crop=4)
    assert x.dtype == torch.uint8
    assert x.shape == (ROWS, 3, SIDE, SIDE)


def test_nothing_asked_for_is_nothing_done():
    assert torch.equal(changed(), pictures())


def test_a_shift_is_by_a_tenth_at_most_along_both_axes_and_repeats_the_border():
    steps = range(-2, 3)
    seen = set()
    for picture in changed(shift=0.1):
        moves = [
            (down, right)
            for down in steps
            for right in steps
            if torch.equal(picture, moved(pictures()[0], down, right))
        ]
        assert len(moves) == 1
        seen |= set(moves)
    assert {down for down, _ in seen} == set(steps) == {right for _, right in seen}


def test_a_shift_with_zero_fill_has_black_borders():
    x = changed(shift=0.1, fill="zero")
    assert (x == 0).any()
    assert not (x[:, :, 2:-2, 2:-2] == 0).any()
    assert all(int(p.count_nonzero()) % 3 == 0 for p in x)  # all channels alike


def test_a_crop_is_a_window_of_the_padded_picture():
    padded = torch.nn.functional.pad(pictures()[0], (4, 4, 4, 4))
    windows = {
        padded[:, top : top + SIDE, left : left + SIDE].numpy().tobytes()
        for top in range(9)
        for left in range(9)
    }
    found = {picture.numpy().tobytes() for picture in changed(crop=4)}
    assert found <= windows
    assert len(found) > 20


def test_a_flip_mirrors_about_half_of_the_pictures_from_left_to_right():
    original, mirrored = pictures()[0], pictures()[0].flip(-1)
    found = changed(flip=True)
    are_mirrored = [torch.equal(picture, mirrored) for picture in found]
    assert all(m or torch.equal(p, original) for p, m in zip(found, are_mirrored, strict=True))
    assert ROWS // 4 < sum(are_mirrored) < 3 * ROWS // 4


def test_the_generator_decides():
    options = {"shift": 0.1, "flip": True, "crop": 2}
    assert torch.equal(changed(1, **options), changed(1, **options))
    assert not torch.equal(changed(1, **options), changed(2, **options))


def test_it_works_on_floats_and_on_no_rows():
    change = make_augment({"crop": 1, "flip": True})
    x = change(torch.rand(0, 3, 8, 8), torch.Generator())
    assert x.shape == (0, 3, 8, 8)
    assert x.dtype == torch.float32


WRONG = {
    "negative": ({"shift": -0.1}, "shift >= 0"),
    "more than all": ({"shift": 3}, "shift < 1"),
    "half a pixel": ({"crop": 0.5}, "crop >= 0"),
    "in words": ({"flip": "yes"}, "true or false"),
    "unknown": ({"rotate": 0.1}, "Known: shift, zoom, crop, flip, fill"),
    "unknown fill": ({"fill": "wrap"}, "Known: nearest, zero"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_it_cannot_do_is_refused(case):
    options, message = WRONG[case]
    with pytest.raises(UsageError, match=message):
        make_augment(options)


def test_rows_that_are_no_pictures_are_refused():
    with pytest.raises(UsageError, match=r"\(rows, channels, height, width\)"):
        make_augment({"flip": True})(torch.zeros(2, 3), torch.Generator())
