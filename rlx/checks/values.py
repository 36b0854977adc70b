"""Checks of values: not finite, outside their space, constant; black or repeated images."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.checks.check import Finding, Rows, Severity, Tally, Window
from rlx.schema import SCALAR_COLUMNS, Field, Role, Schema, is_action

_MIN_PIXELS = 256
_MAX_BLACK = 0.01  # a few games fade out
_MAX_REPEATED = 0.5
_MIN_PICTURES = 100


class NotFinite:
    """NaN and infinity."""

    def __init__(self, schema: Schema) -> None:
        self._fields = [name for name, field in schema.fields.items() if field.dtype.startswith("float")]
        self._schema = schema
        self._found = {name: Tally() for name in self._fields}

    def see(self, window: Window) -> None:
        """Process the next steps."""
        for name in self._fields:
            rows = window.known(name)
            bad = ~np.isfinite(_flat(window[name][rows])).all(axis=1)
            if bad.any():
                self._found[name].add(*window.place(name, rows[bad]))

    def findings(self) -> Iterator[Finding]:
        """Yield fields that hold NaN or infinity."""
        for name, tally in self._found.items():
            if tally.count:
                is_extra = self._schema[name].role != Role.OBSERVATION and name != "reward" and not is_action(name)
                yield Finding(
                    "not-finite",
                    Severity.NOTE if is_extra else Severity.ERROR,
                    f"{name} is NaN or infinite",
                    why="one such number makes a loss, and then every weight, NaN",
                    remedy="drop these trajectories, or fill the gaps if you know what belongs there",
                    field=name,
                    trajectories=np.empty(0, np.int64) if is_extra else tally.numbers(),
                    **tally.of(),
                )


class OutsideSpace:
    """Values that the field's space does not contain."""

    def __init__(self, schema: Schema) -> None:
        self._bounds = {name: bounds for name, field in schema.fields.items() if (bounds := _bounds(field)) is not None}
        self._found = {name: Tally() for name in self._bounds}

    def see(self, window: Window) -> None:
        """Process the next steps."""
        for name, (low, high) in self._bounds.items():
            rows = window.known(name)
            values = window[name] if len(rows) == len(window[name]) else window[name][rows]
            if not values.size or (values.min() >= low.max() and values.max() <= high.min()):
                continue
            outside = _flat((values < low) | (values > high)).any(axis=1)
            self._found[name].add(*window.place(name, rows[outside]))

    def findings(self) -> Iterator[Finding]:
        """Yield fields with values outside their space."""
        for name, tally in self._found.items():
            if not tally.count:
                continue
            low, high = self._bounds[name]
            yield Finding(
                "outside-space",
                Severity.ERROR if is_action(name) else Severity.WARNING,
                f"{name} is outside its space, {_shown(low)} to {_shown(high)}",
                why="a network with one output per action, or normalized by the bounds, cannot represent these values",
                remedy="correct the space, or clip the values on purpose (rlx preprocess --fn)",
                field=name,
                **tally.of(),
            )


class Constant:
    """Fields that have the same value at every step."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._first: dict[str, Rows] = {}
        self._varies = set(SCALAR_COLUMNS) | {name for name, field in schema.fields.items() if not field.row_bytes}
        self._steps = 0

    def see(self, window: Window) -> None:
        """Process the next steps."""
        self._steps += window.block.steps
        for name in self._schema:
            rows = window[name]
            if name in self._varies or not len(rows):
                continue
            if self._schema[name].role == Role.OBSERVATION:
                rows = rows[window.recorded] if not window.recorded.all() else rows
            if not len(rows):
                continue
            first = self._first.setdefault(name, rows[:1].copy())
            if (rows != first).any():
                self._varies.add(name)

    def findings(self) -> Iterator[Finding]:
        """Yield fields that never vary, in datasets of more than one step."""
        if self._steps < 2:
            return
        for name in self._schema:
            if name in self._varies:
                continue
            matters = self._schema[name].role == Role.OBSERVATION or is_action(name)
            yield Finding(
                "constant",
                Severity.WARNING if matters else Severity.NOTE,
                f"{name} has the same value at every step",
                count=self._steps,
                why="a learner learns nothing from it" if matters else "it takes space and carries no information",
                remedy=f"check how it was recorded, or drop it: rlx preprocess SRC DST --transform exclude:keys={name}",
                field=name,
            )


def _flat(rows: NDArray[Any]) -> NDArray[Any]:
    return rows.reshape(len(rows), -1)


def _bounds(field: Field) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return lowest and highest values of a field's space, each a number or an array of one row's shape."""
    space: Mapping[str, Any] = field.space or {}
    try:
        match space.get("type"):
            case "Discrete":
                least = int(space.get("start", 0))
                return np.asarray(least), np.asarray(least + int(space["n"]) - 1)
            case "MultiDiscrete":
                start = np.asarray(space.get("start", 0), np.int64)
                return _fitting(start, field), _fitting(start + np.asarray(space["nvec"], np.int64) - 1, field)
            case "MultiBinary":
                return np.asarray(0), np.asarray(1)
            case "Box" if "low" in space or "high" in space:
                low, high = space.get("low", -np.inf), space.get("high", np.inf)
                return _fitting(np.asarray(low, np.float64), field), _fitting(np.asarray(high, np.float64), field)
    except (KeyError, TypeError, ValueError):
        return None  # not a space that rlx can interpret, so values cannot be compared with it
    return None


