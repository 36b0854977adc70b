"""Which dimension of a batch is time, as the steps themselves tell."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlx.errors import SourceError
from rlx.formats.common.rows.scan import different
from rlx.formats.common.rows.ted_fields import TedFields
from rlx.formats.common.rows.ted_names import DONE, MASK, TERMINATED, TRAJECTORY, TRUNCATED
from rlx.formats.common.rows.ted_run import Leaf

# Rows that are compared with their neighbours in every dimension.
_SAMPLE = 1000
_MOST = 0.5  # of the rows that end no episode must be followed by the next one in time,
_FEW = 0.1  # and at most this share of them by a neighbour in any other dimension


def time_dimension(
    path: Path, shape: Sequence[int], fields: TedFields, leaves: Mapping[str, Leaf], given: int | None = None
) -> int:
    """Return which dimension of a batch is time.

    A row is followed by the next one in time, unless it ends an episode: that has the same trajectory id, and begins
    with what the row led to.

    Args:
        path: where the batch lies, for messages.
        shape: of the batch, as far as it is filled.
        fields: what a step holds.
        leaves: of the fields and flags, open.
        given: the dimension that the user says is time.

    Raises:
        SourceError: the dimension does not exist, or no dimension stands out.
    """
    if given is not None:
        if not 0 <= given < len(shape):
            raise SourceError(
                f"time_dim={given}: expected a dimension of the batch {list(shape)}, 0 to {len(shape) - 1}"
            )
        return given
    candidates = [axis for axis, size in enumerate(shape) if size > 1]
    if len(candidates) < 2:
        return candidates[0] if candidates else len(shape) - 1
    shares = {axis: _followed(axis, shape, fields, leaves) for axis in candidates}
    if all(share is None for share in shares.values()):
        return candidates[0]  # every episode has one step, in whatever order they come
    best = max(candidates, key=lambda axis: shares[axis] or 0.0)
    others = [shares[axis] or 0.0 for axis in candidates if axis != best]
    if (shares[best] or 0.0) < _MOST or max(others) > _FEW:
        choices = " or ".join(str(axis) for axis in candidates)
        raise SourceError(
            f"{path}: the steps do not tell which dimension of the batch {list(shape)} is time: {choices}",
            hint=f"rlx convert {path} DST --from torchrl:time_dim={candidates[0]}",
        )
    return best


def _followed(axis: int, shape: Sequence[int], fields: TedFields, leaves: Mapping[str, Leaf]) -> float | None:
    """Return share of some rows that are followed by their neighbour in a dimension, of those that end no episode."""
    one, other = _neighbours(axis, shape)
    flags = [path for path in (TERMINATED, TRUNCATED, DONE) if path in leaves]
    goes_on = ~np.logical_or.reduce([_rows(leaves[path], one).reshape(-1) != 0 for path in flags])
    if MASK in leaves:
        goes_on &= (_rows(leaves[MASK], one).reshape(-1) != 0) & (_rows(leaves[MASK], other).reshape(-1) != 0)
    one, other = one[goes_on], other[goes_on]
    if not len(one):
        return None
    told = fields.decides
    if not told and TRAJECTORY not in leaves:
        return 0.0
    follows = np.ones(len(one), bool)
    if TRAJECTORY in leaves:
        follows &= ~different(_rows(leaves[TRAJECTORY], one), _rows(leaves[TRAJECTORY], other))
    for name in told:
        led_to, begins = _rows(leaves[fields.after[name]], one), _rows(leaves[fields.paths[name]], other)
        follows &= ~different(led_to, begins)
    return float(follows.mean())


def _neighbours(axis: int, shape: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return numbers of some rows, and of those beside them in a dimension."""
    inner = [size - (place == axis) for place, size in enumerate(shape)]
    total = math.prod(inner)
    chosen = np.arange(total)
    if total > _SAMPLE:
        chosen = np.sort(np.random.default_rng(0).choice(total, _SAMPLE, replace=False, shuffle=False))
    places = list(np.unravel_index(chosen, inner))
    one = np.ravel_multi_index(places, shape)
    places[axis] = places[axis] + 1
    return one, np.ravel_multi_index(places, shape)


def _rows(leaf: Leaf, rows: NDArray[np.int64]) -> NDArray[np.generic]:
    return np.concatenate([leaf.read(row, 1) for row in rows.tolist()])
