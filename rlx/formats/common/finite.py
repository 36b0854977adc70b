"""Numbers that a learner computes with are finite, whatever file they come from."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError
from rlx.schema import Field, Role, is_action


def check_finite(rows: NDArray[Any], place: str, first: int) -> None:
    """Raise CorruptShardError if one of the rows, which are numbered from ``first`` on, has NaN or infinity in it."""
    if rows.dtype.kind != "f" or (is_finite := np.isfinite(rows)).all():
        return
    worst = np.argwhere(~is_finite)[0]
    raise CorruptShardError(
        f"{place}: expected finite numbers, found {_said(rows[tuple(worst)])} in row {first + int(worst[0]):,}"
    )


def check_field(name: str, field: Field, rows: NDArray[Any], place: str, first: int) -> None:
    """Do the same for the rows of a field, if it is an observation, an action or the reward.

    Other fields may hold any number: infos are the environment's, and logits of forbidden actions are infinite.
    """
    is_info = name.split("/")[0] == "info"
    if not is_info and (field.role == Role.OBSERVATION or is_action(name) or name == "reward"):
        check_finite(rows, place, first)


def _said(value: np.floating[Any]) -> str:
    return "NaN" if np.isnan(value) else str(value)
