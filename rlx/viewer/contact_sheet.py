"""Contact sheets: the frames of an episode, or of the best, the median and the worst one, side by side as one PNG."""

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rlx.quantities import number
from rlx.store.dataset import Dataset
from rlx.viewer import charts
from rlx.viewer.episode import Episode, observation_lines, observation_numbers, spread
from rlx.viewer.pictures import image_of, picture_field, pillow
from rlx.viewer.raster import DARK, drawn, font, text

if TYPE_CHECKING:
    from PIL import Image

_COLUMNS = 8
_FRAMES_OF_ONE, _FRAMES_OF_MANY = 48, 16
_CELL = 168  # pixels that a frame is wide, or nearly
_GAP, _EDGE, _HEAD, _CAPTION, _TOP = 10, 24, 44, 40, 20
_PLOT = (1400.0, 260.0)
_PLOT_ROWS = 1000


def contact_sheet(dataset: Dataset, episodes: Mapping[str, int]) -> bytes:
    """Return a PNG of some episodes: frames evenly spread from the first to the last, each with its step, action and
    reward.

    Where observations are no pictures, their first numbers over the steps instead.

    Args:
        dataset: whose episodes they are.
        episodes: what each is called, and its number.

    Raises:
        MissingExtraError: Pillow is not installed.
        SamplingError: the episode does not exist.
    """
    field = picture_field(dataset.schema)
    opened = {name: Episode(dataset, episode) for name, episode in episodes.items()}
    if field is None:
        parts = [_plot(name, episode) for name, episode in opened.items()]
    else:
        count = _FRAMES_OF_ONE if len(opened) == 1 else _FRAMES_OF_MANY
        parts = [_frames(name, episode, field, count) for name, episode in opened.items()]
    width = max((part.width for part in parts), default=400) + 2 * _EDGE
    sheet = pillow().Image.new("RGB", (width, sum(part.height for part in parts) + _TOP + _EDGE), DARK["page"])
    top = _TOP
    for part in parts:
        sheet.paste(part, (_EDGE, top))
        top += part.height
    written = io.BytesIO()
    sheet.save(written, "PNG", optimize=True)
    return written.getvalue()


def cell_scale(height: int, width: int) -> int:
    """Return how many times larger a frame is drawn: whole times, so that its pixels stay squares."""
    return max(1, round(_CELL / max(height, width)))


def _frames(name: str, episode: Episode, field: str, count: int) -> "Image.Image":
    rows = spread(episode.rows, count)
    frames = episode.frames(field, rows)
    times = cell_scale(*frames.shape[1:3])
    height, width = frames.shape[1] * times, frames.shape[2] * times
    lines = -(-len(rows) // _COLUMNS)
    part, pen = _headed(name, episode, _COLUMNS * (width + _GAP) - _GAP, lines * (height + _CAPTION))
    for place, (row, frame) in enumerate(zip(rows.tolist(), frames, strict=True)):
        x, y = place % _COLUMNS * (width + _GAP), _HEAD + place // _COLUMNS * (height + _CAPTION)
        part.paste(image_of(frame).resize((width, height), 0), (x, y))
        _caption(pen, episode, row, (x, y + height), width)
    return part


def _caption(pen: "object", episode: Episode, row: int, at: tuple[int, int], width: int) -> None:
    x, y = at
    if row == episode.length:
        text(pen, (x, y + 15), "end", 12, DARK["ink"])
        text(pen, (x + width, y + 15), f"return {number(float(episode.returns[-1]))}", 12, DARK["accent"], "end")
        return
    reward = float(episode.rewards[row])
    text(pen, (x, y + 15), f"step {row:,}", 12, DARK["ink"])
    text(pen, (x + width, y + 15), f"return {number(float(episode.returns[row]))}", 12, DARK["accent"], "end")
    text(pen, (x, y + 30), _fitting(f"action {episode.action_text(row)}", width * 0.6), 11, DARK["muted"])
    tone = DARK["warm"] if reward else DARK["muted"]
    text(pen, (x + width, y + 30), f"reward {number(reward)}", 11, tone, "end")


def _plot(name: str, episode: Episode) -> "Image.Image":
    rows: NDArray[np.int64] = spread(episode.rows, _PLOT_ROWS)
    series = observation_lines(episode, rows)
    drawing = charts.lines("", series, rows, *_PLOT, observation_numbers(episode.dataset) - len(series))
    part, _ = _headed(name, episode, round(_PLOT[0]), round(_PLOT[1]) + _GAP)
    part.paste(drawn(drawing, 1, DARK), (0, _HEAD))
    return part


def _headed(name: str, episode: Episode, width: int, height: int) -> "tuple[Image.Image, object]":
    """Return an empty part with the episode's name above."""
    part = pillow().Image.new("RGB", (width, _HEAD + height), DARK["page"])
    pen = pillow().ImageDraw.Draw(part)
    text(pen, (0, 26), name, 18, DARK["ink"])
    offset = font(18).getlength(name) + 14 if name else 0
    text(pen, (offset, 26), episode.title, 13, DARK["muted"])
    return part, pen


def _fitting(words: str, width: float) -> str:
    while words and font(11).getlength(words) > width:
        words = words[:-4] + "..." if words.endswith("...") else words[:-3] + "..."
    return words
