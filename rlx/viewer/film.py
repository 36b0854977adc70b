"""Episodes as GIF and MP4 films: the observation, and below it the action, the reward and the return."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import imported
from rlx.progress import Progress
from rlx.viewer import charts
from rlx.viewer.drawing import DARK, Area, Drawing, Line, Mark, drawn, text
from rlx.viewer.episode import Episode, observation_lines, observation_numbers, shown_rows, spread
from rlx.viewer.pictures import Palette, image_of, picture_field, pillow

if TYPE_CHECKING:
    from PIL import Image

_WIDTH = 420  # pixels that a picture is enlarged to, or nearly
_PLOT = (640.0, 300.0)
_PANEL, _CURVE, _EDGE = 112, 44, 14
_PLOT_ROWS = 600
_PIECE_ROWS = 256
_LEFT, _RIGHT = 46.0, 14.0  # of ``charts.lines``
# A GIF is held in memory while it is written.
MAX_FRAMES = {"gif": 600, "mp4": 100_000}
_PALETTE_FRAMES = 12
_MAX_GIF_FPS = 50  # browsers slow down faster films


class Screen:
    """The frames of an episode, with captions.

    Attributes:
        width, height: size of a frame in pixels; even, as H.264 requires.
        scale: factor by which images are enlarged.
    """

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._field = picture_field(episode.dataset.schema)
        self._rows = spread(episode.rows, _PLOT_ROWS)
        if self._field is None:
            lines = observation_lines(episode, self._rows)
            more = observation_numbers(episode.dataset) - len(lines)
            self._plot: Image.Image = drawn(charts.lines("", lines, self._rows, *_PLOT, more), 1, DARK)
            self.scale, width, self._top = 1, round(_PLOT[0]), round(_PLOT[1])
        else:
            height, width = episode.frames(self._field, self._rows[:1]).shape[1:3]
            self.scale = max(1, round(_WIDTH / width))
            width, self._top = width * self.scale, height * self.scale
        # A narrow picture gets a border, so that the words below fit.
        self.width = max(width, 300) + max(width, 300) % 2
        self._left = (self.width - width) // 2
        self.height = self._top + _PANEL + self._top % 2
        self._panel = self._empty_panel()

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Left, upper, right and lower edge of the picture in a frame."""
        return self._left, 0, self.width - self._left - (self.width % 2), self._top

    def frames(self, rows: NDArray[np.int64]) -> Iterator[Image.Image]:
        """Yield a frame for each of these rows, in order; reads the dataset lazily."""
        for start in range(0, len(rows), _PIECE_ROWS):
            piece = rows[start : start + _PIECE_ROWS]
            if self._field is None:
                yield from (self._frame(self._cursor(row), row) for row in piece.tolist())
                continue
            for row, frame in zip(piece.tolist(), self._episode.frames(self._field, piece), strict=True):
                picture = image_of(frame)
                yield self._frame(picture.resize((frame.shape[1] * self.scale, frame.shape[0] * self.scale), 0), row)

    def _cursor(self, row: int) -> Image.Image:
        plot = self._plot.copy()
        x = _LEFT + row / max(int(self._rows[-1]), 1) * (_PLOT[0] - _LEFT - _RIGHT)
        pillow().ImageDraw.Draw(plot).line([(x, 8), (x, _PLOT[1] - 40)], fill=DARK["ink"], width=2)
        return plot

    def _frame(self, picture: Image.Image, row: int) -> Image.Image:
        frame: Image.Image = pillow().Image.new("RGB", (self.width, self.height), DARK["page"])
        frame.paste(picture, (self._left, 0))
        frame.paste(self._panel, (0, self._top))
        pen = pillow().ImageDraw.Draw(frame)
        self._words(pen, row)
        x, base = self._curve_x(row), self._top + _PANEL - 12
        pen.line([(x, base - _CURVE), (x, base)], fill=DARK["ink"], width=2)
        return frame

    def _words(self, pen: Any, row: int) -> None:
        episode, right = self._episode, self.width - _EDGE
        upper, lower = self._top + 24, self._top + 44
        step, total, action, *reward = episode.caption(row)
        text(pen, (_EDGE, upper), step, 15, DARK["ink"])
        text(pen, (right, upper), total, 15, DARK["accent"], "end")
        text(pen, (_EDGE, lower), action, 13, DARK["muted"])
        if reward:
            tone = DARK["warm"] if episode.rewards[row] else DARK["muted"]
            text(pen, (right, lower), reward[0], 13, tone, "end")

    def _empty_panel(self) -> Image.Image:
        steps = spread(self._episode.length, _PLOT_ROWS)
        values = np.nan_to_num(self._episode.returns[steps])
        low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
        base, room = _PANEL - 12.0, _CURVE - 4.0
        marks: list[Mark] = []
        points = [
            (self._curve_x(step), base - (value - low) / ((high - low) or 1) * room)
            for step, value in zip(steps.tolist(), values.tolist(), strict=True)
        ]
        zero = base - (0 - low) / ((high - low) or 1) * room
        if len(points) > 1:
            marks = [Area([(points[0][0], zero), *points, (points[-1][0], zero)], "soft"), Line(points, "accent", 1.6)]
        page = {**DARK, "card": DARK["page"]}
        return drawn(Drawing(self.width, _PANEL, "", marks), 1, page)

    def _curve_x(self, row: int) -> float:
        return _EDGE + row / max(self._episode.rows - 1, 1) * (self.width - 2 * _EDGE)


