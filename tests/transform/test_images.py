from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tensordict import TensorDict

from rlx.errors import TransformError
from rlx.schema import Field, Role, Schema
from rlx.transform.images import Crop, Grayscale, ImageLayout, Resize
from rlx.transform.scaling import ToFloat
from tests.factories import SMALL, make_block

Pictures = NDArray[np.generic]


def schema_of(dtype: str, shape: tuple[int, ...]) -> Schema:
    return Schema({**SMALL.fields, "observation": Field(dtype, shape, Role.OBSERVATION)})


def made(transform: Resize | Crop | Grayscale | ToFloat, pictures: Pictures) -> Pictures:
    """What a transform makes of the observations of a trajectory."""
    schema = schema_of(str(pictures.dtype), pictures.shape[1:])
    block = make_block((len(pictures) - 1,))
    block = replace(block, data={**block.data, "observation": pictures})
    before = pictures.copy()
    afterwards = transform.schema(schema)
    (changed,) = transform.blocks(iter([block]), schema)
    changed.check(afterwards)
    assert (pictures == before).all()
    return changed.data["observation"]


def random_pictures(dtype: str, shape: tuple[int, ...]) -> Pictures:
    numbers = np.random.default_rng(0).integers(0, 256, shape)
    return (numbers if "int" in dtype else numbers / 7).astype(dtype)


def one_by_one(pictures: Pictures, height: int, width: int) -> Pictures:
    return np.stack([cv2.resize(one, (width, height), interpolation=cv2.INTER_AREA) for one in pictures])


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32", "float64"])
@pytest.mark.parametrize(("height", "width"), [(42, 42), (28, 12), (84, 84), (64, 50), (42, 60), (100, 84)])
def test_resize_is_opencvs_picture_by_picture(dtype: str, height: int, width: int) -> None:
    pictures = random_pictures(dtype, (150, 84, 84))
    assert (made(Resize(height, width), pictures) == one_by_one(pictures, height, width)).all()


@pytest.mark.parametrize("size", [(10, 8), (7, 7), (20, 16)])
def test_resize_of_coloured_pictures(size: tuple[int, int]) -> None:
    pictures = random_pictures("uint8", (9, 20, 16, 3))
    expected = one_by_one(pictures, *size)
    assert (made(Resize(*size), pictures) == expected).all()
    first = np.ascontiguousarray(pictures.transpose(0, 3, 1, 2))
    assert (made(Resize(*size), first) == expected.transpose(0, 3, 1, 2)).all()
    single = pictures[..., :1]
    assert (made(Resize(*size), single)[..., 0] == one_by_one(single, *size)).all()


@given(st.integers(2, 40), st.integers(1, 24), st.integers(1, 24), st.integers(1, 24), st.integers(1, 24))
def test_resize_of_any_size(count: int, old_height: int, old_width: int, height: int, width: int) -> None:
    pictures = random_pictures("uint8", (count, old_height, old_width))
    assert (made(Resize(height, width), pictures) == one_by_one(pictures, height, width)).all()


def test_crop() -> None:
    pictures = random_pictures("uint8", (3, 10, 8))
    assert (made(Crop(4, 3, top=1, left=2), pictures) == pictures[:, 1:5, 2:5]).all()
    assert (made(Crop(4, 4), pictures) == pictures[:, 3:7, 2:6]).all()
    coloured = random_pictures("uint8", (3, 10, 8, 3))
    assert (made(Crop(4, 3, top=0, left=5), coloured) == coloured[:, :4, 5:]).all()
    first = random_pictures("uint8", (3, 3, 10, 8))
    assert (made(Crop(4, 3, top=0, left=5), first) == first[:, :, :4, 5:]).all()
    with pytest.raises(
        TransformError, match="observation is 10 x 8: expected a crop within it, found 4 x 3 from row 7 and"
    ):
        made(Crop(4, 3, top=7, left=0), pictures)
    with pytest.raises(TransformError, match="found 12 x 4 from row 0 and column 2 on"):
        made(Crop(12, 4), pictures)


def test_grayscale() -> None:
    pictures = random_pictures("uint8", (200, 60, 50, 3))
    grey = made(Grayscale(), pictures)
    assert (grey == np.stack([cv2.cvtColor(one, cv2.COLOR_RGB2GRAY) for one in pictures])).all()
    assert np.abs(pictures @ [0.299, 0.587, 0.114] - grey).max() <= 0.51
    with pytest.raises(TransformError, match=r"expected uint8, uint16 or float32 of shape \[H, W, 3\]"):
        made(Grayscale(), pictures[..., 0])


