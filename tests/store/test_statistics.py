"""Statistics of rows, whatever way they are added up."""

import math

import numpy as np
import pytest

from rlx.store.statistics import Moments, RowMoments


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "int32", "float32", "bool"])
@pytest.mark.parametrize("blocks", [[100], [7, 1, 50, 42], [1] * 100])
def test_row_by_row(dtype: str, blocks: list[int]) -> None:
    random = np.random.default_rng(0)
    rows = (random.integers(0, 2**16, (100, 30, 20)) - 2**15 * (dtype[0] != "u")).astype(dtype)
    found = RowMoments(16)
    for part in np.split(rows, np.cumsum(blocks)[:-1]):
        found.add(part)
    parts = [Moments.of(row) for row in rows[::16]]
    expected = Moments.merge(parts)
    assert found.moments() == expected
    assert found.moments().total == math.fsum(part.total for part in parts)
