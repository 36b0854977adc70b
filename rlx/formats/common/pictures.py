"""Where pictures keep their channels: some formats want them first, some last."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlx.schema import Field

_MAX_CHANNELS = 4
_MIN_SIDE = 8
Rows = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Arranged:
    """Rows of a field as a format wants them.

    Args:
        shape: of one row.
        arrange: makes rows [n, *shape] of the field's.
    """

    shape: tuple[int, ...]
    arrange: Callable[[Rows], Rows]

    def loss(self, name: str, field: Field) -> list[str]:
        """Return a note on the changed shape, if it changes."""
        return [] if self.shape == field.shape else [f"{name} as {list(field.shape)}: it becomes {list(self.shape)}"]


def as_it_is(field: Field) -> Arranged:
    """Return the field's own shape."""
    return Arranged(field.shape, lambda rows: rows)


def channels_first(field: Field) -> Arranged:
    """Return pictures [H, W] and [H, W, C] as [1, H, W] and [C, H, W]; anything else as it is.

    Example:
        >>> from rlx.schema import Role
        >>> channels_first(Field("uint8", (210, 160, 3), Role.OBSERVATION)).shape
        (3, 210, 160)
        >>> channels_first(Field("uint8", (4, 84, 84), Role.OBSERVATION)).shape
        (4, 84, 84)
    """
    if _is_plane(field):
        return Arranged((1, *field.shape), lambda rows: rows[:, None])
    if _has_channels(field, -1):
        *plane, channels = field.shape
        return Arranged((channels, *plane), lambda rows: np.moveaxis(rows, -1, 1))
    return as_it_is(field)


def channels_last(field: Field) -> Arranged:
    """Return pictures [H, W] and [C, H, W] as [H, W, 1] and [H, W, C]; anything else as it is."""
    if _is_plane(field):
        return Arranged((*field.shape, 1), lambda rows: rows[..., None])
    if _has_channels(field, 0):
        channels, *plane = field.shape
        return Arranged((*plane, channels), lambda rows: np.moveaxis(rows, 1, -1))
    return as_it_is(field)


def _is_plane(field: Field) -> bool:
    return field.dtype == "uint8" and len(field.shape) == 2 and min(field.shape) >= _MIN_SIDE


def _has_channels(field: Field, axis: int) -> bool:
    """Return whether rows are pictures whose channels are the first axis (0) or the last one (-1)."""
    if field.dtype != "uint8" or len(field.shape) != 3 or field.shape[axis] > _MAX_CHANNELS:
        return False
    plane = field.shape[1:] if axis == 0 else field.shape[:-1]
    return min(plane) >= _MIN_SIDE
