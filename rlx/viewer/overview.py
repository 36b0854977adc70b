"""The charts of a dataset, from all steps or a sample; and the charts as one PNG."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rlx.store.dataset import Dataset
from rlx.store.statistics import merge_statistics
from rlx.viewer import charts
from rlx.viewer.drawing import LIGHT, Drawing, drawn, text
from rlx.viewer.pictures import pillow
from rlx.wording import plural, size

if TYPE_CHECKING:
    from PIL import Image

MAX_STEPS = 2**21
_PIECE_STEPS = 2**14
_MAX_VALUES = 18  # rewards that are counted one by one
_MAX_PARTS = 6  # of an action
_WIDTH, _HEIGHT = 420.0, 210.0
_GAP, _EDGE, _HEAD, _CAPTION, _NOTE = 16, 24, 64, 34, 24
_SCALE = 2


@dataclass(frozen=True, slots=True)
class Overview:
    """Figures of a dataset.

    Args:
        returns: [N] return of each trajectory.
        length: [N] steps of each trajectory.
        whole: [N] whether each is a whole episode.
        rewards: [n] rewards of the sampled steps.
        actions: [n, k] first numbers of other actions, of the sampled steps.
        steps_seen: n; all steps, or ``MAX_STEPS`` of them, in evenly spread pieces.
    """

    returns: NDArray[np.float64]
    length: NDArray[np.int64]
    whole: NDArray[np.bool_]
    rewards: NDArray[np.float64]
    action_counts: Mapping[str, int]
    actions: NDArray[np.float64]
    steps_seen: int
    steps: int

    @classmethod
    def of(cls, dataset: Dataset) -> Overview:
        """Return the figures of a dataset."""
        table, pieces = dataset.trajectories, _pieces(len(dataset))
        statistics = merge_statistics(shard.statistics for shard in dataset.manifest.shards)
        counts = statistics.get("action", {}).get("counts", {})
        actions = np.empty((0, 0))
        if "action" in dataset.schema and not dataset.schema["action"].is_text and not counts:
            actions = _read(dataset, "action", pieces)
        seen = sum(stop - start for start, stop in pieces)
        rewards = _read(dataset, "reward", pieces)[:, 0]
        return cls(table.returns, table.length, table.whole, rewards, counts, actions, seen, len(dataset))

    def drawings(self, width: float, height: float, beside: Overview | None = None) -> Sequence[Drawing]:
        """Return all charts: returns over the run, returns, lengths, rewards and actions.

        Args:
            beside: another dataset, whose charts have the same scales.
        """
        other = beside or self
        sampled = "" if self.steps_seen == self.steps else f" (of {self.steps_seen:,} steps)"
        drawings = [
            self.run(width, height, other),
            charts.histogram(f"Returns{self._of_what}", self._returns, width, height, among=other._returns),
            charts.histogram(
                f"Lengths{self._of_what}, in steps", self._lengths, width, height, "second", other._lengths
            ),
        ]
        drawings.append(self._rewards(f"Rewards{sampled}", width, height, other))
        if self.action_counts:
            keys = sorted({*self.action_counts, *other.action_counts}, key=int)
            counts = {key: self.action_counts.get(key, 0) for key in keys}
            drawings.append(charts.shares("Actions", counts, width, "third"))
        for part in range(self.actions.shape[1]):
            name = f"action[{part}]" if self.actions.shape[1] > 1 else "Actions"
            among = other.actions[:, part] if part < other.actions.shape[1] else None
            drawings.append(charts.histogram(f"{name}{sampled}", self.actions[:, part], width, height, "third", among))
        return drawings

    def run(self, width: float, height: float, beside: Overview | None = None) -> Drawing:
        """Return the returns over the run."""
        among = self._returns if beside is None else beside._returns
        return charts.returns_over_run(self._returns, self.length, width, height, among)

    @property
    def _shown(self) -> NDArray[np.bool_]:
        """[N] trajectories that count: whole episodes, or all if no episode is whole."""
        return self.whole if self.whole.any() else np.ones_like(self.whole)

    @property
    def _of_what(self) -> str:
        if self.whole.all():
            return " of episodes"
        return " of whole episodes" if self.whole.any() else " of pieces of episodes"

    @property
    def _returns(self) -> NDArray[np.float64]:
        return np.where(self._shown, self.returns, np.nan)

    @property
    def _lengths(self) -> NDArray[np.float64]:
        return self.length[self._shown].astype(np.float64)

    def _rewards(self, title: str, width: float, height: float, beside: Overview) -> Drawing:
        rewards = self.rewards[np.isfinite(self.rewards)]
        values = np.unique(np.concatenate([rewards, beside.rewards[np.isfinite(beside.rewards)]]))
        # Values that read the same would be counted as one.
        if len(values) > _MAX_VALUES or len({f"{value:g}" for value in values.tolist()}) < len(values):
            return charts.histogram(title, rewards, width, height, "warm", beside.rewards)
        counts = np.bincount(np.searchsorted(values, rewards), minlength=len(values))
        found = {f"{value:g}": int(count) for value, count in zip(values.tolist(), counts, strict=True)}
        return charts.shares(title, found, width, "warm")


def _pieces(steps: int) -> list[tuple[int, int]]:
    if steps <= MAX_STEPS:
        return [(start, min(start + _PIECE_STEPS, steps)) for start in range(0, steps, _PIECE_STEPS)]
    count = MAX_STEPS // _PIECE_STEPS
    starts = np.linspace(0, steps - _PIECE_STEPS, count).astype(np.int64).tolist()
    return [(start, start + _PIECE_STEPS) for start in starts]


def _read(dataset: Dataset, name: str, pieces: Sequence[tuple[int, int]]) -> NDArray[np.float64]:
    """Return [n, k] the first numbers of a field, of the steps of these pieces."""
    width = math.prod(dataset.schema[name].shape)
    parts = [np.empty((0, min(width, _MAX_PARTS)))]
    for start, stop in pieces:
        rows = dataset.steps.read(name, dataset.steps.locate(np.arange(start, stop)))
        parts.append(rows.reshape(len(rows), width)[:, :_MAX_PARTS].astype(np.float64))
    return np.concatenate(parts)


def plots_png(dataset: Dataset) -> bytes:
    """Return over the run, the distributions of returns, lengths and rewards, and how often each action was taken."""
    overview = Overview.of(dataset)
    drawings = overview.drawings(_WIDTH, _HEIGHT)
    rows = [
        [overview.run(2 * _WIDTH + _GAP, _HEIGHT)],
        *(list(drawings[n : n + 2]) for n in range(1, len(drawings), 2)),
    ]
    width = 2 * _WIDTH + _GAP + 2 * _EDGE
    height = _HEAD + sum(_row_height(row) + _GAP for row in rows) - _GAP + _EDGE
    image = pillow().Image.new("RGB", (round(width * _SCALE), round(height * _SCALE)), LIGHT["page"])
    pen = pillow().ImageDraw.Draw(image)
    listed = dataset.manifest
    said = f"{plural(listed.steps, 'step')} in {plural(listed.trajectories, 'trajectory')}, {size(listed.bytes)}"
    text(pen, (_EDGE * _SCALE, 34 * _SCALE), listed.id[:60], 20 * _SCALE, LIGHT["ink"])
    text(pen, (_EDGE * _SCALE, 52 * _SCALE), said, 12 * _SCALE, LIGHT["muted"])
    top: float = _HEAD
    for row in rows:
        for place, drawing in enumerate(row):
            _paste(image, drawing, _EDGE + place * (_WIDTH + _GAP), top, _row_height(row))
        top += _row_height(row) + _GAP
    written = io.BytesIO()
    image.save(written, "PNG", optimize=True)
    return written.getvalue()


def _row_height(row: Sequence[Drawing]) -> float:
    return _CAPTION + _NOTE + max(drawing.height for drawing in row)


def _paste(image: Image.Image, drawing: Drawing, x: float, y: float, height: float) -> None:
    pen = pillow().ImageDraw.Draw(image)
    corners = [value * _SCALE for value in (x, y, x + drawing.width, y + height)]
    pen.rounded_rectangle(corners, 10 * _SCALE, fill=LIGHT["card"], outline=LIGHT["grid"], width=_SCALE)
    inner = Drawing(drawing.width - 2, drawing.height, "", drawing.marks)
    image.paste(drawn(inner, _SCALE, LIGHT), (round((x + 1) * _SCALE), round((y + _CAPTION) * _SCALE)))
    text(pen, ((x + 14) * _SCALE, (y + 22) * _SCALE), drawing.title, 13 * _SCALE, LIGHT["ink"])
    text(pen, ((x + 14) * _SCALE, (y + height - 10) * _SCALE), drawing.note, 10.5 * _SCALE, LIGHT["muted"])
