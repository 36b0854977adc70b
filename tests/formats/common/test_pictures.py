"""Pictures in files: their shapes, pixels and damage."""

import io
import random

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from rlx.formats.common.pictures import (
    decode_picture,
    lossy_encoding,
    picture_shape,
)
from rlx.formats.common.source import MalformedError

COLOUR: NDArray[np.uint8] = np.arange(9 * 8 * 3, dtype=np.uint8).reshape(9, 8, 3)
CLEAR: NDArray[np.uint8] = np.arange(9 * 8 * 4, dtype=np.uint8).reshape(9, 8, 4)


def encoded(picture: NDArray[np.uint8], **how: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "WEBP", **how)
    return file.getvalue()


@pytest.mark.parametrize(("picture", "lossless"), [(COLOUR, True), (COLOUR, False), (CLEAR, True), (CLEAR, False)])
def test_webp_as_pillow_reads_it(picture: NDArray[np.uint8], lossless: bool) -> None:
    file = encoded(picture, lossless=lossless, exact=True)
    assert picture_shape(file) == picture.shape
    np.testing.assert_array_equal(decode_picture(file, picture.shape), np.asarray(Image.open(io.BytesIO(file))))
    assert lossy_encoding(file) == (None if lossless else "WebP")
    if lossless:
        np.testing.assert_array_equal(decode_picture(file, picture.shape), picture)


def test_webp_of_several_pictures() -> None:
    file = io.BytesIO()
    first, second = Image.fromarray(COLOUR), Image.fromarray(255 - COLOUR)
    first.save(file, "WEBP", save_all=True, append_images=[second])
    with pytest.raises(MalformedError, match="expected a WebP of one picture, found b'VP8X'"):
        picture_shape(file.getvalue())


def test_webp_of_another_shape() -> None:
    with pytest.raises(MalformedError, match=r"expected a picture of \[9, 7, 3\], found \[9, 8, 3\]"):
        decode_picture(encoded(COLOUR), (9, 7, 3))


@pytest.mark.parametrize("lossless", [True, False])
def test_wrong_bytes_of_webp_are_a_picture_or_an_error(lossless: bool) -> None:
    whole, dice, errors = encoded(CLEAR, lossless=lossless), random.Random(0), 0
    for number in range(1000):
        content = bytearray(whole)
        for _ in range(dice.choice((1, 3))):
            content[dice.randrange(len(content))] = dice.randrange(256)
        try:
            kept = dice.randrange(len(content)) if number % 5 == 0 else len(content)
            picture = decode_picture(bytes(content[:kept]), (9, 8, 4))
        except MalformedError:
            errors += 1
        else:
            assert picture.shape == (9, 8, 4)
    assert 100 < errors < 1000


def test_a_png_that_is_cut_off() -> None:
    file = io.BytesIO()
    Image.fromarray(COLOUR).save(file, "PNG")
    shape = picture_shape(file.getvalue())
    assert shape == COLOUR.shape
    with pytest.raises(MalformedError, match="expected a whole picture, found: "):
        decode_picture(file.getvalue()[:-30], shape)


def test_png_of_16_bits() -> None:
    file = io.BytesIO()
    Image.fromarray(np.full((4, 5), 700, np.uint16)).save(file, "PNG")
    deep = file.getvalue()
    assert (decode_picture(deep, (4, 5, 1), "uint16") == 700).all()
    with pytest.raises(MalformedError, match=r"expected a picture of \[4, 6, 1\], found \[4, 5, 1\]"):
        decode_picture(deep, (4, 6, 1), "uint16")
    with pytest.raises(MalformedError, match="expected a whole picture, found: "):
        decode_picture(deep[:-30], (4, 5, 1), "uint16")
    with pytest.raises(MalformedError, match="expected a PNG of 8 bits a channel, found depth 16"):
        picture_shape(deep)
