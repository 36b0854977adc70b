"""One trajectory for viewing: its rows, and the data of the page's player."""

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
from rlx.viewer.pictures import Frames, picture_fields, pictures, png, sheet
from rlx.wording import excerpt, number, plural

_MAX_CHARACTERS = 80  # of an action that is text
_MAX_TEXT = 400
_STRIP_SIDE = 800  # pixels that a strip has at most, unless one frame has more
_SERVED_PIXELS = 2**17  # of a strip, so that its frames are there in some milliseconds
_MAX_SIDE = 10  # frames side by side
_MAX_EMBEDDED_ROWS = 1500
_MAX_SERVED_ROWS = 200_000
_MAX_SERVED_NUMBERS = 2_000_000
_MAX_PARTS = 8  # of an action
_MAX_LINES = 6  # of a field
_MAX_FIELDS = 24
_PIECE_BYTES = 2**25  # of a field that are read at once
SHOWN_APART = frozenset({"action", "reward", "terminated", "truncated"})  # which the player shows by other means


@dataclass(frozen=True)
class Episode:
    """One trajectory of L steps, and L + 1 rows of observations, or L if the final one was not recorded."""

    dataset: Dataset
    number: int

    def __post_init__(self) -> None:
        count = len(self.dataset.trajectories)
        if not 0 <= self.number < count:
            there = f"0 to {count - 1:,}" if count else "none, the dataset is empty"
            raise SamplingError(f"episode {self.number:,}: expected {there}")

    @property
    def length(self) -> int:
        """Number of steps."""
        return int(self.dataset.trajectories.length[self.number])

    @property
    def rows(self) -> int:
        """Number of recorded observations."""
        return self.length + int(self.dataset.trajectories.final_recorded[self.number])

    @property
    def end(self) -> str:
        """``terminated``, ``truncated`` or ``open``."""
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
        """[L] sum of the rewards up to and including each step."""
        with np.errstate(all="ignore"):
            return np.cumsum(self.rewards)

    @cached_property
    def actions(self) -> NDArray[Any] | None:
        """[L, ...] action of each step; None without a field ``action``."""
        return self._steps("action") if "action" in self.dataset.schema else None

    def observations(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return [n, ...] rows of an observation, each from 0 to L; L is the final one."""
        first = int(self.dataset.steps.start[self.number])
        places = self.dataset.steps.locate(first + np.minimum(rows, self.length - 1))
        now, then = self.dataset.steps.read_observations(name, places, shared=True)
        is_final = (rows == self.length).reshape(-1, *(1 for _ in now.shape[1:]))
        return np.where(is_final, then, now)

    def values(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return [n, ...] rows of any field, each from 0 to L; row L of a field that is no observation is zeros."""
        field, taken = self.dataset.schema[name], rows < self.length
        if field.role == Role.OBSERVATION:
            return self.observations(name, rows)
        found = field.zeros(len(rows))
        first = int(self.dataset.steps.start[self.number])
        found[taken] = self.dataset.steps.read(name, self.dataset.steps.locate(first + rows[taken]))
        return found

    def frames(self, name: str, rows: NDArray[np.int64]) -> Frames:
        """Return [n, height, width, 3] rows of an image field."""
        frames = pictures(self.values(name, rows))
        assert frames is not None  # the caller has asked picture_field
        return frames

    def action_text(self, step: int) -> str:
        """Return the action of a step as short text."""
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

    def caption(self, row: int) -> list[str]:
        """Return the step, the return and the action of a row, short, and its reward; of the final one, the end."""
        said = [f"step {row:,} of {self.length:,}", f"return {number(float(self.returns[min(row, self.length - 1)]))}"]
        if row == self.length:
            return [*said, self.end]
        return [*said, f"action {self.action_text(row)}", f"reward {number(float(self.rewards[row]))}"]

    def _steps(self, name: str) -> NDArray[Any]:
        first = int(self.dataset.steps.start[self.number])
        return self.dataset.steps.read(name, self.dataset.steps.locate(np.arange(first, first + self.length)))


def notable(dataset: Dataset) -> dict[str, int]:
    """Return numbers of the best, the median and the worst episode by return, each once.

    Only whole episodes count, unless a dataset has none.
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
    """Return the number of values in the observations of a step."""
    return sum(math.prod(dataset.schema[name].shape) for name in _vectors(dataset))


def _vectors(dataset: Dataset) -> Sequence[str]:
    return [
        name for name, field in dataset.schema.fields.items() if field.role == Role.OBSERVATION and not field.is_text
    ]


@dataclass(frozen=True, slots=True)
class Strips:
    """Layout of the frames of an episode: grids of frames, each one image.

    Args:
        width, height: size of a frame in pixels.
    """

    field: str
    width: int
    height: int
    columns: int
    count: int

    @classmethod
    def of(cls, episode: Episode, field: str, *, served: bool = False) -> Strips:
        """Return the frames of a field of an episode."""
        frames = pictures(episode.dataset.schema[field].zeros(1))
        assert frames is not None  # the caller has asked picture_fields
        height, width = frames.shape[1:3]
        columns, lines = (max(1, min(_MAX_SIDE, _STRIP_SIDE // side)) for side in (width, height))
        if served:
            columns = max(1, min(columns, _SERVED_PIXELS // (width * height)))
            lines = max(1, min(lines, _SERVED_PIXELS // (columns * width * height)))
        return cls(field, width, height, columns, columns * lines)

    def number(self, rows: int) -> int:
        """Return how many strips a number of rows takes."""
        return -(-rows // self.count)

    def png(self, episode: Episode, rows: NDArray[np.int64], strip: int, level: int = 6) -> bytes:
        """Return one strip of these rows."""
        here = rows[strip * self.count : (strip + 1) * self.count]
        return png(sheet(episode.frames(self.field, here), min(self.columns, len(here))), level)

    def layout(self, sources: Sequence[str]) -> dict[str, Any]:
        """Return the JSON that a page needs to cut the strips at these addresses."""
        size = {"name": self.field, "width": self.width, "height": self.height}
        return {**size, "columns": self.columns, "count": self.count, "strips": list(sources)}


def embedded(episode: Episode, max_bytes: int) -> dict[str, Any]:
    """Return an episode with all its frames in it.

    Args:
        max_bytes: limit for the frames; longer episodes show every n-th row.
    """
    strips = [Strips.of(episode, field) for field in picture_fields(episode.dataset.schema)]
    every = -(-episode.rows // _MAX_EMBEDDED_ROWS)
    while True:
        rows = shown_rows(episode, every)
        encoded = [[one.png(episode, rows, strip) for strip in range(one.number(len(rows)))] for one in strips]
        taken = sum(len(strip) for one in encoded for strip in one)
        if taken <= max_bytes or every >= episode.rows:
            sources = [
                [f"data:image/png;base64,{base64.b64encode(strip).decode()}" for strip in one] for one in encoded
            ]
            layouts = [one.layout(found) for one, found in zip(strips, sources, strict=True)]
            return {**numbers(episode, every), "frames": layouts}
        every = max(every + 1, math.ceil(every * taken / max_bytes))


def _served_every(episode: Episode) -> int:
    lines = sum(min(math.prod(field.shape), _MAX_LINES) for field in episode.dataset.schema.fields.values())
    return -(-episode.rows // min(_MAX_SERVED_ROWS, max(_MAX_SERVED_NUMBERS // lines, 1)))


def served(episode: Episode, base: str = "") -> dict[str, Any]:
    """Return an episode whose frames are requested below ``base`` when shown."""
    every, layouts = _served_every(episode), []
    for place, field in enumerate(picture_fields(episode.dataset.schema)):
        strips = Strips.of(episode, field, served=True)
        count = strips.number(len(shown_rows(episode, every)))
        layouts.append(strips.layout([f"{base}episodes/{episode.number}/{place}/{n}.png" for n in range(count)]))
    return {**numbers(episode, every), "frames": layouts}


def served_strip(episode: Episode, place: int, strip: int) -> bytes | None:
    """Return a strip of a picture field of an episode as ``served`` names it; None if it does not exist."""
    fields = picture_fields(episode.dataset.schema)
    if place >= len(fields):
        return None
    strips, rows = Strips.of(episode, fields[place], served=True), shown_rows(episode, _served_every(episode))
    return strips.png(episode, rows, strip, 1) if strip < strips.number(len(rows)) else None


def numbers(episode: Episode, every: int) -> dict[str, Any]:
    """Return the data of the rows shown; the reward of a row includes those of the rows skipped after it.

    Non-finite numbers are null, and so is the last row of other fields than observations.
    """
    rows = shown_rows(episode, every)
    last = np.minimum(rows + every, episode.length) - 1
    before = np.concatenate([[0.0], episode.returns])
    acted = rows[rows < episode.length]
    with np.errstate(all="ignore"):
        rewards = np.add.reduceat(episode.rewards, acted)
    described: dict[str, Any] = {
        "number": episode.number,
        "title": episode.title,
        "length": episode.length,
        "end": episode.end,
        "every": every,
        "rows": rows.tolist(),
        "rewards": _finite(rewards),
        "returns": _finite(before[np.maximum(last, 0) + 1]),
        "actions": None,
        "parts": 0,
        **_fields(episode, rows),
    }
    if episode.actions is not None and episode.actions.dtype != object:
        described["parts"] = math.prod(episode.actions.shape[1:])
        actions = episode.actions[acted].reshape(len(acted), -1)[:, :_MAX_PARTS]
        described["actions"] = [_finite(one) for one in actions.astype(np.float64)]
    return described


def _fields(episode: Episode, rows: NDArray[np.int64]) -> dict[str, Any]:
    """Return the curves and the texts of all other fields, and the number of fields left out."""
    schema = episode.dataset.schema
    texts = [name for name, field in schema.fields.items() if field.is_text]
    pictured = picture_fields(schema)
    drawn = [name for name in schema if name not in (*SHOWN_APART, *texts, *pictured) and 0 not in schema[name].shape]
    curves: list[dict[str, Any]] = []
    said: list[dict[str, Any]] = []
    for name in drawn[:_MAX_FIELDS]:
        flat, parts = _first_numbers(episode, name, rows), math.prod(schema[name].shape)
        if schema[name].role != Role.OBSERVATION:
            flat[rows >= episode.length] = np.nan
        lines = [_finite(column) for column in flat.T]
        whole = np.dtype(schema[name].dtype).kind in "biu"
        curves.append({"name": name, "lines": lines, "parts": parts, "whole": whole})
    for name in texts[:_MAX_FIELDS]:
        shown = [excerpt(", ".join(row), _MAX_TEXT) for row in episode.values(name, rows).reshape(len(rows), -1)]
        table = list(dict.fromkeys(shown))  # an instruction is the same at every step
        places = {text: place for place, text in enumerate(table)}
        said.append({"name": name, "table": table, "rows": [places[text] for text in shown]})
    return {"curves": curves, "texts": said, "hidden": len(drawn) + len(texts) - len(curves) - len(said)}


def _first_numbers(episode: Episode, name: str, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return [n, k] the first numbers of a field, read in pieces, as rows may be large (depth images)."""
    piece = max(1, _PIECE_BYTES // episode.dataset.schema[name].zeros(1).nbytes)
    parts = (episode.values(name, rows[start : start + piece]) for start in range(0, len(rows), piece))
    return np.concatenate([part.reshape(len(part), -1)[:, :_MAX_LINES].astype(np.float64) for part in parts])


def _finite(values: NDArray[Any]) -> list[float | None]:
    return [shortened(value) for value in values.tolist()]


def shortened(value: float) -> float | None:
    """Return a number with six digits, or one decimal place if it is large; None if it is not finite.

    Example:
        >>> shortened(0.1234567), shortened(1234567.0), shortened(float("inf"))
        (0.123457, 1234567.0, None)
    """
    if not math.isfinite(value):
        return None
    return float(f"{value:.6g}") if abs(value) < 1e5 else round(value, 1)
