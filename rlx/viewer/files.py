"""Views of a dataset as files, by suffix: contact sheets, films and pages."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import DatasetExistsError, SamplingError, UnknownFormatError
from rlx.files.atomic import whole
from rlx.progress import Progress
from rlx.store.dataset import Dataset
from rlx.viewer import charts
from rlx.viewer.drawing import DARK, drawn, font, text
from rlx.viewer.episode import Episode, notable, observation_lines, observation_numbers, spread
from rlx.viewer.film import film_rows, write_gif, write_mp4
from rlx.viewer.page import asked_first, chosen_episodes, comparison, page
from rlx.viewer.pictures import image_of, picture_field, pillow
from rlx.wording import did_you_mean, number

if TYPE_CHECKING:
    from PIL import Image

_COLUMNS = 8
_FRAMES_OF_ONE, _FRAMES_OF_MANY = 48, 16
_CELL = 168  # pixels that a frame is wide, or nearly
_GAP, _EDGE, _HEAD, _CAPTION, _TOP = 10, 24, 44, 40, 20
_PLOT = (1400.0, 260.0)
_PLOT_ROWS = 1000
DEFAULT_FPS = 30
_FORMATS = ("png", "gif", "mp4", "html")


def contact_sheet(dataset: Dataset, episodes: Mapping[str, int]) -> bytes:
    """Return a PNG of some episodes: evenly spread frames with step, action and reward.

    Without image observations, it plots their first numbers over the steps.

    Args:
        episodes: numbers of the episodes, by title.
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
    """Return the integer factor by which a frame is enlarged."""
    return max(1, round(_CELL / max(height, width)))


def _frames(name: str, episode: Episode, field: str, count: int) -> Image.Image:
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


def _caption(pen: object, episode: Episode, row: int, at: tuple[int, int], width: int) -> None:
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


def _plot(name: str, episode: Episode) -> Image.Image:
    rows: NDArray[np.int64] = spread(episode.rows, _PLOT_ROWS)
    series = observation_lines(episode, rows)
    drawing = charts.lines("", series, rows, *_PLOT, observation_numbers(episode.dataset) - len(series))
    part, _ = _headed(name, episode, round(_PLOT[0]), round(_PLOT[1]) + _GAP)
    part.paste(drawn(drawing, 1, DARK), (0, _HEAD))
    return part


def _headed(name: str, episode: Episode, width: int, height: int) -> tuple[Image.Image, object]:
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


@dataclass(frozen=True, slots=True)
class ViewFile:
    """An image, a video or a page of a dataset.

    Args:
        file: path of the file.
        format: ``png``, ``gif``, ``mp4`` or ``html``.
        episodes: numbers of the episodes shown.
        frames: number of frames of a video; None for other formats.
        every: n if a video shows every n-th step of a long episode; otherwise 1.
        bytes: size of the file.
    """

    file: Path
    format: str
    episodes: list[int]
    frames: int | None
    every: int
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return the keys that scripts rely on."""
        described = {"file": str(self.file), "format": self.format, "episodes": self.episodes}
        return {**described, "frames": self.frames, "every": self.every, "bytes": self.bytes}


def write_view(
    dataset: Dataset, path: Path, *, episode: int | None = None, fps: int = DEFAULT_FPS, progress: Progress
) -> ViewFile:
    """Write a contact sheet, a film or a page, by the suffix of a file's name; an existing file is replaced.

    Args:
        path: ends in ``.png``, ``.gif``, ``.mp4`` or ``.html``.
        episode: episode to show; by default the best in a film, the best, median and worst by return in a contact
            sheet, and in a page also the first and the last.
    """
    format = path.suffix.removeprefix(".").lower()
    if format not in _FORMATS:
        raise UnknownFormatError(
            f"{path.name}: expected a name that ends in .{', .'.join(_FORMATS)}", hint=did_you_mean(format, _FORMATS)
        )
    if path.is_dir():
        raise DatasetExistsError(f"{path} is a directory; expected a new name, or a file to replace")
    if episode is not None:
        Episode(dataset, episode)
    elif format != "html" and not len(dataset):
        raise SamplingError(f"{dataset.where} is empty: expected an episode to show")
    shown = {"": episode} if episode is not None else notable(dataset)
    frames, every = None, 1
    with whole(path) as partial:
        if format == "png":
            partial.write_bytes(contact_sheet(dataset, shown))
        elif format == "html":
            shown = asked_first(chosen_episodes(dataset), episode)
            partial.write_text(page(dataset, shown), encoding="utf-8")
        else:
            film = Episode(dataset, next(iter(shown.values())))
            shown, rows = {"": film.number}, film_rows(film, format)
            frames, every = len(rows), int(rows[min(1, len(rows) - 1)]) or 1
            write = write_gif if format == "gif" else write_mp4
            write(film, rows, partial, fps, progress)
    return ViewFile(path, format, list(shown.values()), frames, every, path.stat().st_size)


def write_comparison(datasets: Sequence[Dataset], path: Path) -> ViewFile:
    """Write the page that compares two datasets; an existing file is replaced."""
    if path.is_dir():
        raise DatasetExistsError(f"{path} is a directory; expected a new name, or a file to replace")
    with whole(path) as partial:
        partial.write_text(comparison(datasets), encoding="utf-8")
    return ViewFile(path, "html", [], None, 1, path.stat().st_size)
