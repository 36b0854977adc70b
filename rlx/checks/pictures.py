"""Checks of pictures: black ones, and ones that repeat."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rlx.checks.finding import Finding, Severity, Tally
from rlx.checks.window import Rows, Window
from rlx.schema import Field, Role, Schema

_MIN_PIXELS = 256
_MAX_BLACK = 0.01  # a few games fade out
_MAX_REPEATED = 0.5
_MIN_PICTURES = 100


def is_picture(field: Field) -> bool:
    """Return whether a field holds pictures: observations of bytes, of two dimensions or more."""
    return (
        field.role == Role.OBSERVATION
        and field.dtype == "uint8"
        and len(field.shape) >= 2
        and field.row_bytes >= _MIN_PIXELS
    )


class Pictures:
    """Pictures that are black, or the same as the one before."""

    def __init__(self, schema: Schema) -> None:
        self._fields = [name for name, field in schema.fields.items() if is_picture(field)]
        self._seen = dict.fromkeys(self._fields, 0)
        self._black = {name: Tally() for name in self._fields}
        self._repeated = {name: Tally() for name in self._fields}
        self._last: dict[str, Rows] = {}

    def see(self, window: Window) -> None:
        """Take in the next steps."""
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
        """Return [n] whether each picture is the same as the one before it in its trajectory."""
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
        """Yield fields with many black or repeated pictures."""
        for name in self._fields:
            seen, black, repeated = self._seen[name], self._black[name], self._repeated[name]
            if black.count > seen * _MAX_BLACK and black.count > 1:
                yield Finding(
                    "black",
                    Severity.ERROR if black.count == seen else Severity.WARNING,
                    f"{black.count:,} of {seen:,} pictures in {name} are black",
                    why="a learner takes an empty picture for a state",
                    remedy="check the camera or the decoder that made them; drop these episodes",
                    field=name,
                    **black.of(),
                )
            elif seen >= _MIN_PICTURES and repeated.count > seen * _MAX_REPEATED:
                yield Finding(
                    "repeated",
                    Severity.WARNING,
                    f"{repeated.count:,} of {seen:,} pictures in {name} equal the one before",
                    why="a frozen camera, or frames written twice, hide what the actions did",
                    remedy="check the recording; skip repeated frames with --transform frame_skip",
                    field=name,
                    **repeated.of(),
                )
