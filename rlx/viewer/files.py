"""Views of a dataset as files: what a suffix means, and how each is written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlx.errors import DatasetExistsError, SamplingError, UnknownFormatError
from rlx.files.atomic import whole
from rlx.progress import Progress
from rlx.store.dataset import Dataset
from rlx.viewer.contact_sheet import contact_sheet
from rlx.viewer.episode import Episode, notable
from rlx.viewer.film import MAX_FRAMES, film_rows, write_gif, write_mp4
from rlx.viewer.page import asked_first, chosen_episodes, page

DEFAULT_FPS = 30


@dataclass(frozen=True, slots=True)
class ViewFile:
    """An image, a video or a page of a dataset.

    Args:
        file: path of the file.
        format: ``png``, ``gif``, ``mp4`` or ``html``.
        episodes: numbers of the episodes shown.
        frames: number of frames of a video; None for other formats.
        every: 1 if a video shows every step, n if only every n-th, because the episode is long.
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


@dataclass(frozen=True, slots=True)
class _Asked:
    """The options of a user."""

    episode: int | None
    fps: int
    progress: Progress


def write_view(
    dataset: Dataset, path: Path, *, episode: int | None = None, fps: int = DEFAULT_FPS, progress: Progress
) -> ViewFile:
    """Write a contact sheet, a film or a page, by the suffix of a file's name; an existing file is replaced.

    Args:
        dataset: the dataset to show.
        path: ends in ``.png``, ``.gif``, ``.mp4`` or ``.html``.
        episode: the one to be shown. Where not given, a contact sheet has the best, the median and the worst by return,
            a film the best, and a page those, the first and the last.
        fps: frames a second of a film.
        progress: receives ``frames``.

    Raises:
        UnknownFormatError: the name has another suffix.
        SamplingError: the episode does not exist, or the dataset is empty.
        MissingExtraError: Pillow, or for MP4 PyAV, is not installed.
        DatasetExistsError: a directory lies there.
        DiskFullError: no space is left.
    """
    format = path.suffix.removeprefix(".").lower()
    if format not in _WRITERS:
        raise UnknownFormatError(f"{path.name}: expected a name that ends in .{', .'.join(_WRITERS)}")
    if path.is_dir():
        raise DatasetExistsError(f"{path} is a directory; expected a new name, or a file to replace")
    if episode is not None:
        Episode(dataset, episode)
    elif format != "html" and not len(dataset):
        raise SamplingError(f"{dataset.where} is empty: expected an episode to show")
    with whole(path) as partial:
        shown = _WRITERS[format](dataset, partial, _Asked(episode, fps, progress))
    rows = film_rows(Episode(dataset, shown[0]), format) if format in MAX_FRAMES else None
    frames, every = (None, 1) if rows is None else (len(rows), int(rows[min(1, len(rows) - 1)]) or 1)
    return ViewFile(path, format, shown, frames, every, path.stat().st_size)


def _write_sheet(dataset: Dataset, path: Path, asked: _Asked) -> list[int]:
    episodes = notable(dataset) if asked.episode is None else {"": asked.episode}
    path.write_bytes(contact_sheet(dataset, episodes))
    return list(episodes.values())


def _write_page(dataset: Dataset, path: Path, asked: _Asked) -> list[int]:
    episodes = asked_first(chosen_episodes(dataset), asked.episode)
    path.write_text(page(dataset, episodes), encoding="utf-8")
    return list(episodes.values())


def _write_gif(dataset: Dataset, path: Path, asked: _Asked) -> list[int]:
    episode = _one(dataset, asked)
    write_gif(episode, path, asked.fps, asked.progress)
    return [episode.number]


def _write_mp4(dataset: Dataset, path: Path, asked: _Asked) -> list[int]:
    episode = _one(dataset, asked)
    write_mp4(episode, path, asked.fps, asked.progress)
    return [episode.number]


def _one(dataset: Dataset, asked: _Asked) -> Episode:
    return Episode(dataset, notable(dataset)["best"] if asked.episode is None else asked.episode)


_WRITERS: Mapping[str, Callable[[Dataset, Path, _Asked], list[int]]] = MappingProxyType(
    {"png": _write_sheet, "gif": _write_gif, "mp4": _write_mp4, "html": _write_page}
)
