"""Contact sheets and films, decoded again: every picture in them is the dataset's."""

import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import rlx
from rlx.errors import DatasetExistsError, MissingExtraError, RlxError, SamplingError
from rlx.progress import Silent
from rlx.store.dataset import Dataset
from rlx.viewer import film
from rlx.viewer.episode import Episode, spread
from rlx.viewer.files import ViewFile, cell_scale, write_view
from rlx.viewer.film import Screen
from rlx.viewer.overview import plots_png
from rlx.viewer.pictures import Palette
from rlx.viewer.server import ViewServer
from tests.factories import make_block, write_dataset
from tests.viewer.datasets import NUMBERS, coloured, numbers


def written(dataset: Dataset, path: Path, **asked: Any) -> ViewFile:
    return write_view(dataset, path, progress=Silent(), **asked)


def read(path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def picture(screen: Screen, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The stored picture in a frame of a film: one pixel of each square."""
    left, top, right, low = screen.place
    middle = screen.scale // 2
    return frame[top:low, left:right][middle :: screen.scale, middle :: screen.scale]


class TestSheet:
    def test_of_one_episode(self, tmp_path: Path) -> None:
        dataset = coloured(tmp_path / "set")
        report = written(dataset, tmp_path / "a.png", episode=1)
        assert (report.episodes, report.frames, report.bytes) == ([1], None, (tmp_path / "a.png").stat().st_size)
        pixels = read(tmp_path / "a.png")
        frames, times = Episode(dataset, 1).frames("observation", np.arange(10)), cell_scale(24, 32)
        for number, frame in enumerate(frames):
            y, x = 20 + 44 + number // 8 * (24 * times + 40), 24 + number % 8 * (32 * times + 10)
            shown = pixels[y : y + 24 * times, x : x + 32 * times]
            assert np.array_equal(shown, frame.repeat(times, axis=0).repeat(times, axis=1))

    def test_of_the_best_and_the_worst_of_the_whole_episodes(self, pong: Path, tmp_path: Path) -> None:
        dataset = rlx.open(pong)
        report = written(dataset, tmp_path / "a.png")
        table = dataset.trajectories
        returns = table.returns[report.episodes]
        assert returns.tolist() == [table.returns[table.whole].max(), table.returns[table.whole].min()]
        pixels = read(tmp_path / "a.png")
        frames = Episode(dataset, report.episodes[1]).frames(
            "observation", spread(Episode(dataset, report.episodes[1]).rows, 16)
        )
        top = 20 + (44 + 2 * (168 + 40)) + 44
        assert np.array_equal(pixels[top : top + 168 : 2, 24 : 24 + 168 : 2], frames[0])

    def test_of_numbers_has_lines(self, tmp_path: Path) -> None:
        written(numbers(tmp_path / "set"), tmp_path / "a.png")
        assert (read(tmp_path / "a.png") == (0x6E, 0xA2, 0xFF)).all(axis=-1).any()


class TestFilm:
    def test_a_gif_is_exact(self, tmp_path: Path) -> None:
        dataset = coloured(tmp_path / "set", colours=150)
        report = written(dataset, tmp_path / "a.gif", episode=1, fps=30)
        assert (report.frames, report.every, report.format) == (10, 1, "gif")
        episode = Episode(dataset, 1)
        screen, wanted = Screen(episode), episode.frames("observation", np.arange(10))
        durations = []
        with Image.open(tmp_path / "a.gif") as gif:
            assert (gif.size, getattr(gif, "n_frames", 1)) == ((screen.width, screen.height), 10)
            for number in range(10):
                gif.seek(number)
                durations.append(gif.info["duration"])
                assert np.array_equal(picture(screen, np.asarray(gif.convert("RGB"))), wanted[number])
        assert durations == [30, 40, 30, 30, 40, 30, 30, 40, 30, 30]

    def test_grey_frames_of_a_gif_are_exact(self, pong: Path, tmp_path: Path) -> None:
        dataset = rlx.open(pong)
        number = int(dataset.trajectories.length.argmin())
        written(dataset, tmp_path / "a.gif", episode=number, fps=15)
        episode = Episode(dataset, number)
        frame = episode.frames("observation", film.film_rows(episode, "gif")[100:101])[0]
        with Image.open(tmp_path / "a.gif") as gif:
            gif.seek(100)
            assert np.array_equal(picture(Screen(episode), np.asarray(gif.convert("RGB"))), frame)

    def test_a_gif_of_more_colours_than_it_has_is_near(self) -> None:
        across, down = np.meshgrid(np.linspace(0, 255, 640), np.linspace(0, 255, 480))
        camera = np.stack([across, down, across // 2 + down // 2], axis=-1).astype(np.uint8)
        captions = np.array([[[15, 17, 21], [110, 162, 255]]], np.uint8)
        palette = Palette([camera, 255 - camera], [captions])
        for picture in (camera, 255 - camera):
            shown = np.asarray(palette.apply(Image.fromarray(picture)).convert("RGB"))
            assert np.abs(shown.astype(int) - picture).mean() < 12
        assert np.array_equal(np.asarray(palette.apply(Image.fromarray(captions)).convert("RGB")), captions)

    @pytest.mark.parametrize("fps", [15, 30])
    def test_an_mp4_is_nearly_exact(self, pong: Path, tmp_path: Path, fps: int) -> None:
        dataset = rlx.open(pong)
        number = int(dataset.trajectories.length.argmin())
        report = written(dataset, tmp_path / "a.mp4", episode=number, fps=fps)
        episode = Episode(dataset, number)
        screen = Screen(episode)
        with av.open(str(tmp_path / "a.mp4")) as opened:
            (stream,) = opened.streams.video
            assert (stream.codec_context.name, stream.pix_fmt) == ("h264", "yuv420p")
            assert float(stream.average_rate or 0) == fps
            frames = [
                np.asarray(frame.to_image())  # type: ignore[no-untyped-call]
                for frame in opened.decode(video=0)
            ]
        assert len(frames) == report.frames == episode.rows
        wanted = episode.frames("observation", np.arange(episode.rows))
        shown = np.stack([picture(screen, frame) for frame in frames])
        assert np.abs(shown.astype(int) - wanted.astype(int)).mean() < 2

    def test_of_one_too_long_every_so_many_th_row_and_the_last(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(film.MAX_FRAMES, "gif", 4)
        dataset = coloured(tmp_path / "set")
        report = written(dataset, tmp_path / "a.gif", episode=1)
        assert (report.frames, report.every) == (4, 3)
        assert film.film_rows(Episode(dataset, 1), "gif").tolist() == [0, 3, 6, 9]
        assert film.film_rows(Episode(dataset, 0), "gif").tolist() == [0, 1, 2, 3]

    @pytest.mark.parametrize("suffix", ["gif", "mp4"])
    def test_of_numbers_a_line_moves_through_the_plot(self, tmp_path: Path, suffix: str) -> None:
        dataset = numbers(tmp_path / "set")
        report = written(dataset, tmp_path / f"a.{suffix}")
        assert (report.episodes, report.frames) == ([1], 41)

    def test_of_one_step(self, tmp_path: Path) -> None:
        dataset = numbers(tmp_path / "set", [[2.0]])
        assert written(dataset, tmp_path / "a.mp4").frames == 2
        assert written(coloured(tmp_path / "b", [[1.0]], recorded=False), tmp_path / "b.gif").frames == 1

    def test_numbers_that_are_none(self, tmp_path: Path) -> None:
        dataset = numbers(tmp_path / "set", [[np.nan, np.inf, 1.0], [-np.inf, 3.0]])
        for name in ("a.gif", "a.png", "a.html"):
            assert written(dataset, tmp_path / name, episode=0).bytes > 0


class TestFiles:
    def test_a_name_that_means_nothing(self, tmp_path: Path) -> None:
        dataset = numbers(tmp_path / "set")
        with pytest.raises(RlxError, match=r"a.txt: expected a name that ends in .png, .gif, .mp4, .html"):
            written(dataset, tmp_path / "a.txt")

    def test_no_such_episode_leaves_no_file(self, tmp_path: Path) -> None:
        dataset = numbers(tmp_path / "set")
        for suffix in ("png", "gif", "mp4", "html"):
            with pytest.raises(SamplingError, match="episode 3: expected 0 to 2"):
                written(dataset, tmp_path / f"a.{suffix}", episode=3)
        assert [path.name for path in tmp_path.iterdir()] == ["set"]

    def test_of_nothing(self, tmp_path: Path) -> None:
        dataset = write_dataset(tmp_path / "set", [[]], schema=NUMBERS)
        with pytest.raises(SamplingError, match="set is empty: expected an episode to show"):
            written(dataset, tmp_path / "a.gif")
        assert written(dataset, tmp_path / "a.html").episodes == []
        assert plots_png(dataset).startswith(b"\x89PNG")

    def test_a_directory_is_not_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "a.png").mkdir()
        (tmp_path / "a.png/kept").touch()
        with pytest.raises(DatasetExistsError, match="is a directory"):
            written(numbers(tmp_path / "set"), tmp_path / "a.png")
        assert (tmp_path / "a.png/kept").exists()


@pytest.mark.parametrize(("package", "names"), [("PIL", ["a.png", "a.gif", "a.mp4", "a.html"]), ("av", ["a.mp4"])])
def test_without_the_extra_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, names: list[str]
) -> None:
    dataset = coloured(tmp_path / "set")
    for module in list(sys.modules):
        if module.split(".")[0] == package:
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    for name in names:
        with pytest.raises(MissingExtraError, match="which is not installed") as error:
            written(dataset, tmp_path / name)
        assert error.value.hint == "pip install 'rlx[view]'"
    if package == "PIL":
        with pytest.raises(MissingExtraError):
            ViewServer(dataset)
        with pytest.raises(MissingExtraError):
            plots_png(dataset)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_page_of_two_datasets(tmp_path: Path) -> None:
    one, other = (write_dataset(tmp_path / name, [[make_block((3, 5))]]).path for name in "ab")
    written = rlx.view(one, other, output=tmp_path / "both.html")
    assert (written.format, written.frames, written.bytes) == ("html", None, (tmp_path / "both.html").stat().st_size)
    assert "Test/1" in (tmp_path / "both.html").read_text()
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(DatasetExistsError, match="is a directory; expected a new name, or a file to replace"):
        rlx.view(one, other, output=tmp_path / "folder.html")
