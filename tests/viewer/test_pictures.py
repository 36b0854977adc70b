"""PNGs are exact, whatever colours they have, and only what looks like a picture is one."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rlx.schema import Field, Role, Schema
from rlx.viewer.pictures import picture_field, pictures, png, sheet


@given(st.sampled_from([1, 2, 200, 256, 257, 5000]), st.booleans(), st.integers(0, 2**32))
def test_png_is_exact(colours: int, is_grey: bool, seed: int) -> None:
    draw = np.random.default_rng(seed)
    table = draw.integers(0, 256, (colours, 1 if is_grey else 3)).repeat(3 if is_grey else 1, axis=1)
    pixels = table[draw.integers(0, colours, (40, 60))].astype(np.uint8)
    written = Image.open(io.BytesIO(png(pixels)))
    assert np.array_equal(np.asarray(written.convert("RGB")), pixels)
    found = len(np.unique(pixels.reshape(-1, 3), axis=0))
    assert written.mode == ("L" if is_grey or (pixels[..., :1] == pixels).all() else "P" if found <= 256 else "RGB")


@given(st.integers(1, 13), st.integers(1, 6))
def test_a_sheet_has_every_frame_in_its_place(count: int, columns: int) -> None:
    frames = np.random.default_rng(count).integers(0, 256, (count, 3, 4, 3)).astype(np.uint8)
    whole = sheet(frames, columns)
    for number, frame in enumerate(frames):
        y, x = number // columns * 3, number % columns * 4
        assert np.array_equal(whole[y : y + 3, x : x + 4], frame)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((84, 84), (84, 84)),
        ((84, 84, 1), (84, 84)),
        ((210, 160, 3), (210, 160)),
        ((4, 84, 84), (84, 84)),
        ((4, 96, 84, 3), (96, 84)),
        ((8, 8), None),
        ((17,), None),
        ((), None),
    ],
)
def test_what_is_a_picture(shape: tuple[int, ...], expected: tuple[int, int] | None) -> None:
    found = pictures(np.zeros((2, *shape), np.uint8))
    assert (found is not None and found.shape[1:3]) == (expected or False)


def test_of_stacks_the_newest() -> None:
    stack = np.arange(4, dtype=np.uint8)[None, :, None, None] * np.ones((1, 4, 20, 20), np.uint8)
    frames = pictures(stack)
    assert frames is not None
    assert (frames == 3).all()


@pytest.mark.parametrize("stacked", [1, 4])
def test_colours_may_come_before_the_pixels(stacked: int) -> None:
    newest = np.random.default_rng(0).integers(0, 256, (2, 20, 24, 3)).astype(np.uint8)
    stack = np.zeros((2, stacked, 20, 24, 3), np.uint8)
    stack[:, -1] = newest
    rows = np.moveaxis(stack if stacked > 1 else newest, -1, -3)
    frames = pictures(rows)
    assert frames is not None
    assert np.array_equal(frames, newest)


def test_the_first_picture_of_several_observations() -> None:
    fields = {
        "observation/joints": Field("float32", (7,), Role.OBSERVATION),
        "observation/front": Field("uint8", (64, 64, 3), Role.OBSERVATION),
        "observation/wrist": Field("uint8", (32, 32, 3), Role.OBSERVATION),
    }
    rest = {name: Schema.of(("uint8", (1,)), ("int64", ()))[name] for name in ("reward", "terminated", "truncated")}
    assert picture_field(Schema({**fields, **rest})) == "observation/front"
    assert picture_field(Schema.of(observation=("float32", (64, 64)), action=("int64", ()))) is None
