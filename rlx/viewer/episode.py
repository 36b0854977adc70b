"""One trajectory for viewing: its rows, and what the page's player shows of them."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import SamplingError
from rlx.schema import Role
from rlx.store.dataset import Dataset
from rlx.viewer.pictures import Frames, picture_field, pictures, png, sheet
from rlx.wording import excerpt, number, plural

_MAX_CHARACTERS = 80  # of an action that is text
_STRIP_SIDE = 800  # pixels that a strip has at most, unless one frame has more
_MAX_SIDE = 10  # frames side by side
_MAX_EMBEDDED_ROWS = 1500
_MAX_SERVED_ROWS = 200_000
_MAX_PARTS = 8  # of an action


@dataclass(frozen=True)
class Episode:
    """One trajectory of L steps, and so of L + 1 rows of observations, or L where the final one was not recorded.

    Args:
        dataset: whose trajectory it is.
        number: which.

    Raises:
        SamplingError: the dataset has no such trajectory.
    """

    dataset: Dataset
    number: int

    def __post_init__(self) -> None:
        count = len(self.dataset.trajectories)
        if not 0 <= self.number < count:
            there = f"0 to {count - 1:,}" if count else "none, the dataset is empty"
            raise SamplingError(f"episode {self.number:,}: expected {there}")

    @property
    def length(self) -> int:
        """Steps."""
        return int(self.dataset.trajectories.length[self.number])

    @property
    def rows(self) -> int:
        """Observations that were recorded."""
        return self.length + int(self.dataset.trajectories.final_recorded[self.number])

    @property
    def end(self) -> str:
        """How it ends."""
        table = self.dataset.trajectories
        if table.terminated[self.number]:
            return "terminated"
        return "truncated" if table.truncated[self.number] else "open"

    @property
    def title(self) -> str:
        """The title of the trajectory."""
        total = number(float(self.dataset.trajectories.returns[self.number]))
        what = "episode" if self.dataset.trajectories.whole[self.number] else "piece"
        return f"{what} {self.number:,}  ·  return {total}  ·  {plural(self.length, 'step')}  ·  {self.end}"

    @cached_property
    def rewards(self) -> NDArray[np.float64]:
        """[L] reward of each step."""
        return self._steps("reward").astype(np.float64)

    @cached_property
    def returns(self) -> NDArray[np.float64]:
        """[L] sum of the rewards up to and with each step."""
        return np.cumsum(self.rewards)

    @cached_property
    def actions(self) -> NDArray[Any] | None:
        """[L, ...] action of each step, where there is one field of actions."""
        return self._steps("action") if "action" in self.dataset.schema else None

    def observations(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return [n, ...] rows of an observation, each from 0 to L; L is the final one."""
        first = int(self.dataset.steps.start[self.number])
        places = self.dataset.steps.locate(first + np.minimum(rows, self.length - 1))
        now, then = self.dataset.steps.read_observations(name, places)
        is_final = (rows == self.length).reshape(-1, *(1 for _ in now.shape[1:]))
        return np.where(is_final, then, now)

    def frames(self, name: str, rows: NDArray[np.int64]) -> Frames:
        """Return [n, height, width, 3] rows of an observation that is a picture."""
        frames = pictures(self.observations(name, rows))
        assert frames is not None  # whoever asks has asked picture_field
        return frames

    def action_text(self, step: int) -> str:
        """Return the action of a step, short."""
        if self.actions is None:
            return "-"
        action = self.actions[step : step + 1].reshape(-1)
        if action.dtype == object:
            return excerpt(", ".join(action.tolist()), _MAX_CHARACTERS)
        if action.dtype.kind in "iub":
            words = [str(int(value)) for value in action[:4]]
        else:
            words = [f"{value:.2f}" for value in action[:4]]
        return ", ".join(words) + (", ..." if len(action) > 4 else "")

    def _steps(self, name: str) -> NDArray[Any]:
        first = int(self.dataset.steps.start[self.number])
        return self.dataset.steps.read(name, self.dataset.steps.locate(np.arange(first, first + self.length)))


def notable(dataset: Dataset) -> dict[str, int]:
    """Return numbers of the best, the median and the worst episode by return; of few, those that exist, each once.

    They are whole episodes; pieces only where a dataset has nothing else.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> returns, whole = np.array([3.0, 9.0, 1.0, np.nan, 99.0]), np.array([True] * 4 + [False])
        >>> notable(Fake(trajectories=Fake(returns=returns, whole=whole)))
        {'best': 1, 'median': 2, 'worst': 3}
    """
    table = dataset.trajectories
    numbers = np.flatnonzero(table.whole if table.whole.any() else np.ones_like(table.whole))
    order = numbers[np.argsort(np.nan_to_num(table.returns[numbers], nan=-np.inf), kind="stable")]
    if not len(order):
        return {}
    found = {"best": int(order[-1]), "median": int(order[(len(order) - 1) // 2]), "worst": int(order[0])}
    return {name: one for place, (name, one) in enumerate(found.items()) if one not in list(found.values())[:place]}


def spread(rows: int, count: int) -> NDArray[np.int64]:
    """Return at most ``count`` of the rows, evenly spread, with the first and the last.

    Example:
        >>> spread(11, 3), spread(2, 5)
        (array([ 0,  5, 10]), array([0, 1]))
    """
    if rows <= count:
        return np.arange(rows)
    return np.round(np.linspace(0, rows - 1, count)).astype(np.int64)


def shown_rows(episode: Episode, every: int) -> NDArray[np.int64]:
    """Return every n-th row, from the first, and the last."""
    rows = np.arange(0, episode.rows, every)
    return rows if rows[-1] == episode.rows - 1 else np.append(rows, episode.rows - 1)


def observation_lines(
    episode: Episode, rows: NDArray[np.int64], most: int = 6
) -> list[tuple[str, NDArray[np.float64]]]:
    """Return names and values [n] of the first numbers of the observations, for those that are not pictures."""
    lines: list[tuple[str, NDArray[np.float64]]] = []
    for name in _vectors(episode.dataset):
        values = episode.observations(name, rows)
        flat = values.reshape(len(values), -1)[:, : most - len(lines)].astype(np.float64)
        wide = values[0].size > 1
        lines += [(f"{name}[{column}]" if wide else name, flat[:, column]) for column in range(flat.shape[1])]
    return lines


def observation_numbers(dataset: Dataset) -> int:
    """Return how many numbers the observations of a step are."""
    return sum(math.prod(dataset.schema[name].shape) for name in _vectors(dataset))


def _vectors(dataset: Dataset) -> Sequence[str]:
    return [
        name for name, field in dataset.schema.fields.items() if field.role == Role.OBSERVATION and not field.is_text
    ]


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
    def of(cls, episode: Episode) -> Strips | None:
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
