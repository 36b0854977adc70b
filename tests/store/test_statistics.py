"""Statistics of rows, whatever way they are added up."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptDatasetError
from rlx.manifest_values import check_statistics
from rlx.schema import FLAGS, Field, Role, Schema
from rlx.store.statistics import (
    MAX_DIMENSIONS,
    SAMPLED_EVERY,
    FieldMoments,
    Moments,
    ObservationMoments,
    action_counts,
    merge_statistics,
    parted_axis,
)
from rlx.testing.dataset_exporter import random_block
from rlx.testing.factories import write_dataset

SHAPES: list[tuple[int, ...]] = [(), (1,), (3,), (2, 2), (5, 4, 3), (3, 5, 4), (5, 5, 5), (600,)]


def block_of(rows: NDArray[Any]) -> Block:
    """A block of one trajectory without an end, so that every step has one observation."""
    count = len(rows)
    always = np.ones(1, bool)
    return Block({"seen": rows}, np.array([count]), np.zeros(1, np.int64), always, always, is_open=True)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "int32", "float32", "bool"])
@pytest.mark.parametrize("blocks", [[100], [7, 1, 50, 42], [1] * 100])
def test_row_by_row(dtype: str, blocks: list[int]) -> None:
    random = np.random.default_rng(0)
    rows = (random.integers(0, 2**16, (100, 50, 40)) - 2**15 * (dtype[0] != "u")).astype(dtype)
    found = ObservationMoments(Field(dtype, (50, 40), Role.OBSERVATION))
    for part in np.split(rows, np.cumsum(blocks)[:-1]):
        found.add(block_of(part), "seen")
    parts = [Moments.of(row) for row in rows[::SAMPLED_EVERY]]
    assert found.moments() == FieldMoments([Moments.merge(parts)], is_parted=False)
    assert found.moments().parts[0].total == math.fsum(part.total for part in parts)


@given(
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from(["uint8", "int64", "float32", "float64", "bool"]),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    seed=st.integers(0, 99),
    pieces=st.booleans(),
)
def test_of_each_dimension_or_channel_of_what_steps_begin_with(
    shape: tuple[int, ...], dtype: str, lengths: list[int], seed: int, pieces: bool
) -> None:
    random = np.random.default_rng(seed)
    rows = random.normal(100, 50, (sum(lengths) + len(lengths), *shape)).astype(dtype)
    field = Field(dtype, shape, Role.OBSERVATION)
    found, start = ObservationMoments(field), 0
    parts = [[length] for length in lengths] if pieces else [lengths]
    for some in parts:
        count = sum(some) + len(some)
        flags = np.ones(len(some), bool)
        data = {"seen": rows[start : start + count]}
        found.add(Block(data, np.array(some), np.arange(len(some)), flags, flags), "seen")
        start += count
    begun = np.delete(rows, np.cumsum(np.array(lengths) + 1) - 1, axis=0)
    every = SAMPLED_EVERY if field.row_bytes >= 1024 else 1
    seen = begun[::every].astype(np.float64)
    axes = tuple(axis for axis in range(seen.ndim) if axis - 1 != parted_axis(shape))
    summary = found.moments().summary()
    for key, of in (("min", np.min), ("max", np.max), ("mean", np.mean), ("std", np.std)):
        np.testing.assert_allclose(summary[key], of(seen, axis=axes), rtol=1e-6, atol=1e-3)
        assert isinstance(summary[key], list) == (parted_axis(shape) is not None)
    described = found.moments().to_json()
    check_statistics({"seen": described})
    assert FieldMoments.from_json(json.loads(json.dumps(described))) == found.moments()


def test_their_number_is_bounded() -> None:
    assert parted_axis((MAX_DIMENSIONS,)) == 0
    assert parted_axis((MAX_DIMENSIONS + 1,)) is None
    assert parted_axis((84, 84, 4)) == 2
    assert parted_axis((84, 84, 5)) is None
    assert parted_axis((0,)) is None


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_observations_of_shape_0(dtype: str, tmp_path: Path) -> None:
    empty = Field(dtype, (0,), Role.OBSERVATION)
    chosen = Schema({"observation": empty, "reward": Field("float32", (), Role.NEXT), **FLAGS})
    dataset = write_dataset(tmp_path / "data", [[random_block(chosen)]], schema=chosen)
    assert dataset[:]["observation"].shape == (len(dataset), 0)
    assert dataset.manifest.shards[0].statistics["observation"] == {"count": 0}


def test_a_part_without_numbers() -> None:
    found = FieldMoments.of(np.array([[np.nan, 1.0], [np.inf, 3.0]]))
    assert found.to_json() == {
        "count": [0, 2],
        "sum": [None, 4.0],
        "sum_of_squares": [None, 10.0],
        "min": [None, 1.0],
        "max": [None, 3.0],
    }
    assert FieldMoments.from_json(found.to_json()) == found
    assert found.summary()["mean"] == [None, 2.0]


def test_shards_that_know_no_parts_make_one_number() -> None:
    rows = np.arange(8.0).reshape(4, 2)
    new, old = FieldMoments.of(rows).to_json(), Moments.of(rows + 8).to_json()
    merged = merge_statistics([{"observation": new}, {"observation": old}, {"observation": {"count": 0}}])
    assert merged["observation"] == Moments.of(np.arange(16.0)).summary()
    merged = merge_statistics([{"observation": new}, {"observation": {"count": 0}}])
    assert merged["observation"]["mean"] == [3.0, 4.0]


def test_actions_that_are_vectors() -> None:
    assert action_counts(np.array([[1.0, 2.0], [3.0, 4.0]]))["sum"] == [4.0, 6.0]
    assert action_counts(np.array([1, 1, 2]))["counts"] == {"1": 2, "2": 1}


@pytest.mark.parametrize(
    "damage",
    [
        {"sum": [1.0]},
        {"sum": 1.0},
        {"min": [None, None, None]},
        {"max": None},
        {"count": [1, "a", 2]},
        {"count": [1, -1, 2]},
        {"sum": [1.0, [2.0], 3.0]},
        {"sum": [1.0, math.nan, 3.0]},
    ],
)
def test_damaged_lists(damage: dict[str, Any]) -> None:
    described = {**FieldMoments.of(np.ones((2, 3))).to_json(), **damage}
    with pytest.raises((CorruptDatasetError, ValueError)):  # that of a manifest becomes the first
        read(described)


def read(described: dict[str, Any]) -> FieldMoments:
    check_statistics({"observation": described})
    return FieldMoments.from_json(described)
