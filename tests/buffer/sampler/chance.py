"""Whether counts are what probabilities promise; with fixed seeds, so that the answer is always the same."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike


def fits(counts: ArrayLike, probabilities: ArrayLike) -> bool:
    """Whether counts lie within five standard deviations of chi-square; an event of probability 0 must not happen."""
    found, expected = np.asarray(counts, float), np.asarray(probabilities, float)
    expected = expected / expected.sum() * found.sum()
    if found[expected == 0].any():
        return False
    found, expected = found[expected > 0], expected[expected > 0]
    assert expected.min() > 5, "too few draws to say"
    freedom = len(found) - 1
    return bool(((found - expected) ** 2 / expected).sum() <= freedom + 5 * np.sqrt(2 * freedom))


def drawn_like(rows: ArrayLike, probabilities: Mapping[int, float]) -> bool:
    """Whether rows were drawn with these probabilities, up to a factor, and no others were."""
    values, counts = np.unique(np.asarray(rows), return_counts=True)
    if not set(values.tolist()) <= set(probabilities):
        return False
    found = dict(zip(values.tolist(), counts.tolist(), strict=True))
    return fits([found.get(row, 0) for row in probabilities], list(probabilities.values()))