def film_rows(episode: Episode, format: str) -> NDArray[np.int64]:
    """Return rows of an episode that a film shows: all, or every n-th of a long one and the last.

    Args:
        format: ``gif`` or ``mp4``.
    """
    return shown_rows(episode, -(-episode.rows // MAX_FRAMES[format]))


def write_gif(episode: Episode, rows: NDArray[np.int64], path: Path, fps: int, progress: Progress) -> None:
    """Write a GIF that repeats.

    Args:
        rows: rows to show; see ``film_rows``.
        fps: frames per second, at most 50. As GIF counts in hundredths of a second, durations of frames vary.
    """
    progress.expect("frames", len(rows))
    screen = Screen(episode)
    palette = _palette(screen, rows)
    frames = (palette.apply(frame) for frame in _told(screen.frames(rows), progress))
    fps = min(fps, _MAX_GIF_FPS)
    durations = (np.diff(np.round(np.arange(len(rows) + 1) * 100 / fps)) * 10).astype(int).tolist()
    first = next(frames)
    first.save(path, "GIF", save_all=True, append_images=frames, duration=durations, loop=0, optimize=False, disposal=1)


def write_mp4(episode: Episode, rows: NDArray[np.int64], path: Path, fps: int, progress: Progress) -> None:
    """Write H.264 in MP4, in 4:2:0 colours that every player supports."""
    av = imported("av", "MP4 needs PyAV", "view")
    progress.expect("frames", len(rows))
    screen = Screen(episode)
    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as film:
        stream = film.add_stream("libx264", rate=fps, options={"crf": "18", "preset": "medium"})
        stream.width, stream.height, stream.pix_fmt = screen.width, screen.height, "yuv420p"
        for frame in _told(screen.frames(rows), progress):
            film.mux(stream.encode(av.VideoFrame.from_image(frame)))
        film.mux(stream.encode())


def _palette(screen: Screen, rows: NDArray[np.int64]) -> Palette:
    some = [np.asarray(frame) for frame in screen.frames(rows[:: -(-len(rows) // _PALETTE_FRAMES)])]
    left, top, right, low = screen.place
    return Palette([frame[top:low, left:right] for frame in some], [frame[low:] for frame in some])


def _told(frames: Iterator[Image.Image], progress: Progress) -> Iterator[Image.Image]:
    for frame in frames:
        yield frame
        progress.advance("frames", 1)
