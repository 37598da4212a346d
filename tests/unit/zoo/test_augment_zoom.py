"""`zoom` of `make_augment`, and what stays as it was without it."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from cerebro.errors import UsageError
from cerebro.zoo import make_augment


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def slope(rows: int, side: int) -> torch.Tensor:
    """Channel 0 has the number of the line in each pixel, channel 1 that of the column."""
    lines = torch.arange(side, dtype=torch.float32).expand(side, side)
    return torch.stack([lines.T, lines]).expand(rows, 2, side, side).contiguous()


def noise(dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.randint(0, 256, (8, 3, 12, 10), generator=seeded(3)).to(dtype)


@pytest.fixture
def draw(monkeypatch):
    """Every number that is drawn is the same: 0 zooms by 1 - zoom, 1/2 by 1, 1 by 1 + zoom."""

    def all_are(value: float) -> None:
        monkeypatch.setattr(torch, "rand", lambda size, **_: torch.full(size, value))

    return all_are


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64], ids=str)
def test_a_factor_of_one_leaves_pictures_as_they_are(dtype, draw):
    draw(0.5)
    x = noise(dtype)
    assert torch.equal(make_augment({"zoom": 0.5})(x, seeded()), x)
    assert torch.equal(make_augment({"zoom": 0})(x, seeded()), x)


@pytest.mark.parametrize(
    ("drawn", "floats", "bytes_"),
    [
        (0.0, [7.5, 12.5, 17.5, 22.5], [8, 12, 18, 22]),
        (1.0, [0.0, 7.5, 22.5, 30.0], [0, 8, 22, 30]),  # the border is repeated
    ],
    ids=["half", "one and a half"],
)
def test_lines_are_mixed_of_their_neighbours_about_the_middle(drawn, floats, bytes_, draw):
    draw(drawn)
    line = torch.tensor([0.0, 10.0, 20.0, 30.0])
    wide, tall = line.expand(1, 1, 4, 4).contiguous(), line[:, None].expand(1, 1, 4, 4).contiguous()
    change = make_augment({"zoom": 0.5})
    assert change(wide, seeded())[0, 0].tolist() == [floats] * 4
    assert change(tall, seeded())[0, 0].T.tolist() == [floats] * 4
    assert change(wide.to(torch.uint8), seeded())[0, 0].tolist() == [bytes_] * 4


def test_a_zoom_is_one_step_with_a_shift_and_before_a_flip(draw):
    draw(0.25)  # factor 3/4, two pixels towards the beginning, mirrored
    x = noise(torch.float32)
    found = make_augment({"shift": 0.33, "zoom": 0.5, "flip": True})(x, seeded())
    ys = 5.5 + (np.arange(12) - 5.5) * 0.75 + 2
    xs = 4.5 + (np.arange(10)[::-1] - 4.5) * 0.75 + 2
    for picture, expected in zip(found.flatten(0, 1).numpy(), x.flatten(0, 1).numpy(), strict=True):
        tall = np.stack([np.interp(ys, np.arange(12), line) for line in expected.T], 1)
        both = np.stack([np.interp(xs, np.arange(10), line) for line in tall])
        np.testing.assert_allclose(picture, both, rtol=1e-5)


def test_factors_are_drawn_for_each_picture_and_axis_from_the_whole_range():
    rows = 500
    x = make_augment({"zoom": 0.5})(slope(rows, 9), seeded())
    tall = (x[:, 0, 5, 4] - x[:, 0, 3, 4]) / 2
    wide = (x[:, 1, 4, 5] - x[:, 1, 4, 3]) / 2
    for factors in (tall, wide):
        assert 0.5 <= factors.min() < 0.52
        assert 1.48 < factors.max() <= 1.5
        assert abs(factors.mean() - 1) < 0.05
    assert abs(torch.corrcoef(torch.stack([tall, wide]))[0, 1]) < 0.15
    assert torch.equal(x[:, :, 4, 4], torch.full((rows, 2), 4.0))  # the middle stays


def test_what_a_zoom_leaves_open_is_the_border_or_black(draw):
    draw(1.0)
    x = slope(1, 9) + 1
    near = make_augment({"zoom": 0.5})(x, seeded())[0, 1]
    assert near[4].tolist() == [1, 1, 2, 3.5, 5, 6.5, 8, 9, 9]
    black = make_augment({"zoom": 0.5, "fill": "zero"})(x, seeded())[0, 1]
    assert black[4].tolist() == [0, 0, 2, 3.5, 5, 6.5, 8, 0, 0]
    assert not black[0].any()


def test_the_generator_decides():
    change = make_augment({"shift": 0.33, "zoom": 0.5, "flip": True})
    assert torch.equal(change(noise(), seeded(1)), change(noise(), seeded(1)))
    assert not torch.equal(change(noise(), seeded(1)), change(noise(), seeded(2)))


@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (2, 3, 1, 5)], ids=str)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16], ids=str)
def test_type_and_shape_stay(shape, dtype):
    x = torch.full(shape, 255).to(dtype)
    found = make_augment({"shift": 0.2, "zoom": 0.9, "crop": 0})(x, seeded())
    assert found.dtype == dtype
    assert torch.equal(found, x)  # of one colour: any part of them looks the same


@pytest.mark.gpu
def test_a_gpu_gives_the_same_pictures():
    change = make_augment({"shift": 0.33, "zoom": 0.5, "flip": True})
    for x in (noise(), noise(torch.float32)):
        found = change(x.cuda(), seeded()).cpu()
        assert found.dtype == x.dtype
        assert (found.float() - change(x, seeded()).float()).abs().max() <= 1
    own = [change(x.cuda(), torch.Generator("cuda").manual_seed(1)) for _ in range(2)]
    assert torch.equal(*own)


@pytest.mark.parametrize("zoom", [-0.1, 1, 1.5, True, "much", None, float("nan")], ids=str)
def test_a_zoom_that_cannot_be_is_refused(zoom):
    with pytest.raises(UsageError, match=r"`0 <= zoom < 1` must hold, but got zoom=.*leave it out"):
        make_augment({"zoom": zoom})


#: Of two batches, as they were before there was a zoom: runs of that time are resumed.
BEFORE = {
    "shift": ({"shift": 0.33}, "2806013e84b7c500"),
    "flip": ({"flip": True}, "9d404904d8629f78"),
    "both": ({"shift": 0.33, "flip": True}, "b018f9baa020878d"),
    "all": ({"shift": 0.2, "crop": 2, "flip": True, "fill": "zero"}, "676fbfe47ec1f206"),
}


@pytest.mark.parametrize("case", BEFORE)
def test_without_a_zoom_pictures_are_what_they_were(case):
    options, digest = BEFORE[case]
    x = torch.arange(16 * 3 * 12 * 10).remainder(251).view(16, 3, 12, 10).to(torch.uint8)
    for change in (make_augment(options), make_augment({**options, "zoom": 0})):
        rng = seeded(7)
        found = b"".join(change(x, rng).numpy().tobytes() for _ in range(2))
        assert hashlib.sha256(found).hexdigest()[:16] == digest
