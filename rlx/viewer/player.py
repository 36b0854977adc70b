"""Episodes as the page's player takes them: numbers of every row, and the frames in strips."""

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.viewer.episode import Episode, observation_lines, observation_numbers, shown_rows
from rlx.viewer.pictures import picture_field, png, sheet

_STRIP_SIDE = 800  # pixels that a strip has at most, unless one frame has more
_MAX_SIDE = 10  # frames side by side
_MAX_EMBEDDED_ROWS = 1500
_MAX_SERVED_ROWS = 200_000
_MAX_PARTS = 8  # of an action


@dataclass(frozen=True, slots=True)
class Strips:
    """How the frames of an episode are put together: a grid of frames a picture.

    Args:
        field: the observation.
        width, height: of a frame, in pixels.
        columns: frames side by side.
        count: frames in a strip.
    """

    field: str
    width: int
    height: int
    columns: int
    count: int

    @classmethod
    def of(cls, episode: Episode) -> "Strips | None":
        """Return the frames of an episode; None if its observations are not pictures."""
        field = picture_field(episode.dataset.schema)
        if field is None:
            return None
        height, width = episode.frames(field, np.zeros(1, np.int64)).shape[1:3]
        columns, lines = (max(1, min(_MAX_SIDE, _STRIP_SIDE // side)) for side in (width, height))
        return cls(field, width, height, columns, columns * lines)

    def number(self, rows: int) -> int:
        """Return how many strips a number of rows takes."""
        return -(-rows // self.count)

    def png(self, episode: Episode, rows: NDArray[np.int64], strip: int) -> bytes:
        """Return one strip of these rows."""
        here = rows[strip * self.count : (strip + 1) * self.count]
        return png(sheet(episode.frames(self.field, here), min(self.columns, len(here))))


def embedded(episode: Episode, max_bytes: int) -> dict[str, Any]:
    """Return an episode with all its frames in it.

    Args:
        episode: the episode to show.
        max_bytes: limit for the frames; of longer episodes every n-th row is shown.
    """
    strips, every = Strips.of(episode), -(-episode.rows // _MAX_EMBEDDED_ROWS)
    if strips is None:
        return numbers(episode, every)
    while True:
        rows = shown_rows(episode, every)
        encoded = [strips.png(episode, rows, strip) for strip in range(strips.number(len(rows)))]
        taken = sum(map(len, encoded))
        if taken <= max_bytes or every >= episode.rows:
            sources = [f"data:image/png;base64,{base64.b64encode(one).decode()}" for one in encoded]
            return {**numbers(episode, every), "frames": _layout(strips, sources)}
        every = max(every + 1, math.ceil(every * taken / max_bytes))


def served(episode: Episode) -> dict[str, Any]:
    """Return an episode whose frames are asked for when they are shown."""
    strips, every = Strips.of(episode), -(-episode.rows // _MAX_SERVED_ROWS)
    described = numbers(episode, every)
    if strips is None:
        return described
    count = strips.number(len(shown_rows(episode, every)))
    return {**described, "frames": _layout(strips, [f"episodes/{episode.number}/strips/{n}.png" for n in range(count)])}


def served_strip(episode: Episode, strip: int) -> bytes | None:
    """Return a strip of an episode as ``served`` names it; None if it does not exist."""
    strips, rows = Strips.of(episode), shown_rows(episode, -(-episode.rows // _MAX_SERVED_ROWS))
    if strips is None or not 0 <= strip < strips.number(len(rows)):
        return None
    return strips.png(episode, rows, strip)


def numbers(episode: Episode, every: int) -> dict[str, Any]:
    """Return the data of the rows shown; data of rows between two of them are added to the first.

    Non-finite numbers are null.
    """
    rows = shown_rows(episode, every)
    last = np.minimum(rows + every, episode.length) - 1
    before = np.concatenate([[0.0], episode.returns])
    acted = rows[rows < episode.length]
    described: dict[str, Any] = {
        "number": episode.number,
        "title": episode.title,
        "length": episode.length,
        "end": episode.end,
        "every": every,
        "rows": rows.tolist(),
        "rewards": _finite(np.add.reduceat(episode.rewards, acted)),
        "returns": _finite(before[np.maximum(last, 0) + 1]),
        "actions": None,
        "parts": 0,
    }
    if episode.actions is not None and episode.actions.dtype != object:
        described["parts"] = math.prod(episode.actions.shape[1:])
        actions = episode.actions[acted].reshape(len(acted), -1)[:, :_MAX_PARTS]
        described["actions"] = [_finite(one) for one in actions.astype(np.float64)]
    if picture_field(episode.dataset.schema) is None:
        lines = observation_lines(episode, rows)
        described["lines"] = [{"name": name, "values": _finite(values)} for name, values in lines]
        described["more"] = observation_numbers(episode.dataset) - len(lines)
    return described


def _layout(strips: Strips, sources: Sequence[str]) -> dict[str, Any]:
    size = {"width": strips.width, "height": strips.height}
    return {**size, "columns": strips.columns, "count": strips.count, "strips": list(sources)}


def _finite(values: NDArray[Any]) -> list[float | None]:
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values.tolist()]
