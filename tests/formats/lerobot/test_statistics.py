"""What is gathered piece by piece is what numpy says of all at once."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.formats.lerobot import tables
from rlx.formats.lerobot.tables import QUANTILES, PictureStatistics, VectorStatistics


def expected(rows: Any) -> dict[str, Any]:
    return {
        "min": rows.min(0),
        "max": rows.max(0),
        "mean": rows.mean(0),
        "std": rows.std(0),
        "count": [len(rows)],
        **{name: np.quantile(rows, share, axis=0) for name, share in QUANTILES.items()},
    }


@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any), mean=st.sampled_from([0, 1e6]))
def test_vectors(lengths: list[int], mean: float) -> None:
    rows = np.random.default_rng(0).normal(mean, 1, (sum(lengths), 3))
    statistics = VectorStatistics(3)
    for piece in np.split(rows, np.cumsum(lengths)[:-1]):
        statistics.add(piece)
    found, wanted = statistics.described(), expected(rows)
    assert list(found) == list(wanted)
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-9, atol=1e-9, err_msg=name)


def test_a_sample_of_many_vectors_is_every_kth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_SAMPLE_BYTES", 8 * 100)
    statistics = VectorStatistics(1)
    rows = np.arange(10_007.0)[:, None]
    for piece in np.split(rows, [3, 1000, 1001, 7000]):
        statistics.add(piece)
    found = statistics.described()
    assert (found["min"], found["max"], found["count"]) == ([0], [10_006], [10_007])
    for name, share in QUANTILES.items():
        assert abs(found[name][0] / 10_006 - share) < 0.02


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures(channels: int) -> None:
    pictures = np.random.default_rng(0).integers(3, 200, (9, 12, 11, channels)).astype(np.uint8)
    statistics = PictureStatistics(channels)
    for piece in np.split(pictures, [4, 4, 7]):
        statistics.add(piece)
    found = statistics.described()
    pixels = pictures.reshape(-1, channels) / 255
    for name, values in expected(pixels).items():
        if name != "count":
            tolerance = 1 / 255 if name in QUANTILES else 1e-12
            np.testing.assert_allclose(found[name], values[:, None, None], atol=tolerance, err_msg=name)
    assert found["count"] == [9]


@given(
    st.lists(
        st.floats(width=64) | st.sampled_from([np.nan, np.inf, -np.inf, 1.7e308, -1.7e308]), min_size=1, max_size=30
    )
)
def test_numbers_that_are_not_finite_do_not_count(values: list[float]) -> None:
    """No warning of numpy, and statistics that are JSON."""
    rows = np.array(values)
    statistics = VectorStatistics(1)
    for piece in np.array_split(rows[:, None], 3):
        statistics.add(piece)
    found = statistics.described()
    json.dumps(found, allow_nan=False)
    finite = rows[np.isfinite(rows)]
    assert (found["count"], found["min"]) == ([len(rows)], [finite.min() if len(finite) else 0])
    if len(finite) and np.abs(finite).max() < 1e100:
        np.testing.assert_allclose(found["mean"], finite.mean(), rtol=1e-9, atol=1e-9 * np.abs(finite).max())
        np.testing.assert_allclose(found["q50"], np.quantile(finite, 0.5))
