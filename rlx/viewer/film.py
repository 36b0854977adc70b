"""Episodes as films: GIF and H.264 in MP4."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import MissingExtraError
from rlx.progress import Progress
from rlx.viewer.episode import Episode, shown_rows
from rlx.viewer.palette import Palette
from rlx.viewer.screen import Screen

if TYPE_CHECKING:
    from PIL import Image

# A GIF is held in memory while it is written.
MAX_FRAMES = {"gif": 600, "mp4": 100_000}
_PALETTE_FRAMES = 12
_MAX_GIF_FPS = 50  # browsers slow down faster films


def film_rows(episode: Episode, format: str) -> NDArray[np.int64]:
    """Return rows of an episode that a film shows: all, or every n-th of one that is too long; always the last.

    Args:
        episode: the episode to show.
        format: ``gif`` or ``mp4``.
    """
    return shown_rows(episode, -(-episode.rows // MAX_FRAMES[format]))


def write_gif(episode: Episode, path: Path, fps: int, progress: Progress) -> None:
    """Write a GIF that runs for ever.

    Args:
        episode: what it shows.
        path: the file.
        fps: frames a second, 50 at most. GIF counts in hundredths: some frames stay one longer, so that the speed is
            right.
        progress: receives ``frames``.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    rows = film_rows(episode, "gif")
    progress.expect("frames", len(rows))
    screen = Screen(episode)
    palette = _palette(screen, rows)
    frames = (palette.apply(frame) for frame in _told(screen.frames(rows), progress))
    fps = min(fps, _MAX_GIF_FPS)
    durations = (np.diff(np.round(np.arange(len(rows) + 1) * 100 / fps)) * 10).astype(int).tolist()
    first = next(frames)
    first.save(path, "GIF", save_all=True, append_images=frames, duration=durations, loop=0, optimize=False, disposal=1)


def write_mp4(episode: Episode, path: Path, fps: int, progress: Progress) -> None:
    """Write H.264 in MP4, with colours as every player takes them.

    Args:
        episode: what it shows.
        path: the file.
        fps: frames a second.
        progress: receives ``frames``.

    Raises:
        MissingExtraError: Pillow or PyAV is not installed.
    """
    av, rows = _pyav(), film_rows(episode, "mp4")
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


def _told(frames: "Iterator[Image.Image]", progress: Progress) -> "Iterator[Image.Image]":
    for frame in frames:
        yield frame
        progress.advance("frames", 1)


def _pyav() -> Any:
    try:
        import av  # noqa: PLC0415  (an extra)
    except ImportError as exc:
        raise MissingExtraError("MP4 needs PyAV, which is not installed", hint="pip install 'rlx[view]'") from exc
    return av
