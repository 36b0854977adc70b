"""Checks of what a file holds: the layout that its format expects, finite numbers, the fields of every step."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, SchemaMismatchError, SourceError
from rlx.schema import Field, Role, is_action


@contextmanager
def expecting(layout: str) -> Iterator[None]:
    """End the message of every SourceError with the expected layout; also a decorator of functions.

    A SchemaMismatchError that is left becomes a CorruptShardError.

    Args:
        layout: the format's, in words that begin with ``expected``.

    Example:
        >>> with expecting("expected D4RL's layout: observations [N, ...], ..."):
        ...     raise SourceError("a.hdf5: rewards is missing")
        Traceback (most recent call last):
            ...
        rlx.errors.SourceError: a.hdf5: rewards is missing; expected D4RL's layout: observations [N, ...], ...
    """
    try:
        yield
    except SourceError as exc:
        if layout not in str(exc):
            exc.args = (f"{exc}; {layout}",)
        raise
    except SchemaMismatchError as exc:
        # No schema can hold what the file holds: the file's fault, whoever makes the fields of it.
        raise CorruptShardError(f"{exc}; {layout}") from exc


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


def missing_field(fields: Mapping[str, Field]) -> str | None:
    """Return ``observation`` or ``action`` if no field is one; None if both are present.

    Example:
        >>> seen = Field("float32", (2,), Role.OBSERVATION)
        >>> missing_field({"pixels": seen, "agents/action": Field("int64", (), Role.STEP)})
        >>> missing_field({"observation": seen, "reaction": Field("int64", (), Role.STEP)})
        'action'
    """
    if not any(field.role == Role.OBSERVATION for field in fields.values()):
        return "observation"
    return None if any(map(is_action, fields)) else "action"