def _fitting(bound: NDArray[Any], field: Field) -> NDArray[Any]:
    np.broadcast_to(bound, field.shape)
    if field.dtype.startswith("float") and bound.dtype.kind == "f":
        bound = bound.astype(field.dtype)  # as the values were rounded
    return bound


def _shown(bound: NDArray[Any]) -> str:
    values = np.unique(bound)
    return f"{values[0]:g}" if len(values) == 1 else f"[{values[0]:g} ... {values[-1]:g}]"


def is_picture(field: Field) -> bool:
    """Return whether a field holds images: uint8 observations of two or more dimensions."""
    return (
        field.role == Role.OBSERVATION
        and field.dtype == "uint8"
        and len(field.shape) >= 2
        and field.row_bytes >= _MIN_PIXELS
    )


class Pictures:
    """Images that are black, or equal the one before."""

    def __init__(self, schema: Schema) -> None:
        self._fields = [name for name, field in schema.fields.items() if is_picture(field)]
        self._seen = dict.fromkeys(self._fields, 0)
        self._black = {name: Tally() for name in self._fields}
        self._repeated = {name: Tally() for name in self._fields}
        self._last: dict[str, Rows] = {}

    def see(self, window: Window) -> None:
        """Process the next steps."""
        for name in self._fields:
            rows, known = window[name].reshape(len(window[name]), -1), window.recorded
            if not len(rows):
                continue
            self._seen[name] += int(known.sum())
            black = np.flatnonzero(~rows.any(axis=1) & known)
            if len(black):
                self._black[name].add(*window.place(name, black))
            repeated = np.flatnonzero(self._same(name, rows, window) & known)
            if len(repeated):
                self._repeated[name].add(*window.place(name, repeated))

    def _same(self, name: str, rows: Rows, window: Window) -> NDArray[np.bool_]:
        """Return [n] whether each image equals the previous one of its trajectory."""
        same = np.zeros(len(rows), bool)
        # Words of eight bytes compare faster than bytes.
        wide = rows.view(np.uint64) if rows.shape[1] % 8 == 0 and rows.flags.c_contiguous else rows
        same[1:] = (wide[1:] == wide[:-1]).all(axis=1)
        same[window.row_position == 0] = False
        if window.row_position[0] > 0 and name in self._last:
            same[0] = np.array_equal(rows[0], self._last[name])
        self._last[name] = rows[-1].copy()
        return same

    def findings(self) -> Iterator[Finding]:
        """Yield fields with many black or repeated images."""
        for name in self._fields:
            seen, black, repeated = self._seen[name], self._black[name], self._repeated[name]
            if black.count > seen * _MAX_BLACK and black.count > 1:
                yield Finding(
                    "black",
                    Severity.ERROR if black.count == seen else Severity.WARNING,
                    f"{black.count:,} of {seen:,} images in {name} are black",
                    why="a learner takes a black image for a state",
                    remedy="check the camera or the decoder; drop these episodes",
                    field=name,
                    **black.of(),
                )
            elif seen >= _MIN_PICTURES and repeated.count > seen * _MAX_REPEATED:
                yield Finding(
                    "repeated",
                    Severity.WARNING,
                    f"{repeated.count:,} of {seen:,} images in {name} equal the one before",
                    why="a frozen camera, or frames written twice, hide what the actions did",
                    remedy="check the recording; skip frames: rlx preprocess SRC DST --transform frame_skip:k=2",
                    field=name,
                    **repeated.of(),
                )