def test_to_float() -> None:
    pictures = random_pictures("uint8", (3, 10, 8))
    numbers = made(ToFloat(), pictures)
    assert (numbers == pictures.astype(np.float32) / np.float32(255)).all()
    assert (made(ToFloat(2.0), pictures) == pictures.astype(np.float32) / 2).all()
    with pytest.raises(TransformError, match="no observation has an integer dtype"):
        made(ToFloat(), numbers)
    with pytest.raises(TransformError, match="other than 0"):
        ToFloat(0.0)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("action", Field("int64", (), Role.STEP)),
        ("action", Field("uint8", (), Role.STEP)),
        ("observation", Field("int32", (4,), Role.OBSERVATION)),
        ("observation", Field("uint16", (8, 8), Role.OBSERVATION)),
        ("lives", Field("uint8", (2,), Role.NEXT)),
    ],
)
def test_to_float_of_what_is_no_picture_needs_a_scale(name: str, field: Field) -> None:
    schema = Schema({**schema_of("uint8", (4, 4)).fields, name: field})
    keys = () if name == "observation" else (name,)
    with pytest.raises(TransformError, match=f"{name} is {field.dtype} of .* no pixels: expected a scale") as caught:
        ToFloat(keys=keys).schema(schema)
    assert caught.value.hint == f"to_float:scale=1,keys={name} only converts it"
    assert ToFloat(1.0, keys=keys).schema(schema)[name].dtype == "float32"
    rows = torch.zeros(3, *field.shape, dtype=getattr(torch, field.dtype))
    batch = TensorDict({name: rows}, [3])
    with pytest.raises(TransformError, match="no pixels: expected a scale"):
        ToFloat(keys=[name])(batch)


def test_only_the_fields_that_are_named() -> None:
    fields = {name: Field("uint8", (4, 4), Role.OBSERVATION) for name in ("observation/left", "observation/right")}
    schema = Schema({**{name: SMALL[name] for name in SMALL if name != "observation"}, **fields})
    block = make_block((3,), schema=schema)
    changed = Resize(2, 2, ("observation/right",)).apply(block, schema)
    assert changed.data["observation/left"] is block.data["observation/left"]
    assert changed.data["observation/right"].shape == (4, 2, 2)
    assert Resize(2, 2).apply(block, schema).data["observation/left"].shape == (4, 2, 2)
    with pytest.raises(TransformError, match="unknown field 'observation'"):
        Resize(2, 2, ("observation",)).schema(schema)


@pytest.mark.parametrize(
    ("dtype", "shape", "message"),
    [
        ("int64", (8, 8), "observation is int64: expected uint8, uint16"),
        ("uint8", (8,), "expected an observation that is an image, found observation"),
        ("uint8", (8, 8, 8), r"observation is uint8\[8, 8, 8\]: expected images \[H, W\]"),
    ],
)
def test_what_is_no_picture(dtype: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(TransformError, match=message):
        Resize(4, 4).schema(schema_of(dtype, shape))


def test_layouts() -> None:
    assert ImageLayout.of("x", Field("uint8", (5, 6), Role.OBSERVATION)) == ImageLayout(5, 6, None)
    assert ImageLayout.of("x", Field("uint8", (5, 6, 3), Role.OBSERVATION)) == ImageLayout(5, 6, 3)
    assert ImageLayout.of("x", Field("uint8", (4, 5, 6), Role.OBSERVATION)) == ImageLayout(5, 6, 4, channels_first=True)


def test_sizes_and_fields_that_cannot_be() -> None:
    for height in (0, 2**15 + 1):
        with pytest.raises(TransformError, match=f"height {height}: expected 1 to 32,768"):
            Resize(height, 4)
        with pytest.raises(TransformError, match=f"width {height}: expected 1 to 32,768"):
            Resize(4, height)
    with pytest.raises(TransformError, match="width 0: expected at least 1"):
        Crop(4, 0)
    with pytest.raises(TransformError, match="unknown field 'nothing': expected one of observation"):
        ToFloat(keys=["nothing"]).schema(schema_of("uint8", (4, 4)))
