"""Fields of a file: checks of their values, and arrays that the format does not name.

No source drops a key in silence. An array with a row for every step becomes a field; anything else is noted with the
reason under ``not_taken``, and ``rlx convert`` prints the note before it reads.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, SchemaMismatchError, SourceError
from rlx.manifest_values import check_json
from rlx.schema import FLAGS, Field, Role, Schema, check_name, is_action

NOT_TAKEN = "not_taken"
NOT_A_ROW_PER_STEP = "not one row per step"
NOT_UTF_8 = "bytes that are not UTF-8 text"
NOT_NUMBERS_OR_TEXT = "neither numbers nor text"
NOT_OF_STEPS = "not part of any step"
_MAX_NAMED = 100
_MAX_KEY = 100  # characters
_MAX_NOTE = 10_000  # characters
_NOTE_DEPTH = 4  # a note's own depth at most, below the notes of a manifest
_REST = "..."
RowType = tuple[str, tuple[int, ...]]


@contextmanager
def expecting(layout: str) -> Iterator[None]:
    """Append the expected layout to the message of every SourceError; also a decorator of functions.

    A SchemaMismatchError becomes a CorruptShardError.

    Args:
        layout: a description of the format that begins with ``expected``.

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
        # No schema can hold these fields: the file is wrong, not the caller.
        raise CorruptShardError(f"{exc}; {layout}") from exc


def check_finite(rows: NDArray[Any], place: str, first: int) -> None:
    """Raise CorruptShardError if a row has NaN or infinity; ``first`` is the number of the first row, for messages."""
    if rows.dtype.kind != "f" or (is_finite := np.isfinite(rows)).all():
        return
    worst = np.argwhere(~is_finite)[0]
    raise CorruptShardError(
        f"{place}: expected finite numbers, found {_said(rows[tuple(worst)])} in row {first + int(worst[0]):,}"
    )


def check_field(name: str, field: Field, rows: NDArray[Any], place: str, first: int) -> None:
    """Call ``check_finite`` for the rows of a field that is an observation, an action or the reward.

    Other fields may hold any number, such as infinite logits of forbidden actions.
    """
    is_info = name.split("/")[0] == "info"
    if not is_info and (field.role == Role.OBSERVATION or is_action(name) or name == "reward"):
        check_finite(rows, place, first)


def flags_of(rows: NDArray[Any], place: str, first: int = 0) -> NDArray[np.bool_]:
    """Return flags of the shape of ``rows``; raises CorruptShardError unless each is 0 or 1.

    Args:
        rows: [n, ...] numbers: NaN, 0.5, -1 and 2 are no flags, although they are not 0.
        first: number of the first row, for messages.

    Example:
        >>> flags_of(np.array([0.0, 1.0]), "terminals").tolist()
        [False, True]
        >>> flags_of(np.array([0.0, 0.5]), "terminals")
        Traceback (most recent call last):
            ...
        rlx.errors.CorruptShardError: terminals: expected 0 or 1, found 0.5 in row 1
    """
    if rows.dtype == bool:
        rows = rows.view(np.uint8)  # a file may have any byte
    flags: NDArray[np.bool_] = rows == 1
    if (wrong := np.argwhere(~flags & (rows != 0))).size:
        worst = tuple(wrong[0])
        raise CorruptShardError(f"{place}: expected 0 or 1, found {_said(rows[worst])} in row {first + worst[0]:,}")
    return flags


def _said(value: Any) -> str:
    return "NaN" if value != value else str(value)


def missing_field(fields: Mapping[str, Field]) -> str | None:
    """Return ``observation`` or ``action`` if no field is one; None if both are present."""
    if not any(field.role == Role.OBSERVATION for field in fields.values()):
        return "observation"
    return None if any(map(is_action, fields)) else "action"


def with_flags(fields: Mapping[str, Field], place: str, error: type[SourceError] = CorruptShardError) -> Schema:
    """Return the schema of fields and of the flags; raises ``error`` if no schema can hold them."""
    try:
        return Schema({**fields, **FLAGS})
    except SchemaMismatchError as exc:
        raise error(f"{place}: {exc}") from exc


class ExtraFields:
    """Fields of a file, added one by one; one that conflicts with those before it is noted with the reason.

    Args:
        known: the fields that the format itself names.

    Attributes:
        fields: the added fields, by name.
        keys: the key of each in the file, by the field's name.
        not_taken: the reason for every key that is not a field.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self.fields: dict[str, Field] = {}
        self.keys: dict[str, str] = {}
        self.not_taken: dict[str, str] = {}
        self._names: set[str] = set()
        self._groups: set[str] = set()
        for name in known:
            self._take(name)

    def add(
        self, key: str, name: str, kind: RowType | None, role: Role, space: Mapping[str, Any] | None = None
    ) -> bool:
        """Add a field, or note why not; returns whether it was added.

        Args:
            key: its name in the file.
            name: name of the field.
            kind: dtype and shape of a row; None if its values are neither numbers nor text.
            space: of the field, if known.
        """
        if kind is None:
            return self.leave(key, NOT_NUMBERS_OR_TEXT)
        try:
            field = Field(*kind, role, space)
            check_name(name, field)
        except SchemaMismatchError as exc:
            return self.leave(key, str(exc))
        if (other := self._conflicting(name)) is not None:
            return self.leave(key, f"{other!r} is a field already")
        self._take(name)
        self.fields[name], self.keys[name] = field, key
        return True

    def leave(self, key: str, reason: str) -> bool:
        """Note why a key is not taken; returns False."""
        self.not_taken[key] = reason
        return False

    def _take(self, name: str) -> None:
        self._names.add(name)
        self._groups.update(_parents(name))

    def _conflicting(self, name: str) -> str | None:
        """Return the field of this name, or above or below it; None if the name is free."""
        if name in self._groups:
            return next(other for other in sorted(self._names) if other.startswith(f"{name}/"))
        return next((other for other in (name, *_parents(name)) if other in self._names), None)


def _parents(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def not_taken_note(reasons: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the note of keys that are not taken; empty if there are no reasons.

    At most 100 keys are named; the last entry counts the others.

    Example:
        >>> not_taken_note({"author": NOT_OF_STEPS}), not_taken_note({})
        ({'not_taken': {'author': 'not part of any step'}}, {})
    """
    if not reasons:
        return {}
    named = {_shortened(key): reason for key, reason in list(reasons.items())[:_MAX_NAMED]}
    rest = len(reasons) - len(named)
    return {NOT_TAKEN: named | ({_REST: f"{rest:,} more"} if rest else {})}


def not_taken(notes: Mapping[str, Any]) -> dict[str, str]:
    """Return the entries that the notes of a source or a dataset list as not read: reason by key.

    Example:
        >>> not_taken(not_taken_note({"author": NOT_OF_STEPS})), not_taken({})
        ({'author': 'not part of any step'}, {})
    """
    found = notes.get(NOT_TAKEN)
    return {str(key): str(reason) for key, reason in found.items()} if isinstance(found, dict) else {}


def can_be_noted(said: Any) -> bool:
    """Return whether a manifest can keep metadata: finite numbers, and at most 10,000 characters of JSON.

    Example:
        >>> can_be_noted({"author": "Ada"}), can_be_noted([float("nan")]), can_be_noted("x" * 10_000)
        (True, False, False)
    """
    try:
        check_json(said, "note", _NOTE_DEPTH)
    except ValueError:
        return False
    return len(json.dumps(said)) <= _MAX_NOTE


def _shortened(key: str) -> str:
    return key if len(key) <= _MAX_KEY else f"{key[: _MAX_KEY - 3]}..."
